"""A throw-away installation in a sandbox: config, directories, sites with their trees, and both daemons.

Everything lies below one directory and goes with it, processes included.
"""

import contextlib
import grp
import io
import os
import pwd
import select
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, Self

from attrs import field, frozen
from ruamel.yaml import YAML

from basestation_runner.errors import RunnerError
from basestation_runner.nss import Account
from basestation_runner.sandbox import namespace
from basestation_runner.sandbox.accounts import Accounts
from basestation_runner.sandbox.process import Daemon, Identity
from basestation_runner.sandbox.program import Program

WATCHER: Final = "baserunner"
HELPER: Final = "baserunner-exec"
HELPER_CAPABILITIES: Final = ("setuid", "setgid")

_STAND_INS: Final = ("Base.py", "BaseLogin.py", "GliderEarlyGPS.py")
_CLIENT: Final = """\
import os, sys, time
os.umask(0o002)
request = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
os.write(request, sys.stdin.buffer.read())
closing = time.time_ns()
os.close(request)
print(closing)
"""


@frozen
class Site:
    """A site of an installation; all paths are the host's."""

    name: str
    account: Account | None  # whose jobs these are; None: the caller's own
    group: str | None  # the site's group; None: the caller's own
    watch_dir: Path
    homes: Path  # holds its gliders' homes
    jail: Path | None  # what its requests see as /
    entry: Mapping[str, Any] = field(repr=False)  # in sites.yaml

    def seen(self, path: Path) -> str:
        """Return a path of this site as its requests write it."""
        return str(path) if self.jail is None else f"/{path.relative_to(self.jail)}"


@frozen
class Drop:
    """A request file that was written; `closed_ns` is the wall clock's time just before it was closed."""

    path: Path
    closed_ns: int


