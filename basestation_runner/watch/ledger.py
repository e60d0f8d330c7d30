"""The durable table of jobs: SQLite, written by this process alone. Knows no loop, no helper and no rundir.

Changes are collected and made durable together by `commit`, in the order in which they were asked for; what may be
done only after that is given to `after`. A commit that fails keeps everything for the next try. All SQL is here.
"""

import fcntl
import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from basestation_runner.errors import RunnerError, printable
from basestation_runner.watch.states import State

SCHEMA_VERSION: Final = 1
_FILE: Final = "ledger.db"
_LOCK: Final = "watch.lock"

_SCHEMA: Final = """
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    site TEXT NOT NULL,
    application TEXT NOT NULL,
    script TEXT NOT NULL,
    home TEXT NOT NULL,
    mission_dir TEXT NOT NULL,
    log_file TEXT NOT NULL,
    args TEXT NOT NULL,
    submitter INTEGER NOT NULL,
    request TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    boot TEXT,
    accepted_at REAL NOT NULL,
    starting_at REAL,
    started_at REAL,
    ended_at REAL,
    pid INTEGER,
    exit_code INTEGER,
    signal INTEGER,
    record TEXT
) STRICT;
CREATE INDEX jobs_unfinished ON jobs (seq) WHERE ended_at IS NULL;
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE intake (
    job_id TEXT PRIMARY KEY,
    site TEXT NOT NULL,
    name BLOB NOT NULL,
    rundir TEXT NOT NULL,
    identity BLOB NOT NULL
) STRICT;
CREATE TABLE sites (
    site TEXT PRIMARY KEY,
    first_active_at REAL NOT NULL
) STRICT;
"""


class LedgerError(Exception):
    """The ledger cannot be written now (disk full, read-only, an I/O error); what was to be written is kept."""


@frozen(kw_only=True)
class Intake:
    """A request that is committed but whose removal from its rundir is not.

    `rundir` is that directory's inode; `identity` is the same for two files only if they are the same request.
    """

    job_id: str
    site: str
    name: str
    rundir: int
    identity: bytes


@frozen(kw_only=True)
class NewJob:
    """An accepted request."""

    job_id: str
    site: str
    application: str
    script: str
    home: str
    mission_dir: str
    log_file: str
    args: tuple[str, ...]
    submitter: int
    request: str


@frozen(kw_only=True)
class Unfinished:
    """A job that the ledger holds as not ended, as far as the dispatcher needs it."""

    seq: int
    job_id: str
    site: str
    application: str
    script: str
    home: str
    mission_dir: str
    state: State
    boot: str | None


@frozen(kw_only=True)
class Dispatch:
    """What the helper is sent of a job besides its site's digest and its queue's length."""

    job_id: str
    site: str
    application: str
    home: str
    mission_dir: str
    log_file: str
    script: str
    args: list[str]


