"""What /proc says of a running process: its memory, how often it woke up, how long it computed."""

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


def activity(pid: int) -> Activity:
    """Return what a process has done. Raises OSError when it has ended."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    switches = sum(_switches(task) for task in tasks)
    cpu_ns = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return Activity(switches, cpu_ns / 1e6)


def children(pid: int) -> Iterator[int]:
    """Yield the pids of a process's children."""
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        yield from map(int, listing.read_text().split())


def _switches(task: Path) -> int:
    lines = (task / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