class Installation:
    """One config, its directories and its daemons. With `accounts` (as root) each process has its own identity.

    Use it as a context manager; of those that share a sandbox only one may be open at a time.
    """

    def __init__(self, top: Path, program: Program, accounts: Accounts | None) -> None:
        self.top: Final = top
        self.program: Final = program
        self.sites: Final[dict[str, Site]] = {}
        self.daemons: Final[list[Daemon]] = []
        self.sites_config: Final = top / "config/sites.yaml"
        self.applications_config: Final = top / "config/applications.yaml"
        self.scripts: Final = top / "basestation3"
        self.helper_socket: Final = top / "run/helper/priv_exec.sock"
        self.control_socket: Final = top / "run/watcher/control.sock"
        self.helper_state: Final = top / "state/helper"
        self.watcher_state: Final = top / "state/watcher"
        self.helper_cache: Final = top / "cache"
        self.cgroup_root: Final = top / "cgroup"
        self.completions_log: Final = top / "state/watcher/completions.jsonl"
        self.logs: Final = top / "log"
        self._accounts: Final = accounts
        self._restore_accounts: Final = accounts.snapshot() if accounts else lambda: None
        self._drops = 0

    def __enter__(self) -> Self:
        """Make what a package and its units would have made."""
        for path in (self.top, self.sites_config.parent, self.scripts, self.top / "run", self.top / "state", self.logs):
            self.make_directory(path)
        helper, watcher = self.account(HELPER), self.account(WATCHER)
        self.make_directory(self.helper_socket.parent, helper, WATCHER)
        self.make_directory(self.control_socket.parent, watcher)
        self.make_directory(self.helper_state, helper, mode=0o700)
        self.make_directory(self.watcher_state, watcher, mode=0o700)
        self.make_directory(self.helper_cache, helper, mode=0o1777)
        self.make_directory(self.cgroup_root, helper)
        stand_in = Path(__file__).with_name("standin.py").read_text()
        for script in _STAND_INS:
            self.write(self.scripts / script, stand_in)
        self.write(self.applications_config, "{}\n")
        return self

    def __exit__(self, *_: object) -> None:
        """End every process, whatever state it is in, and remove everything."""
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(shutil.rmtree, self.top)
            cleanup.callback(self._restore_accounts)
            descendants = list(_open_pidfds(_descendants(daemon.pid for daemon in self.daemons)))
            cleanup.callback(lambda: _end([*descendants, *_open_pidfds(self._strays())]))
            for daemon in self.daemons:
                cleanup.callback(daemon.close)

    @property
    def accounts(self) -> Accounts:
        """The sandbox's accounts; it is a mistake to ask for them without root."""
        if self._accounts is None:
            raise RunnerError("there are no accounts but the caller's")
        return self._accounts

    # Sites

    def add_site(
        self,
        name: str,
        tree: str,
        *,
        layout: Literal["jailed", "wide", "plain"] = "plain",
        account: Account | None = None,
        group: str | None = None,
        **fields: object,
    ) -> Site:
        """Make a site in the folder `tree` (relative to the installation), and write the config with it.

        Jailed: the tree is a jail with home/rundir in it. Wide: the tree is the jail_root of a site that is not jailed.
        Plain: the site has its rundir alone. Its account is a new one, runner-`name`, its group that account's own,
        unless given; `fields` go to its entry. The watcher joins the group, which it has from its next start on.
        """
        base = self.top / tree
        homes = base / "home" if layout == "jailed" else base
        watch_dir = homes / "rundir"
        for path in reversed(watch_dir.parents):
            if path.is_relative_to(self.top):
                self.make_directory(path)
        if self._accounts is not None:
            account = account or self._accounts.add_user(f"runner-{name}")
            group = group or account.name
            self._accounts.join(WATCHER, group)
        self.make_directory(watch_dir, account, group, mode=0o2775)
        entry = {
            "watch_dir": str(watch_dir),
            "runner_user": account.name if account else _user_name(os.getuid()),
            **({} if layout == "plain" else {"jail_root": str(base), "jailed": layout == "jailed"}),
            "python_version": self.program.python,
            "basestation_dir": str(self.scripts),
            **fields,
        }
        site = Site(
            name,
            account,
            group,
            watch_dir,
            homes=watch_dir if layout == "plain" else homes,
            jail=base if layout == "jailed" else None,
            entry=entry,
        )
        self.sites[name] = site
        self.write_config()
        return site

    def add_glider(self, site: Site, name: str, *missions: str) -> Path:
        """Make a glider's account, a member of the site's group, with its home and missions. Return the home."""
        account = None
        if self._accounts is not None and site.group is not None:
            account = self._accounts.add_user(name, groups=[site.group], home=str(site.homes / name))
        home = site.homes / name
        for path in (home, *(home / mission for mission in missions)):
            self.make_directory(path, account, site.group, mode=0o2770)
        return home

    def account(self, name: str) -> Account | None:
        """Return the sandbox's account of this name; None where everything runs as the caller."""
        return self._accounts.user(name) if self._accounts else None

    def drop(self, site: Site, text: str, *, by: Account | None, name: str | None = None) -> Drop:
        """Write a request into the site's rundir as a client does: in place, as that client's account."""
        self._drops += 1
        path = site.watch_dir / (name or f"{self._drops:06}.run")
        done = self.run_as(by, [self.program.python, "-IS", "-c", _CLIENT, str(path)], text)
        return Drop(path, int(done))

    def write_config(self, changes: Mapping[str, Mapping[str, object]] | None = None) -> None:
        """Write sites.yaml with all sites, each with its `changes` to what it was added with."""
        entries = {name: {**site.entry, **(changes or {}).get(name, {})} for name, site in self.sites.items()}
        text = io.StringIO()
        YAML().dump(entries, text)
        self.write(self.sites_config, text.getvalue())

    # Files

    def make_directory(
        self, path: Path, owner: Account | None = None, group: str | None = None, *, mode: int = 0o755
    ) -> Path:
        """Make a directory with exactly this owner, his or another group, and mode.

        Without an owner it belongs to root (or the caller), and one that exists already stays as it is.
        """
        try:
            path.mkdir()
        except FileExistsError:
            if owner is None:
                return path
        if self._accounts is not None and owner is not None:
            os.chown(path, owner.uid, self._accounts.gid(group) if group else owner.gid)
        path.chmod(mode)
        return path

    def write(self, path: Path, text: str) -> None:
        """Write a file that its owner (root, or the caller) alone can change, replacing an older one in one step."""
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.rename(path)

    def save(self, directory: Path) -> None:
        """Copy everything to `directory`, readable by all, with a list of whose it was."""
        with (self.top / "owners.txt").open("w") as listing:
            for path in sorted(self.top.rglob("*")):
                facts = path.lstat()
                whose = f"{_user_name(facts.st_uid)}:{_group_name(facts.st_gid)}"
                listing.write(f"{stat.filemode(facts.st_mode)} {whose} {path.relative_to(self.top)}\n")
        shutil.copytree(self.top, directory, symlinks=True, ignore=_special_files, dirs_exist_ok=True)
        for folder, _subfolders, files in os.walk(directory):
            Path(folder).chmod(0o755)
            for file in files:
                if not (path := Path(folder, file)).is_symlink():
                    path.chmod(0o644)

    # Processes

    def start_helper(
        self,
        *arguments: str,
        account: str = HELPER,
        capabilities: Sequence[str] = HELPER_CAPABILITIES,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> Daemon:
        """Start `runner privexec` with its account and capabilities, and wait until it is ready.

        `arguments` come last and so win; `command` replaces the program, for instance by a launcher with a prelude.
        """
        options = {
            "--sites-config": self.sites_config,
            "--applications-config": self.applications_config,
            "--priv-exec-socket": self.helper_socket,
            "--state-dir": self.helper_state,
            "--cache-dir": self.helper_cache,
            "--cgroup-root": self.cgroup_root,
            "--log-format": "json",
            **({"--watcher-user": WATCHER} if self._accounts else {}),
        }
        words = [*(command or self.program.command), "privexec", *_words(options), *arguments]
        identity = Identity(self.account(account), tuple(capabilities))
        return self._start("helper", words, identity, environment, wait=wait)

    def start_watcher(
        self,
        *arguments: str,
        account: str = WATCHER,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> Daemon:
        """Start `runner watch` as its account without any capability, and wait until it is ready."""
        options = {
            "--sites-config": self.sites_config,
            "--applications-config": self.applications_config,
            "--priv-exec-socket": self.helper_socket,
            "--control-socket": self.control_socket,
            "--state-dir": self.watcher_state,
            "--job-completions-log": self.completions_log,
            "--log-format": "json",
        }
        words = [*(command or self.program.command), "watch", *_words(options), *arguments]
        return self._start("watcher", words, Identity(self.account(account)), environment, wait=wait)

    def start(
        self,
        name: str,
        command: Sequence[str],
        identity: Identity,
        environment: Mapping[str, str] | None = None,
    ) -> Daemon:
        """Start any command as a daemon that ends with this installation."""
        number = sum(daemon.name.startswith(f"{name}-") for daemon in self.daemons) + 1
        daemon = Daemon(f"{name}-{number}", command, identity, self.logs, environment or {})
        self.daemons.append(daemon)
        return daemon

    def run_as(self, account: Account | None, command: Sequence[str], text: str = "") -> str:
        """Run a command as an account with all its groups and no capability; return what it writes to stdout.

        Raises CalledProcessError when it fails.
        """
        words = [*Identity(account).prefix(), *command]
        return subprocess.run(words, input=text, check=True, stdout=subprocess.PIPE, text=True, cwd="/").stdout

    def _start(
        self,
        name: str,
        command: Sequence[str],
        identity: Identity,
        environment: Mapping[str, str] | None,
        *,
        wait: bool,
    ) -> Daemon:
        daemon = self.start(name, command, identity, environment)
        if wait:
            daemon.wait_ready()
        return daemon

    def _strays(self) -> Iterator[int]:
        """Yield the processes of the sandbox's accounts, for instance jobs whose helper and keeper were killed."""
        if self._accounts is None:
            return
        here = namespace.of(os.getpid())
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                uid = entry.stat().st_uid
            except OSError:
                continue
            if self._accounts.owns(uid) and namespace.of(int(entry.name)) == here:
                yield int(entry.name)


def _words(options: Mapping[str, object]) -> list[str]:
    return [str(word) for pair in options.items() for word in pair]


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _special_files(folder: str, names: list[str]) -> set[str]:
    kinds = {name: stat.S_IFMT(os.lstat(Path(folder, name)).st_mode) for name in names}
    return {name for name, kind in kinds.items() if kind not in {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}}


def _descendants(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        with suppress(OSError):  # it has ended meanwhile
            listings = list(Path(f"/proc/{pid}/task").glob("*/children"))
            children = [int(word) for listing in listings for word in listing.read_text().split()]
            yield from children
            yield from _descendants(children)


def _open_pidfds(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        try:
            yield os.pidfd_open(pid)
        except ProcessLookupError:
            continue


def _end(pidfds: Sequence[int]) -> None:
    """Kill processes and wait until they are dead, whoever has to reap them."""
    for pidfd in pidfds:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], 5)
        os.close(pidfd)
