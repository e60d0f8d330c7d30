"""The job completions log: one JSON line for each job that ran and ended, appended to a file."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from basestation_runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

_MODE = 0o640


class Completions:
    """The open file; without a path nothing is written."""

    def __init__(self, path: Path | None, log: FilteringBoundLogger) -> None:
        """Open the file. Raises RunnerError."""
        self._path = path
        self._log = log
        self._fd = None if path is None else _open(path)

    def write(self, site: str, script: str, record: Mapping[str, Any]) -> None:
        """Append the line of one job. That it cannot be written is logged and changes nothing else."""
        if self._fd is None:
            return
        line = json.dumps(_summary(site, script, record), separators=(",", ":"))
        try:
            os.write(self._fd, f"{line}\n".encode())
        except OSError as error:
            self._log.warning("completions log cannot be written", path=str(self._path), reason=error.strerror)

    def reopen(self) -> None:
        """Go on in the file that has the path now: the old one was rotated."""
        if self._path is None:
            return
        try:
            fresh = _open(self._path)
        except RunnerError as error:
            self._log.warning("completions log cannot be opened", path=str(self._path), reason=error.what)
            return
        self.close()
        self._fd = fresh

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _open(path: Path) -> int:
    try:
        # O_NONBLOCK: a FIFO that nobody reads must not hold the watcher.
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)
    except OSError as error:
        raise RunnerError(f"the completions log cannot be opened: {error.strerror}", where=str(path)) from error


def _summary(site: str, script: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written of an exit record; what the record does not tell is null."""
    signal, largest = record.get("signal"), record.get("max_rss_kib")
    # Of all its processes together where there are cgroups, else of the largest that it has waited for.
    peak = record.get("memory_peak_bytes") or (None if largest is None else largest * 1024)
    started_at, ended_at = record.get("started_at"), record.get("ended_at")
    seconds = record.get("seconds")  # not the difference of those two: the clock may have been stepped
    user, system = record.get("user_seconds"), record.get("system_seconds")
    return {
        "site": site,
        "job_id": record.get("job_id"),
        "script": script,
        "returncode": record.get("exit_code") if signal is None else -signal,
        "started_at": started_at,
        "ended_at": ended_at,
        "duration": None if seconds is None else round(seconds, 3),
        "peak_memory_bytes": peak,
        "cpu_user_seconds": user,
        "cpu_system_seconds": system,
        "cgroup_cpu_seconds": record.get("cgroup_cpu_seconds"),
        "leftover_processes": record.get("leftover_processes"),
    }
