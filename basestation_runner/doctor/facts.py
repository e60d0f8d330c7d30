"""What `runner doctor` has seen of a host. Plain values; looks at nothing and decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import Factory, frozen

from basestation_runner.config.probes import Unseen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from basestation_runner.config import hostfacts
    from basestation_runner.config.document import Document
    from basestation_runner.config.findings import Finding
    from basestation_runner.config.hostfacts import Absent
    from basestation_runner.config.model import Config
    from basestation_runner.errors import RunnerError
    from basestation_runner.watch import lockfile

Which = Literal["helper", "watcher"]
"""The two daemons."""


@frozen(kw_only=True)
class Paths:
    """Where things are, as the command line says, and whose the daemons are."""

    sites_config: Path
    applications_config: Path | None  # None: the default file if there is one, else the built-in profiles
    priv_exec_socket: Path
    control_socket: Path
    state_dir: Path
    helper_state_dir: Path
    cache_dir: Path
    cgroup_root: Path | None  # None: `jobs` in the slice of the running helper
    base_log: Path
    helper_base_log: Path
    watcher_user: str
    helper_user: str


@frozen(kw_only=True)
class Configuration:
    """The files: what they say if nothing is wrong with them, and what is wrong."""

    document: Document | None
    config: Config | None
    faults: tuple[Finding, ...] = ()


@frozen(kw_only=True)
class Process:
    """A process of this program, as /proc shows it. The sets are masks of capabilities."""

    pid: int
    name: str
    uid: int
    groups: frozenset[int]
    held: int  # in any set but the bounding one
    effective: int
    bounding: int
    no_new_privs: bool
    has_old_program: bool | None = None  # its file has been replaced since; None: cannot be seen
    cgroup: str | None = None  # of version 2, from the hierarchy's root


@frozen(kw_only=True)
class Socket:
    """A daemon's socket: whose it is, which process listens, and what that says of itself or why it does not."""

    uid: int
    gid: int
    mode: int
    is_socket: bool
    listener: int | None  # pid
    answer: Mapping[str, Any] | None
    why_not: str | Unseen | None = None


@frozen(kw_only=True)
class Unit:
    """A unit as systemd has it; `drop_ins` are its further files with their content, by path."""

    name: str
    load_state: str
    active_state: str
    file_state: str
    needs_reload: bool
    fragment: str
    text: str
    drop_ins: Mapping[str, str]
    shipped: str | None  # None: this program does not know it


@frozen
class Systemd:
    """The systemd that runs this host; `version` is None if it does not say."""

    version: int | None
    units: Mapping[str, Unit] | Unseen


@frozen(kw_only=True)
class Directory:
    """A directory of a daemon. `may`: whether that daemon's account can write in it, or to the file named."""

    uid: int
    gid: int
    mode: int
    is_directory: bool
    is_read_only: bool
    free_bytes: int
    free_files: int | None  # None: the file system has no such limit
    may: bool | Unseen | None
    may_write_file: bool | Unseen | None = None  # None: there is no file yet


@frozen
class Ledger:
    """The ledger: the version of its tables, and the directories beside it that hold what was damaged."""

    version: int
    damaged: tuple[str, ...]


@frozen(kw_only=True)
class Cgroups:
    """The cgroup that is delegated to the helper: its controllers, and whether the helper's account can use it."""

    has_version_2: bool
    root: str | None = None
    controllers: frozenset[str] | None = None  # None: they cannot be read
    closed: tuple[str, ...] = ()  # files that the helper's account cannot write
    unseen: Unseen | None = None  # why `closed` is not known


@frozen(kw_only=True)
class System:
    """The host itself. Times are seconds of the wall clock; `latest` is the newest of the installation's files."""

    kernel: str
    has_openat2: bool
    libc: str | None
    now: float
    latest: float
    is_synchronised: bool | None  # None: the kernel does not say


@frozen
class Lock:
    """A rundir's lock, and what is known of the process that it names, which anybody of the site may have chosen."""

    seen: lockfile.Seen
    uid: int | None = None
    command: str = ""
    unit: str = ""


@frozen(kw_only=True)
class Facts:
    """All that has been seen. What belongs to sites is there for those of a valid configuration."""

    paths: Paths
    is_root: bool
    program: str  # this program's version
    trusted: RunnerError | Unseen | None  # what keeps a helper from running this program's files
    system: System
    systemd: Systemd | None  # None: another process is PID 1
    configuration: Configuration
    host: hostfacts.Facts
    processes: tuple[Process, ...] | Unseen
    sockets: Mapping[Which, Socket | Absent | Unseen]
    directories: Mapping[str, Directory | Absent | Unseen]  # by path
    ledger: Ledger | Absent | Unseen
    cgroups: Cgroups
    locks: Mapping[str, Lock | Unseen | None] = Factory(dict)
    states: Mapping[str, Mapping[str, Any]] | None = None  # the watcher's words on each site
    probes: Mapping[str, Mapping[str, Any]] | None = None  # None: they were not asked for

    @property
    def config(self) -> Config | None:
        """The configuration, if it is valid."""
        return self.configuration.config

    def running(self, which: Which) -> tuple[Process, ...]:
        """Return the running daemons of a kind: the one that listens, else all of its name and account."""
        if isinstance(self.processes, Unseen):
            return ()
        listener = self.listener(which)
        found = [process for process in self.processes if process.name == NAMES[which]]
        return tuple(process for process in found if process.pid == listener) or tuple(found)

    def listener(self, which: Which) -> int | None:
        """Return the pid of the process that listens at a daemon's socket, as far as it is known."""
        socket = self.sockets[which]
        return socket.listener if isinstance(socket, Socket) else None

    def why_none(self, which: Which) -> str:
        """Say why none of the daemons of a kind is known to run."""
        if isinstance(self.processes, Unseen):
            return f"which processes run {self.processes.why}"
        return f"no {which} runs"

    def is_inactive(self, which: Which) -> bool:
        """Tell whether systemd has a daemon's unit and does not run it, which is told of the unit."""
        if self.systemd is None or isinstance(self.systemd.units, Unseen):
            return False
        unit = self.systemd.units.get(UNITS[which])
        return unit is not None and unit.active_state != "active"


NAMES: Mapping[Which, str] = {"helper": "runner-privexec", "watcher": "runner-watch"}
"""What the daemons' processes are called."""
UNITS: Mapping[Which, str] = {"helper": "baserunner-exec.service", "watcher": "baserunner-watch.service"}
SLICE = "baserunner.slice"
