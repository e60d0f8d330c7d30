"""What a host says about a configuration: accounts, groups, directories, programs, processes, limits.

Only looks, and decides nothing. All that a name service or a file server could hold up is asked by way of probes.
"""

import os
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from stat import S_ISLNK
from typing import Final, ParamSpec, TypeVar

from attrs import evolve, frozen

from basestation_runner import execgroups, filesystems, nss, proctitle
from basestation_runner.config import probes
from basestation_runner.config.model import Config, Site
from basestation_runner.config.probes import Question, Unseen
from basestation_runner.errors import RunnerError
from basestation_runner.nss import Account
from basestation_runner.paths import may_be_followed_in
from basestation_runner.trust import check_chain

P = ParamSpec("P")
T = TypeVar("T")

NOT_BY_THIS_USER: Final = Unseen("cannot be checked as this user", is_fault=False)
PROC: Final = Path("/proc")
_MOST_LINKS: Final = 40  # as path_resolution(7)


@frozen(kw_only=True)
class Names:
    """What the name service says about one site: its account, all groups of that, and its own groups as numbers."""

    account: Account
    has: frozenset[int]
    requested: tuple[int | Unseen | None, ...]  # as in `groups`, or all of the account's; None: no such group
    labels: Mapping[int, str]  # names of groups

    @property
    def effective(self) -> int | None:
        """The site's group, if it is known."""
        first = self.requested[0]
        return first if isinstance(first, int) else None

    @property
    def decision(self) -> execgroups.Granted | execgroups.Refused:
        """What the helper decides about those of the groups that are known."""
        return execgroups.decide((gid for gid in self.requested if isinstance(gid, int)), self.has)

    def label(self, gid: int) -> str:
        """Return a group as a person knows it."""
        return f"{self.labels[gid]} (GID {gid})" if gid in self.labels else f"GID {gid}"

    def name(self, gid: int) -> str:
        """Return a group as commands take it."""
        return self.labels.get(gid, str(gid))

    def joining(self, account: str, gid: int) -> str:
        """Return the command that makes an account a member of a group."""
        return shlex.join(["usermod", "-aG", self.name(gid), account])


@frozen
class Link:
    """A symbolic link on the way to something. It is loose where others than root can make links: none is followed."""

    path: str
    target: str
    is_loose: bool


@frozen(kw_only=True)
class Entry:
    """What is at a path. `may`: whether the account that needs it can use it; None where there is no such account."""

    mode: int
    gid: int
    place: tuple[int, int]  # device and inode
    filesystem: str  # its type's name
    is_read_only: bool = False
    links: tuple[Link, ...] = ()
    may: bool | Unseen | None = None


@frozen
class Absent:
    """Nothing is at a path; `where` is the first part of it that is missing, or leads no further."""

    where: str


Seen = Entry | Absent | Unseen


@frozen
class Command:
    """What is at the path of a profile's command, and what keeps the helper's jobs from trusting it."""

    seen: Seen
    trusted: RunnerError | Unseen | None


@frozen(kw_only=True)
class SiteFacts:
    """What there is of one site."""

    names: Names | Unseen | None  # None: there is no such account
    rundir: Seen
    jail: Seen | None  # None: the site has none
    interpreter: Seen
    scripts: Mapping[str, Seen] | Absent | Unseen  # by name; without their directory what is there of that
    commands: Mapping[str, Command] | Unseen  # by path


@frozen(kw_only=True)
class Daemon:
    """The account of one of the daemons, and all groups of that."""

    name: str
    account: Account | Unseen | None
    groups: frozenset[int] = frozenset()


@frozen
class Process:
    """A running watcher, and the groups that it has."""

    pid: int
    groups: frozenset[int]


@frozen(kw_only=True)
class Facts:
    """What there is of a whole configuration."""

    watcher: Daemon
    helper: Daemon
    watchers: tuple[Process, ...] | Unseen  # those that run
    limits: Mapping[str, int]  # inotify's, by their names
    files: Mapping[str, RunnerError | Unseen | None]  # config files: what keeps the helper from using them
    sites: Mapping[str, SiteFacts]


