"""The floor: the least that any runner must spend on a job that it must not lose, on this machine and disk, now.

One durable SQLite commit, as the ledger makes it, and one bare fork and exec of the job. Its samples are taken between
the other measurements, so that both see the same machine.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attrs import define, field

from bench.stats import median

_ROW: Final = "a row about as long as a job's " * 16


@define
class Floor:
    """Samples in milliseconds, taken in `directory`, which must be on the disk of the daemons' state."""

    directory: Path
    job: Path
    commits: list[float] = field(factory=list, init=False)
    spawns: list[float] = field(factory=list, init=False)
    files: list[float] = field(factory=list, init=False)
    _database: sqlite3.Connection = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the database."""
        self.directory.mkdir()
        self._database = sqlite3.connect(self.directory / "floor.db", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE jobs (seq INTEGER PRIMARY KEY, text TEXT)")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def sample(self, count: int) -> None:
        """Take `count` samples of each part."""
        for _ in range(count):
            self.commits.append(_ms(self._commit))
            self.spawns.append(_ms(self._spawn))
            self.files.append(_ms(self._write_file))

    @property
    def ms(self) -> float:
        """The floor: the medians of a commit and of a fork and exec."""
        return median(self.commits) + median(self.spawns)

    def _commit(self) -> None:
        self._database.execute("INSERT INTO jobs (text) VALUES (?)", (_ROW,))

    def _spawn(self) -> None:
        pid = os.posix_spawn(self.job, [os.fspath(self.job)], {})
        os.waitpid(pid, 0)

    def _write_file(self) -> None:
        """Write a small file that survives a power failure, as a claim is written."""
        fresh = self.directory / "new"
        with fresh.open("wb", buffering=0) as file:
            file.write(b"a claim\n" * 20)
            os.fsync(file.fileno())
        fresh.rename(self.directory / "claim")


def _ms(act: Callable[[], None]) -> float:
    start = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - start) / 1e6
