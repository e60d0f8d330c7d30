"""One job's own cgroup, as its keeper uses it: made with the job's limits, read when the job has ended, removed.

Plain files; a keeper holds no more in memory than it needs. Failing to throttle never stops a job.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

LIMITS: Final = "limits are not applied"
"""How each warning of this begins."""

_MIB: Final = 1 << 20
CPU_PERIOD_US: Final = 100_000
"""The period of cpu.max, in which its quota is given."""

_FILES: Final = {"memory": "memory.max", "cpu": "cpu.max", "tasks": "pids.max"}


class Leaf(NamedTuple):
    """The cgroup at `path`; None where no cgroups are delegated: nothing is limited and nothing known then."""

    path: str | None

    def make(self, *, memory_high_mb: int | None, memory_max_mb: int | None) -> tuple[str | None, list[str]]:
        """Make it with its limits, in MiB. Return the file to write to for joining it, or None, and what went wrong."""
        if self.path is None:
            return None, []
        try:
            os.mkdir(self.path)
        except FileExistsError:
            pass  # of a try that failed before the program started
        except OSError as error:
            return None, [f"a job's cgroup cannot be made: {error.strerror}"]
        faults = []
        for file, limit in (("memory.high", memory_high_mb), ("memory.max", memory_max_mb)):
            if limit is not None:
                try:
                    self._write(file, str(limit * _MIB))
                except OSError as error:
                    faults.append(f"{file} cannot be set: {error.strerror}")
        return f"{self.path}/cgroup.procs", faults

    def limit(self, limits: Mapping[str, int]) -> list[str]:
        """Set a job's own limits: `memory` in bytes, `cpu` in per cent of a processor, `tasks`.

        Return the names of those that could not be set.
        """
        left = []
        for name, limit in limits.items():
            try:
                self._write(_FILES[name], cpu_max(limit) if name == "cpu" else str(limit))
            except OSError:
                left.append(name)
        return left

    def kill(self) -> None:
        """Kill whatever is in it, of whatever account: it is the helper's. Does nothing where there is none."""
        with suppress(OSError):
            self._write("cgroup.kill", "1")

    def ran_out_of_memory(self) -> bool:
        """Tell whether the kernel has killed a process in it for want of memory."""
        with suppress(OSError, ValueError, KeyError):
            return int(dict(line.split() for line in self._read("memory.events").splitlines())["oom_kill"]) > 0
        return False

    def memory_peak(self) -> int | None:
        """Return the most memory in bytes that the job's processes had together, None where that is not known."""
        with suppress(OSError, ValueError):
            return int(self._read("memory.peak"))
        return None

    def cpu_seconds(self) -> float | None:
        """Return the processor time that the job's processes took together, None where that is not known."""
        with suppress(OSError, ValueError, KeyError):
            facts = dict(line.split() for line in self._read("cpu.stat").splitlines())
            return int(facts["usage_usec"]) / 1e6
        return None

    def processes(self) -> int | None:
        """Return how many processes are in it, None where that is not known."""
        with suppress(OSError):
            return len(self._read("cgroup.procs").split())
        return None

    def remove(self) -> None:
        """Remove it if nothing is left in it."""
        if self.path is not None:
            with suppress(OSError):
                os.rmdir(self.path)

    def _read(self, file: str) -> str:
        if self.path is None:
            raise FileNotFoundError
        with open(f"{self.path}/{file}", encoding="ascii") as lines:
            return lines.read()

    def _write(self, file: str, text: str) -> None:
        if self.path is None:
            raise FileNotFoundError
        with open(f"{self.path}/{file}", "w", encoding="ascii") as target:
            target.write(text)


def cpu_max(percent: int) -> str:
    """Return what cpu.max is set to for so many per cent of one processor."""
    return f"{percent * CPU_PERIOD_US // 100} {CPU_PERIOD_US}"


def limits_warning(faults: list[str]) -> str:
    """Return one warning of all faults; it names no job, so that the same fault is told once for a site."""
    return f"{LIMITS}: {'; '.join(dict.fromkeys(faults))}"
