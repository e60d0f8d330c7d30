"""What /proc says of a running process: its memory, how often it woke up, how long it computed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen


@frozen
class Memory:
    """In megabytes (10⁶ bytes)."""

    rss: float
    private: float  # what would be free again if it ended


@frozen
class Activity:
    """Since the start of the process, all threads together."""

    wake_ups: int  # voluntary context switches: it waited for something, which came
    cpu_ms: float


def memory(pid: int) -> Memory:
    """Return a process's memory. Raises OSError when it has ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(value.split()[0]) for name, value in (line.split(":", 1) for line in lines)}
    return Memory(kib["Rss"] * 1024 / 1e6, (kib["Private_Clean"] + kib["Private_Dirty"]) * 1024 / 1e6)


def activity(pid: int) -> Activity | None:
    """Return what a process has done, None when it has ended."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        switches = sum(_switches(task) for task in tasks)
        cpu_ns = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    except OSError:
        return None
    return Activity(switches, cpu_ns / 1e6)


def descendants(pid: int) -> Iterator[int]:
    """Yield the pids of a process's children, and of theirs. Those that end meanwhile may be missing."""
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listing.read_text().split()):
                yield child
                yield from descendants(child)


def title(pid: int) -> str:
    """Return what a process is called, without its directory and arguments; nothing when it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return ""
    return words[0].rpartition("/")[2]


def _switches(task: Path) -> int:
    lines = (task / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
