"""The job's child: from the fork, through the privilege drop, to the execve of the program.

Runs in a process of its own, which the keeper forks before there is a job for it: what can be done then need not be
waited for later. Everything that belongs to the site is opened after the drop, as
the site; whatever then goes wrong is told to the keeper in words, never left to an exit code.
"""

import errno
import json
import os
import shlex
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, NoReturn

from basestation_runner import nss, trust
from basestation_runner.errors import RunnerError
from basestation_runner.paths import PathBusyError, PathRefusedError, Tree, lies_beneath, path_of
from basestation_runner.privexec import bwrap, capabilities, identity, limits
from basestation_runner.privexec.identity import DropError, Identity
from basestation_runner.privexec.launch import launched
from basestation_runner.privexec.order import PROFILE, NotNowError, Order, RefusedError, Sandbox

GO: Final = b"g"
"""The keeper's word that the claim is written. End of file instead of it means: run nothing."""

_PASSING: Final = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.EBUSY, errno.ETXTBSY}
    | {errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ETIMEDOUT}
)
"""Errors that say something about this moment, not about the request."""

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_LANG: Final = "C.UTF-8"
_NO_HOME: Final = "/nonexistent"
_MOST_BYTES: Final = 1 << 16
_MOST_FILES: Final = 2
_MOST_KEPT: Final = 8000
"""Characters of a command that are kept in its job's dispatch record."""
_SHOWN: Final = 500
"""Characters of a request that a reason or the audit trail repeats; messages to the keeper stay small."""


def run(keeper: socket.socket, cache_dir: str) -> NoReturn:
    """Wait for an order, become its site, wait for the keeper's word, and execute the program. Never returns.

    The order comes as a message that `ordered` makes, with the order's file and, for a step of the job, its log.
    Messages to the keeper: {"warnings"}, {"readable", "start"} with the log's descriptor, {"outcome": "ready",
    "command", "argv", "env"} just before execve, {"outcome": "refused" or "temporary", "reason"}. The socket closes at
    execve, which is how the keeper learns of it. A job with steps before it is ready first, and waits for another word.
    """
    try:
        identity.prepare()
        _rehearse()
        message, files, _, _ = socket.recv_fds(keeper, _MOST_BYTES, _MOST_FILES)
        if files:  # else there is no keeper any more
            _run(keeper, _taken(message, files, cache_dir))
    except RefusedError as error:
        _tell(keeper, outcome="refused", reason=str(error))
    except NotNowError as error:
        _tell(keeper, outcome="temporary", reason=str(error))
    except DropError as error:
        _tell(keeper, outcome="refused", reason=f"its identity could not be taken on: {error}")
    except Exception as error:  # noqa: BLE001 - the end of a process: whatever it was, somebody must hear of it
        passing = isinstance(error, OSError) and error.errno in _PASSING
        reason = f"it could not be started: {type(error).__name__}: {error}"
        _tell(keeper, outcome="temporary" if passing else "refused", reason=reason)
    finally:
        os._exit(1)


class _Work(NamedTuple):
    """What the keeper has told: whom to become for which order, and the step's number and log, None for the job's."""

    order: Order
    account: nss.Account
    who: Identity
    step: int | None
    log: int | None
    cache_dir: str


def _run(keeper: socket.socket, work: _Work) -> None:
    try:
        warnings = identity.drop(work.who)
    finally:
        # Also after a failure: ending with it unread would cost the keeper the message that says what failed.
        go = keeper.recv(1)
    if go == GO:
        _tell(keeper, warnings=warnings)
        if work.step is None:
            _execute(keeper, work)
        else:
            _execute_step(keeper, work, work.step)


def ordered(account: nss.Account, who: Identity, step: int | None = None) -> bytes:
    """Return the message that makes a waiting child become `who`, for the job or one of its steps."""
    return json.dumps({"account": account, "who": who, "step": step}).encode()


def _taken(message: bytes, files: list[int], cache_dir: str) -> _Work:
    told = json.loads(message)
    file, *log = files
    order = Order.from_bytes(os.pread(file, os.fstat(file).st_size, 0))
    os.close(file)
    for descriptor in log:
        os.set_inheritable(descriptor, False)
    uid, groups, *others = told["who"]
    who = Identity(uid, tuple(groups), *others)
    return _Work(order, nss.Account(*told["account"]), who, told["step"], log[0] if log else None, cache_dir)