@frozen
class Identity:
    """An account's numbers: whom a file must be usable for."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def gather(  # noqa: PLR0913 - a configuration, and whom it is for
    config: Config,
    files: Sequence[str],
    *,
    watcher_user: str,
    helper_user: str,
    joining: Collection[int] = (),
    patience: float = probes.PATIENCE,
) -> Facts:
    """Return the facts about a valid configuration and the files that it is from. Ends in about two minutes at most.

    `joining` are groups that the watcher's account is about to be added to: it is looked at as if it were.
    """
    sites = config.sites
    watcher, helper, *found = probes.ask(
        [partial(_daemon, name) for name in (watcher_user, helper_user)]
        + [partial(_names, site) for site in sites.values()],
        patience=patience,
    )
    watcher = Daemon(name=watcher_user, account=watcher) if isinstance(watcher, Unseen) else watcher
    helper = Daemon(name=helper_user, account=helper) if isinstance(helper, Unseen) else helper
    watcher = evolve(watcher, groups=watcher.groups.union(joining))
    names = dict(zip(sites, found, strict=True))

    questions: dict[tuple[str, str], Question] = {("watchers", ""): partial(_watchers, watcher.account)}
    questions |= {("file", file): partial(_trusted, file) for file in files}
    for site in sites.values():
        profiles = [config.applications[name] for name in site.applications]
        scripts = sorted({script for profile in profiles for script in profile.scripts})
        commands = sorted({path for profile in profiles for path in profile.programs})
        asked = _questions(site, scripts, commands, daemon_identity(watcher), _job_identity(names[site.name]))
        questions |= {(part, site.name): question for part, question in asked.items()}
    answers = dict(zip(questions, probes.ask(list(questions.values()), patience=patience), strict=True))
    return Facts(
        watcher=watcher,
        helper=helper,
        watchers=answers["watchers", ""],
        limits=_limits(),
        files={file: answers["file", file] for file in files},
        sites={
            name: SiteFacts(
                names=names[name],
                rundir=answers["rundir", name],
                jail=answers.get(("jail", name)),
                interpreter=answers["interpreter", name],
                scripts=answers["scripts", name],
                commands=answers["commands", name],
            )
            for name in sites
        },
    )


def _questions(
    site: Site, scripts: Sequence[str], commands: Sequence[str], watcher: Identity | None, job: Identity | None
) -> dict[str, Question]:
    whole = os.R_OK | os.W_OK | os.X_OK
    questions: dict[str, Question] = {
        "rundir": partial(look, site.watch_dir, watcher, whole),
        "interpreter": partial(look, site.python_version, job, os.X_OK),
        "scripts": partial(_look_at_scripts, site.basestation_dir, scripts, job),
        "commands": partial(_look_at_commands, commands, job),
    }
    if site.jail_root is not None:
        questions["jail"] = partial(look, site.jail_root, job, os.X_OK)
    return questions


# Names


def _asked(look_up: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T | Unseen:
    try:
        return look_up(*arguments, **keywords)
    except nss.LookupFailedError as error:
        return Unseen(f"failed: {error}", is_fault=True)


def _daemon(name: str) -> Daemon:
    account = _asked(nss.account, name)
    groups = _asked(nss.groups_of, account) if isinstance(account, Account) else frozenset[int]()
    if isinstance(groups, Unseen):
        return Daemon(name=name, account=groups)
    return Daemon(name=name, account=account, groups=groups)


def _names(site: Site) -> Names | Unseen | None:
    account = _asked(nss.account, site.runner_user)
    if not isinstance(account, Account):
        return account
    has = _asked(nss.groups_of, account)
    if isinstance(has, Unseen):
        return has
    requested: tuple[int | Unseen | None, ...] = execgroups.of_account(account.gid, has)
    if site.groups is not None:
        requested = tuple(_asked(_number, entry) if isinstance(entry, str) else entry for entry in site.groups)
    known = {gid for gid in requested if isinstance(gid, int)}
    told = (known ^ has) | {gid for gid in requested[:1] if isinstance(gid, int)}  # what may have to be told of
    groups = {gid: _asked(nss.group_by_gid, gid) for gid in told}
    labels = {gid: group.name for gid, group in groups.items() if isinstance(group, nss.Group)}
    return Names(account=account, has=has, requested=requested, labels=labels)


def _number(group: str) -> int | None:
    found = nss.group(group)
    return None if found is None else found.gid


def daemon_identity(daemon: Daemon) -> Identity | None:
    """Return who a daemon is; None without its account."""
    match daemon.account:
        case Account(uid=uid, gid=gid):
            return Identity(uid, gid, tuple(daemon.groups))
    return None


def _job_identity(names: Names | Unseen | None) -> Identity | None:
    if isinstance(names, Names) and names.effective is not None:
        decision = names.decision
        if isinstance(decision, execgroups.Granted):
            return Identity(names.account.uid, decision.effective, decision.gids)
    return None


# Files


def look(path: str, identity: Identity | None = None, use: int = os.F_OK) -> Seen:
    """Given an absolute path, return what is there, and whether an account can use it so (os.access's `use`)."""
    try:
        links = tuple(_links(path))
        flags = os.statvfs(path).f_flag  # mounts what is mounted on demand
        with _opened(path) as descriptor:
            status = os.fstat(descriptor)
            filesystem = filesystems.kind(descriptor)
    except (FileNotFoundError, NotADirectoryError) as error:
        return Absent(error.filename)
    except PermissionError:
        return NOT_BY_THIS_USER
    except OSError as error:
        return Unseen(f"cannot be looked at: {error.strerror}", is_fault=True)
    return Entry(
        mode=status.st_mode,
        gid=status.st_gid,
        place=(status.st_dev, status.st_ino),
        filesystem=filesystem,
        is_read_only=bool(flags & os.ST_RDONLY),
        links=links,
        may=may_use(path, identity, use) if identity else None,
    )


def _look_at_scripts(
    directory: str, scripts: Sequence[str], job: Identity | None
) -> Mapping[str, Seen] | Absent | Unseen:
    there = look(directory)
    if isinstance(there, Entry):
        return {script: look(f"{directory}/{script}", job, os.R_OK) for script in scripts}
    return there


def _look_at_commands(commands: Sequence[str], job: Identity | None) -> Mapping[str, Command]:
    return {path: Command(look(path, job, os.X_OK), _trusted(path)) for path in commands}


def _links(path: str) -> Iterator[Link]:
    """Yield the links that are met on the way to a path. Raises OSError."""
    steps = list(PurePosixPath(path).parts)
    here = PurePosixPath("/")
    left = _MOST_LINKS
    while steps:
        step = steps.pop(0)
        above, here = here, here.parent if step == ".." else here / step
        if S_ISLNK(os.lstat(here).st_mode) and left:
            left -= 1
            target = os.readlink(here)  # noqa: PTH115 - beside its siblings
            yield Link(str(here), target, is_loose=not may_be_followed_in(os.lstat(above)))
            steps = [*PurePosixPath(target).parts, *steps]
            here = above


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """Hold a path, whatever is there, without opening that itself."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def may_use(path: str, identity: Identity, use: int) -> bool | Unseen:
    """Tell whether an account can use a path.

    Asks the kernel, which knows of access lists and of the directories above: access(2) goes by the real ids.
    """
    if os.getuid() == identity.uid:
        return os.access(path, use)
    try:
        with _real_ids(identity):
            return os.access(path, use)
    except OSError:  # for lack of capabilities, or in a user namespace without that account
        return NOT_BY_THIS_USER


@contextmanager
def _real_ids(identity: Identity) -> Iterator[None]:
    """Have an account's real ids and groups for a while. Raises OSError if it cannot be had."""
    uid, gid, groups = os.getuid(), os.getgid(), os.getgroups()
    os.setgroups(identity.groups)
    try:
        os.setresgid(identity.gid, -1, -1)
        os.setresuid(identity.uid, -1, -1)
        yield
    finally:
        os.setresuid(uid, -1, -1)
        os.setresgid(gid, -1, -1)
        os.setgroups(groups)


def _trusted(file: str) -> RunnerError | Unseen | None:
    """Return what keeps the helper from using a file."""
    try:
        check_chain(file)
    except RunnerError as error:
        return error
    except PermissionError:
        return NOT_BY_THIS_USER
    except OSError as error:
        return Unseen(f"cannot be looked at: {error.strerror}", is_fault=True)
    return None


# Processes and limits


def _watchers(account: Account | Unseen | None) -> tuple[Process, ...] | Unseen:
    """Return the watchers that run as an account."""
    if not isinstance(account, Account):
        return ()
    if process_status(PROC / "1") is None:  # mounted with hidepid
        return NOT_BY_THIS_USER
    found = []
    for directory in PROC.glob("[0-9]*"):
        status = process_status(directory)
        if status is None or status["Name"] != proctitle.WATCHER:
            continue
        _, uid, *_ = (int(number) for number in status["Uid"].split())
        _, gid, *_ = (int(number) for number in status["Gid"].split())
        if uid == account.uid:
            groups = {int(number) for number in status["Groups"].split()}
            found.append(Process(int(directory.name), frozenset(groups | {gid})))
    return tuple(sorted(found, key=lambda process: process.pid))


def process_status(process: Path) -> dict[str, str] | None:
    """Return what /proc tells about a process; None if it has ended or is hidden."""
    try:
        lines = (process / "status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _limits() -> Mapping[str, int]:
    limits = {}
    for name in ("max_user_watches", "max_user_instances", "max_queued_events"):
        with suppress(OSError, ValueError):
            limits[name] = int((PROC / "sys/fs/inotify" / name).read_text())
    return limits
