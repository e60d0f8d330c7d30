"""What a legacy unit is doing: its processes, and what lies in its rundir. Only looks."""

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from basestation_runner.errors import printable
from basestation_runner.migrate.asother import Identity, Rundir, look
from basestation_runner.migrate.setting import Setting
from basestation_runner.migrate.unit import Unit

_LONGEST = 120


@frozen
class Process:
    """A process, and its command line as far as it can be shown."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


@frozen
class Activity:
    """Processes beside the unit's main one, and the state of its rundir."""

    jobs: tuple[Process, ...]
    rundir: Rundir
    began_ns: int  # the wall clock's time since when the legacy daemon takes requests

    @property
    def fresh(self) -> tuple[str, ...]:
        """Requests that the legacy daemon has not finished with; older ones it never looks at."""
        return tuple(name for time_ns, name in self.rundir.requests if time_ns >= self.began_ns)

    @property
    def is_idle(self) -> bool:
        """Whether it runs no job and has no request to run."""
        return not self.jobs and not self.fresh

    def __str__(self) -> str:
        jobs = f"{len(self.jobs)} processes run" if len(self.jobs) != 1 else f"{self.jobs[0]} runs"
        waiting = "1 request waits" if len(self.fresh) == 1 else f"{len(self.fresh)} requests wait"
        names = f": {printable(self.fresh[0])}" + (" …" if len(self.fresh) > 1 else "") if self.fresh else ""
        return f"{jobs}, {waiting} in the rundir{names}"


def of(setting: Setting, unit: Unit, identity: Identity, watch_dir: str) -> Activity:
    """Return what a unit is doing. Raises RunnerError."""
    return Activity(tuple(jobs(setting, unit)), look(identity, watch_dir), wall_ns(unit.active_since_us))


def jobs(setting: Setting, unit: Unit) -> Iterator[Process]:
    """Yield the processes of a unit but its main one."""
    if not unit.main_pid and not unit.control_group:
        return
    yield from shown(processes(setting, unit) - {unit.main_pid})


def shown(pids: Collection[int]) -> Iterator[Process]:
    """Yield those processes that are still there."""
    for pid in sorted(pids):
        command = _command(pid)
        if command is not None:
            yield Process(pid, command)


def processes(setting: Setting, unit: Unit) -> frozenset[int]:
    """Return all processes of a unit: those of its cgroup, or without one its main process and what that started."""
    for root in setting.cgroups:
        directory = root / unit.control_group.lstrip("/")
        if unit.control_group.strip("/") and (directory / "cgroup.procs").exists():
            listings = [directory / "cgroup.procs", *directory.rglob("cgroup.procs")]
            return frozenset(pid for listing in listings for pid in pids(listing))
    return frozenset({unit.main_pid, *_descendants(unit.main_pid)} - {0})


def pids(listing: Path) -> list[int]:
    """Return the processes that a file of the kernel's lists."""
    try:
        return [int(word) for word in listing.read_text().split()]
    except OSError:  # a cgroup that is gone meanwhile
        return []


def _descendants(pid: int) -> Iterator[int]:
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in pids(listing):
            yield child
            yield from _descendants(child)


def _command(pid: int) -> str | None:
    """Return a process's command line; None if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    if words == [b""]:  # it has ended and nobody has reaped it, or is the kernel's
        return None
    return printable(" ".join(os.fsdecode(word) for word in words))[:_LONGEST]


def kill(pidfd: int) -> None:
    """End a process at once."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def wall_ns(monotonic_us: int) -> int:
    """Return the wall clock's time of a time of the monotonic clock, as systemd tells it."""
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC) + monotonic_us * 1000