def _rehearse() -> None:
    """Go through what every job needs, on what is root's alone: memory that is touched now costs no time later."""
    capabilities.process_status()
    with Tree(("/",), jailed=True) as tree:
        os.close(tree.open_directory("/"))
        tree.host_path("/")


def _tree(order: Order) -> Tree:
    site = order.site
    with _about("the site's tree"):
        return Tree((site.jail_root,) if order.jailed and site.jail_root else site.roots, jailed=order.jailed)


def _execute(keeper: socket.socket, work: _Work) -> None:
    order, account, who, *_ = work
    site = order.site
    tree = _tree(order)
    # Whoever reads a reason on the host must not look for the path there.
    inside = f" inside the jail {site.jail_root}" if order.jailed else ""
    # First, so that every later reason can be written where the request's owner looks for it.
    with _about(f"the log {order.log_file}{inside}"):
        log, readable = tree.open_log(order.log_file, who.groups[0])
    opened = {"readable": readable, "start": os.fstat(log).st_size}
    socket.send_fds(keeper, [json.dumps(opened).encode()], [log])
    with _about(f"the mission directory {order.mission_dir}{inside}"):
        mission = tree.open_directory(order.mission_dir)
        os.fchdir(mission)
    with _about(f"the home directory {order.home}{inside}"):
        os.close(tree.open_directory(order.home))
    argv: Sequence[str] = [*_program(order), *_translated(order, tree), *order.appended_args]
    environment, warnings = _environment(order, account, work.cache_dir)
    _tell(keeper, warnings=warnings)
    _tell(keeper, outcome="ready", command=_cut(shlex.join(argv)), argv=_some(argv), env=sorted(environment))
    if order.before and keeper.recv(1) != GO:
        return
    what = f"the {'interpreter' if len(order.program) > 1 else 'command'} {argv[0]}"
    if order.launcher is not None:
        argv, environment = launched(order.launcher, order.tasks, argv, environment, order.added_env)
        what = f"the launcher {argv[0]}"
    if order.sandbox is not None:
        argv, environment = _enclosed(order.sandbox, order, mission, argv, environment)
        what = f"the sandbox {argv[0]}"
    _become(what, argv, environment, log, who)


