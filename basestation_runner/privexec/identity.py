"""Becoming the site: every step from the helper's identity to the job's, in the order in which they must happen.

`PREPARATION` is what is the same for every job, `STEPS` the rest of the privilege drop, one small function each;
`prepare` and then `drop` run them and nothing else. Opens, reads and executes nothing that belongs to the job: that is
allowed only after `verify`, the last step, has returned.
"""

import errno
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import prctl

from basestation_runner import syscalls
from basestation_runner.privexec import capabilities

UMASK: Final = 0o002
OPEN_FILES: Final = 1024
"""Soft limit of open files, what programs that use select(2) can bear; a job may raise it to the hard limit."""

_SETTABLE: Final = tuple(map(int, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
_LIBRARY_SIGNALS: Final = 1 << 31 | 1 << 32
"""Signals 32 and 33 are the C library's own: it lets nobody set them, and leaves them ignored after posix_spawn."""


class DropError(Exception):
    """The process is not exactly what the job must be. It must end now, and run nothing."""


class Identity(NamedTuple):
    """Who the job is: plain numbers, resolved and allowed before.

    `groups` is the whole supplementary list, its first entry the effective GID. `changes` is False in single-account
    mode, where the helper has no capabilities and may only run what is already its own identity. `cgroup_procs` is
    the cgroup.procs file of the job's leaf, None where there are no cgroups. `address_space` is how many bytes of
    memory each of its processes may have from its program on, None for as many as it likes.
    """

    uid: int
    groups: tuple[int, ...]
    changes: bool = True
    cgroup_procs: str | None = None
    address_space: int | None = None


def new_session() -> None:
    """Leave the helper's session and process group: signals to either must not reach the job, nor its to them."""
    os.setsid()


def default_signals() -> None:
    """Give every signal its default action and block none: dispositions and mask survive execve."""
    for number in _SETTABLE:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def stated_umask() -> None:
    """Let the site's group write what its jobs make."""
    os.umask(UMASK)


def stated_limits() -> None:
    """Set soft limits to stated values, whatever the helper runs with. Hard limits stay: they are the unit's."""
    for which, wanted in ((resource.RLIMIT_NOFILE, OPEN_FILES), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(which)[1]
        resource.setrlimit(which, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def stated_priority() -> None:
    """Run at nice 0 on every processor that the host lets us have."""
    with suppress(PermissionError):  # an administrator has niced the helper itself: that bounds its jobs too
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))


def join_cgroup(identity: Identity) -> str | None:
    """Move into the job's leaf, as the helper's account: after the drop the files are not ours to write.

    Failing to throttle never stops a job: it returns a warning.
    """
    if identity.cgroup_procs is not None:
        try:
            with open(identity.cgroup_procs, "w", encoding="ascii") as procs:
                procs.write("0")
        except OSError as error:
            return f"limits are not applied, the job's cgroup cannot be joined: {error.strerror}"
    return None


def set_groups(identity: Identity) -> None:
    """Replace the helper's supplementary groups by the granted list, the effective GID included."""
    if identity.changes:
        os.setgroups(identity.groups)


def set_gids(identity: Identity) -> None:
    """Set real, effective and saved GID. Before the uid: afterwards CAP_SETGID would be used as the site."""
    if identity.changes:
        gid = identity.groups[0]
        os.setresgid(gid, gid, gid)


def set_uids(identity: Identity) -> None:
    """Set real, effective and saved uid. The capabilities survive this between accounts other than root."""
    if identity.changes:
        os.setresuid(identity.uid, identity.uid, identity.uid)
        prctl.set_dumpable(0)  # by the sysctl fs.suid_dumpable others of this account could read its memory else


def own_keyring(_: Identity) -> None:
    """Join a new session keyring: a shared one would let a site read another's keys. As the site, whose quota pays."""
    try:
        syscalls.join_new_session_keyring()
    except OSError as error:
        # A kernel without keyrings shares none; a seccomp filter, as of a container, keeps them from the job as well.
        if error.errno not in {errno.ENOSYS, errno.EPERM}:
            raise


def empty_capabilities(_: Identity) -> None:
    """Empty the inheritable set (the ambient one falls with it), the effective and the permitted one, for good."""
    prctl.cap_inheritable.limit()
    prctl.cap_effective.limit()
    prctl.cap_permitted.limit()


def no_new_privileges(_: Identity) -> None:
    """Let no later execve give anything: set-user-ID programs and file capabilities have no effect any more."""
    prctl.set_no_new_privs(1)


def verify(identity: Identity) -> None:
    """Read back from the kernel what we are, and try to go back. Raises DropError unless both are as they must be."""
    now = capabilities.process_status()
    gid = identity.groups[0]
    # Set by us, the list holds the effective GID too; in single-account mode whoever started the helper decided.
    found_groups = set(now.groups) | (set() if identity.changes else {gid})
    facts = (
        ("uids", set(now.uids), {identity.uid}),
        ("gids", set(now.gids), {gid}),
        ("groups", found_groups, set(identity.groups)),
        ("capabilities", now.held, 0),
        ("no_new_privs", now.no_new_privs, True),
        ("umask", now.umask, UMASK),
        ("session", os.getsid(0), os.getpid()),
        ("ignored and blocked signals", (now.ignored_signals | now.blocked_signals) & ~_LIBRARY_SIGNALS, 0),
    )
    for what, found, wanted in facts:
        if found != wanted:
            raise DropError(f"{what}: {found}, must be {wanted}")
    if identity.changes:
        _try_to_go_back(identity)


def _try_to_go_back(identity: Identity) -> None:
    somebody_else = identity.uid - 1
    ways: tuple[tuple[str, Callable[[], None]], ...] = (
        ("setuid(0)", lambda: os.setuid(0)),
        ("setresuid to another account", lambda: os.setresuid(somebody_else, somebody_else, somebody_else)),
        ("setresgid(0)", lambda: os.setresgid(0, 0, 0)),
        ("setgroups", lambda: os.setgroups([0])),
    )
    for name, attempt in ways:
        try:
            attempt()
        except PermissionError:
            continue
        raise DropError(f"{name} was possible after the drop")


PREPARATION: Final[tuple[Callable[[], None], ...]] = (
    new_session,
    default_signals,
    stated_umask,
    stated_limits,
    stated_priority,
)

STEPS: Final[tuple[Callable[[Identity], str | None], ...]] = (
    join_cgroup,
    set_groups,
    set_gids,
    set_uids,
    own_keyring,
    empty_capabilities,
    no_new_privileges,
    verify,
)


def prepare() -> None:
    """Set what has the same value for every job. Raises OSError, after which the process must run nothing."""
    for step in PREPARATION:
        step()


def drop(identity: Identity) -> list[str]:
    """Become `identity` for good, in a process that has been prepared, and return warnings.

    Raises DropError or OSError; the process must then end without running anything.
    """
    return [warning for step in STEPS if (warning := step(identity)) is not None]
