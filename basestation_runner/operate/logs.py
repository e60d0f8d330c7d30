"""`runner logs`: show a job's log, opened as whoever asks. Who may not read it sees nothing; no link leads astray."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final

from basestation_runner.errors import EXIT_OK, RunnerError, printable
from basestation_runner.operate.client import Client
from basestation_runner.paths import PathBusyError, PathRefusedError, Tree

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.operate.client import Facts

EVERY: Final = 0.5
"""Seconds between two looks of `--follow`."""
MOST_BYTES: Final = 1 << 20
"""Bytes at the end of a log among which the last lines are looked for."""


def run(control_socket: Path, job_id: str, *, lines: int, follow: bool) -> int:
    """Show the last lines of a job's log, with `follow` also what comes until it ends. Raises RunnerError."""
    with Client(control_socket) as client:
        job = client.ask("job", job=job_id)["job"]
        site = client.ask("site", site=job["site"])
        log = _open(site, job)
        try:
            at = _show_last(log, lines)
            while follow:
                has_ended = client.ask("job", job=job["id"])["job"]["ended_at"] is not None
                at = _show_new(log, at)
                if has_ended:
                    break
                time.sleep(EVERY)
        finally:
            os.close(log)
    return EXIT_OK


def _open(site: Facts, job: Facts) -> int:
    try:
        with Tree(site["roots"], jailed=site["jailed"]) as tree:
            return tree.open_to_read(job["log_file"])
    except (PathRefusedError, PathBusyError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunnerError(f"the log cannot be read: {reason}", where=job["log_file"]) from error


def _show_last(log: int, lines: int) -> int:
    """Show the last lines; return where they end."""
    size = os.fstat(log).st_size
    start = max(0, size - MOST_BYTES)
    data = os.pread(log, size - start, start)
    shown = data.splitlines(keepends=True)[-lines:] if lines else []
    _write(b"".join(shown))
    return start + len(data)


def _show_new(log: int, at: int) -> int:
    """Show what has come since; return where it ends. A log that was cut off is shown from its beginning."""
    if os.fstat(log).st_size < at:
        at = 0
    while data := os.pread(log, MOST_BYTES, at):
        _write(data)
        at += len(data)
    return at


def _write(data: bytes) -> None:
    """Write a part of a log; on a terminal, what that could act upon becomes escapes."""
    if sys.stdout.isatty():
        text = data.decode(errors="replace")
        sys.stdout.write("".join(c if c in "\n\t" else printable(c) for c in text.replace("\r\n", "\n")))
    else:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()