def _enclosed(
    sandbox: Sandbox, order: Order, mission: int, argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return command and environment that run the job, or a step of its own, in its sandbox."""
    directory = _tree(order).host_path(order.mission_dir)
    mounts = [bwrap.Place(path, os.dup(mission), writable=True) for path in {directory, path_of(mission)}]
    for kind, places, writable in (("input", sandbox.inputs, False), ("output", sandbox.outputs, True)):
        for path, prefix in places:
            with _about(f"the {kind} {path}"):
                mounts.append(bwrap.Place(path, bwrap.opened(path, prefix), writable))
    interpreter, *scripts = order.program
    needed = [interpreter, argv[0], *map(os.path.dirname, scripts)]
    with _about("the sandbox"):
        return bwrap.enclosed(argv, environment, bwrap.View(mounts, needed, sandbox.network, directory))


def _execute_step(keeper: socket.socket, work: _Work, number: int) -> None:
    order, account, who, _, log, cache_dir = work
    step = order.steps[number]
    mission = None
    try:
        mission = _tree(order).open_directory(order.mission_dir)
        os.fchdir(mission)
    except (RefusedError, NotNowError, PathRefusedError, PathBusyError, OSError):
        # What has been begun is finished, whatever the job has done to its directories.
        os.chdir("/")
    what = order.step_title(number)
    is_outer = step.origin == PROFILE
    with _about(what):
        _require(step.argv[0], os.X_OK)
        if is_outer:
            _require_roots_own(step.argv[0])
    environment, _ = _environment(order, account, cache_dir, left_out=order.added_env if is_outer else ())
    _tell(keeper, outcome="ready", command=_cut(shlex.join(step.argv)))
    argv = step.argv
    if order.sandbox is not None and not is_outer:
        if mission is None:
            raise RefusedError("the mission directory is gone")
        argv, environment = _enclosed(order.sandbox, order, mission, argv, environment)
    _become(what, argv, environment, os.open(os.devnull, os.O_WRONLY) if log is None else log, who)


def _become(what: str, argv: Sequence[str], environment: Mapping[str, str], log: int, who: Identity) -> None:
    """Execute a program with its output in the log. Raises RefusedError or NotNowError when that is not possible."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    limits.confine(who.address_space)
    with _about(what):
        os.execve(argv[0], [*argv], environment)  # noqa: S606 - the job itself, as an argument list


def _program(order: Order) -> Sequence[str]:
    """Return interpreter and script once both are seen to be there, so that a missing one is not an exit code.

    Or the profile's command, which nobody but root may have written.
    """
    interpreter, *scripts = order.program
    if not scripts:
        with _about(f"the command {interpreter}"):
            _require(interpreter, os.X_OK)
            _require_roots_own(interpreter)
        return order.program
    (script,) = scripts
    with _about(f"the interpreter {interpreter}"):
        _require(interpreter, os.X_OK)
    with _about(f"the script {script}"):
        _require(script, os.R_OK)
    return order.program


def _require(path: str, access: int) -> None:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise PathRefusedError("it is not a regular file")
    if not os.access(path, access):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _require_roots_own(path: str) -> None:
    try:
        trust.check_chain(path)
    except RunnerError as error:
        raise PathRefusedError(f"others than root could change {error.where}") from None


def _translated(order: Order, tree: Tree) -> Iterator[str]:
    """Return the request's own arguments, those that name a place in the mission or home directory as the host sees it.

    Compared by components, and only arguments: a mission directory equal to the interpreter's changes nothing else.
    """
    for word in order.own_args:
        if lies_beneath(word, order.mission_dir) or lies_beneath(word, order.home):
            with _about(f"the argument {word}"):
                yield tree.host_path(word)
        else:
            yield word


def _environment(
    order: Order, account: nss.Account, cache_dir: str, *, left_out: Sequence[str] = ()
) -> tuple[Mapping[str, str], list[str]]:
    """Return the job's whole environment, made from nothing, and warnings. Variables of `left_out` are not in it."""
    cache = _cache(account, cache_dir)
    warnings = []
    if cache is None:
        warnings.append(f"{cache_dir}/{account.name} is not {account.name}'s own: MPLCONFIGDIR stays unset")
    homes = [home for home in (account.home, cache) if home is not None and _is_private(account, home)]
    return {
        "PATH": _PATH,
        # Never the mission directory: programs read code and commands from their home (Python its user site), and
        # whoever can write there would run them as the site before the listed script.
        "HOME": homes[0] if homes else _NO_HOME,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell or "/bin/sh",
        "LANG": _LANG,
        **({} if cache is None else {"MPLCONFIGDIR": f"{cache}/matplotlib"}),
        **{name: value for name, value in order.env.items() if name not in left_out},
        "RUNNER_SITE": order.site.name,
        "RUNNER_JOB_ID": order.job_id,
    }, warnings


def _cache(account: nss.Account, cache_dir: str) -> str | None:
    """Return the account's own cache directory, made if need be; None if that is not its own."""
    path = f"{cache_dir}/{account.name}"
    with suppress(OSError):
        os.mkdir(path, 0o700)
    return path if _is_private(account, path) else None


def _is_private(account: nss.Account, path: str) -> bool:
    """Tell whether a directory is the account's, and nobody else can write in it."""
    with suppress(OSError):
        facts = os.lstat(path)
        others_write = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return stat.S_ISDIR(facts.st_mode) and facts.st_uid == account.uid and not others_write
    return False


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Turn what can go wrong with a path into a reason that names it."""
    try:
        yield
    except PathRefusedError as error:
        raise RefusedError(f"{_cut(what)}: {error}") from error
    except PathBusyError as error:
        raise NotNowError(f"{_cut(what)}: {error}") from error
    except OSError as error:
        kind = NotNowError if error.errno in _PASSING else RefusedError
        raise kind(f"{_cut(what)}: {error.strerror}") from error


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _some(argv: Sequence[str]) -> list[str]:
    """Return as much of a command as its dispatch record holds."""
    room = _MOST_KEPT
    kept: list[str] = []
    for word in argv:
        room -= len(word) + 1
        if room < 0:
            return [*kept, "…"]
        kept.append(word)
    return kept


def _tell(keeper: socket.socket, **message: Any) -> None:  # noqa: ANN401 - JSON
    keeper.send(json.dumps(message).encode())