class Ledger:
    """The open ledger. One process at a time has it open."""

    def __init__(self, directory: Path) -> None:
        """Open the ledger in `directory`, and make it there if need be. Raises RunnerError."""
        _check_directory(directory)
        self._lock = _lock(directory)
        try:
            self._database = _open(directory / _FILE)
            (last,) = self._database.execute("SELECT coalesce(max(seq), 0) FROM jobs").fetchone()
        except sqlite3.Error as error:
            os.close(self._lock)
            raise RunnerError(
                f"the ledger cannot be used: {error}",
                where=str(directory / _FILE),
                hint=f"move {_FILE}, {_FILE}-wal and {_FILE}-shm away together to begin a new one",
            ) from error
        self._next_seq: int = last + 1
        self._writes: list[tuple[str, Sequence[object]]] = []
        self._after: list[Callable[[], None]] = []

    def close(self) -> None:
        """Close the ledger; what was not committed is dropped."""
        self._database.close()
        os.close(self._lock)

    # What is collected for the next commit

    @property
    def is_dirty(self) -> bool:
        """Whether anything waits for a commit."""
        return bool(self._writes or self._after)

    def after(self, callback: Callable[[], None]) -> None:
        """Ask for `callback` once everything asked for so far is durable."""
        self._after.append(callback)

    def commit(self) -> list[Callable[[], None]]:
        """Make everything that was asked for durable, and return what may be done now.

        Raises LedgerError when it cannot be: nothing is changed then, and the next commit tries again.
        """
        if self._writes:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                for statement, values in self._writes:
                    self._database.execute(statement, values)
                self._database.execute("COMMIT")
            except sqlite3.Error as error:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise LedgerError(str(error)) from error
        due, self._after, self._writes = self._after, [], []
        return due

    def accept(self, job: NewJob, intake: Intake, *, now: float) -> int:
        """A request is to become a job; returns the job's place in the order of all jobs."""
        seq = self._next_seq
        self._next_seq += 1
        self._write(
            "INSERT INTO jobs (seq, id, site, application, script, home, mission_dir, log_file, args, submitter,"
            " request, state, accepted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            seq,
            job.job_id,
            job.site,
            job.application,
            job.script,
            job.home,
            job.mission_dir,
            job.log_file,
            json.dumps(job.args),
            job.submitter,
            printable(job.request),
            State.QUEUED,
            now,
        )
        self._write(
            "INSERT INTO intake (job_id, site, name, rundir, identity) VALUES (?, ?, ?, ?, ?)",
            intake.job_id,
            intake.site,
            os.fsencode(intake.name),
            str(intake.rundir),  # inode numbers are unsigned, SQLite's integers are not
            intake.identity,
        )
        return seq

    def removed(self, job_id: str) -> None:
        """The job's request is no longer in its rundir."""
        self._write("DELETE FROM intake WHERE job_id = ?", job_id)

    def starting(self, seq: int, *, boot: str, now: float) -> None:
        """The job is about to be dispatched."""
        self._write(
            "UPDATE jobs SET state = ?, reason = NULL, attempts = attempts + 1, boot = ?, starting_at = ?"
            " WHERE seq = ?",
            State.STARTING,
            boot,
            now,
            seq,
        )

    def running(self, seq: int, *, pid: int, started_at: float) -> None:
        """The job's program runs."""
        self._write(
            "UPDATE jobs SET state = ?, reason = NULL, pid = ?, started_at = ? WHERE seq = ?",
            State.RUNNING,
            pid,
            started_at,
            seq,
        )

    def postponed(self, seq: int, reason: str | None) -> None:
        """The job did not start and is to be tried again."""
        self._write("UPDATE jobs SET state = ?, reason = ? WHERE seq = ?", State.QUEUED, reason, seq)

    def ended(self, seq: int, state: State, record: Mapping[str, Any], *, now: float) -> None:
        """The job ended, as its exit record says."""
        self._write(
            "UPDATE jobs SET state = ?, reason = NULL, exit_code = ?, signal = ?, pid = coalesce(?, pid),"
            " started_at = coalesce(?, started_at), ended_at = ?, record = ? WHERE seq = ?",
            state,
            record.get("exit_code"),
            record.get("signal"),
            record.get("pid"),
            record.get("started_at"),
            record.get("ended_at") or now,
            json.dumps(record),
            seq,
        )

    def given_up(self, seq: int, state: State, reason: str, *, now: float) -> None:
        """The job will never run, or how it ended is not known."""
        self._write(
            "UPDATE jobs SET state = ?, reason = ?, ended_at = ? WHERE seq = ?",
            state,
            reason,
            now,
            seq,
        )

    def first_active(self, site: str, *, now: float) -> None:
        """The site was scanned for the first time ever."""
        self._write("INSERT OR IGNORE INTO sites (site, first_active_at) VALUES (?, ?)", site, now)

    def _write(self, statement: str, *values: object) -> None:
        self._writes.append((statement, values))

    # What has been committed

    def was_active(self, site: str) -> bool:
        """Tell whether the site was ever scanned."""
        return self._database.execute("SELECT 1 FROM sites WHERE site = ?", (site,)).fetchone() is not None

    def unfinished(self) -> Iterator[Unfinished]:
        """Return the jobs that have not ended, in their order."""
        rows = self._database.execute(
            "SELECT seq, id, site, application, script, home, mission_dir, state, boot FROM jobs"
            " WHERE ended_at IS NULL ORDER BY seq"
        )
        for seq, job_id, site, application, script, home, mission_dir, state, boot in rows:
            yield Unfinished(
                seq=seq,
                job_id=job_id,
                site=site,
                application=application,
                script=script,
                home=home,
                mission_dir=mission_dir,
                state=State(state),
                boot=boot,
            )

    def intake(self, site: str) -> Iterator[Intake]:
        """Return the site's requests whose removal is not recorded."""
        rows = self._database.execute("SELECT job_id, name, rundir, identity FROM intake WHERE site = ?", (site,))
        for job_id, name, rundir, identity in rows:
            yield Intake(job_id=job_id, site=site, name=os.fsdecode(name), rundir=int(rundir), identity=identity)

    def dispatch(self, seq: int) -> Dispatch:
        """Return what is sent to the helper for a job."""
        (job_id, site, application, home, mission_dir, log_file, script, args) = self._database.execute(
            "SELECT id, site, application, home, mission_dir, log_file, script, args FROM jobs WHERE seq = ?", (seq,)
        ).fetchone()
        return Dispatch(
            job_id=job_id,
            site=site,
            application=application,
            home=home,
            mission_dir=mission_dir,
            log_file=log_file,
            script=script,
            args=json.loads(args),
        )

    def state(self, job_id: str) -> State | None:
        """Return a job's state, or None if there is no such job."""
        row = self._database.execute("SELECT state FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else State(row[0])

    def last_ended(self, most: int) -> list[str]:
        """Return the ids of the jobs that ended last."""
        rows = self._database.execute(
            "SELECT id FROM jobs WHERE ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT ?", (most,)
        )
        return [job_id for (job_id,) in rows]


def _check_directory(directory: Path) -> None:
    """Refuse a directory in which another account could replace the ledger."""
    try:
        status = directory.stat()
    except OSError as error:
        raise RunnerError(
            f"the state directory cannot be used: {error.strerror}",
            where=str(directory),
            hint="make it, owned by the watcher's account, mode 0700",
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise RunnerError("the state directory is not a directory", where=str(directory))
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunnerError(
            "others can write in the state directory",
            where=str(directory),
            hint=f"chown it to uid {os.geteuid()} and chmod it to 0700",
        )


def _lock(directory: Path) -> int:
    """Return the descriptor that holds the right to write this ledger. Raises RunnerError if another process has it."""
    where = str(directory / _LOCK)
    try:
        descriptor = os.open(where, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunnerError(f"the lock cannot be opened: {error.strerror}", where=where) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise RunnerError(
            f"another watcher is running on this state directory (pid {holder or 'unknown'})", where=where
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _open(path: Path) -> sqlite3.Connection:
    """Open the database, with its tables, readable for its owner only. Raises sqlite3.Error or RunnerError."""
    try:
        # SQLite gives its journal files the mode of the database.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise RunnerError(f"the ledger cannot be opened: {error.strerror}", where=str(path)) from error
    database = sqlite3.connect(path, isolation_level=None)
    try:
        _prepare(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        what = f"the ledger is of a newer version of this program (schema {version}, this one knows {SCHEMA_VERSION})"
        raise RunnerError(what, where=str(path))
    if version == 0:
        database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
