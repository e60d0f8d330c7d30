"""The durable table of jobs: SQLite, written by this process alone. Knows no loop, no helper and no rundir.

Changes are collected and made durable together by `commit`, in the order in which they were asked for; what may be
done only after that is given to `after`. A commit that fails keeps everything for the next try. All SQL of a healthy
ledger is here; its tables are in schema.py, how a damaged one is told in damage.py, what becomes of it in salvage.py.
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

from attrs import Factory, frozen

from basestation_runner import runfile
from basestation_runner.config.additions import AdditionsError, of_data
from basestation_runner.errors import RunnerError, TemporaryError, printable
from basestation_runner.watch import damage, salvage, schema
from basestation_runner.watch.states import State

KEPT_DAYS: Final = 90
"""Jobs that ended longer ago are forgotten."""
KEPT_JOBS: Final = 1_000_000
"""Jobs that are older than this many others are forgotten once they have ended, whenever that was."""
KEPT_ANYWAY: Final = 10_000
"""Jobs that no age makes forgotten: a step of the clock must not cost the whole history."""

_LOCK: Final = "watch.lock"
_DAY: Final = 24 * 3600


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
    rerun_of: str | None = None
    additions: Mapping[str, Any] = Factory(dict)


@frozen(kw_only=True)
class Hold:
    """Nothing of a site is started, or nothing at all if `site` is empty.

    `held_by` is the uid of whoever asked; with `closed`, no request is taken from the rundirs either.
    """

    site: str
    held_by: int
    held_at: float
    closed: bool = False


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
    cancelled_by: int | None = None
    additions: Mapping[str, Any] = Factory(dict)


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
    additions: Mapping[str, Any]

    @property
    def as_request(self) -> bytes:
        """The request that asks for this. Raises RequestError."""
        try:
            additions = of_data(self.additions)
        except AdditionsError as error:
            raise runfile.RequestError(str(error)) from None
        return runfile.written(
            runfile.Request(self.home, self.mission_dir, self.log_file, self.script, tuple(self.args), additions)
        )


class Ledger:
    """The open ledger. One process at a time has it open."""

    def __init__(self, directory: Path) -> None:
        """Open the ledger in `directory`, and make it there if need be. Raises RunnerError.

        A damaged one is moved aside, and what can be read of it is in the new one: `recovery` says what was done.
        """
        _check_directory(directory)
        self.recovery: salvage.Recovery | None = None
        self.must_ask: bool
        """Whether the helper may know jobs that the ledger does not hold."""
        self.on_failure: Callable[[str], None] = lambda _: None
        """Called when the ledger turns out to be damaged or unreadable; nothing can go on then but a new start."""
        self.path: Final = directory / salvage.FILE
        self._directory = directory
        self._lock, was_used = _lock(directory)
        try:
            self._database, self._next_seq, self.must_ask = self._opened(was_used=was_used)
        except (sqlite3.Error, OSError) as error:
            os.close(self._lock)
            raise TemporaryError(
                f"the ledger cannot be used: {error}",
                where=str(directory / salvage.FILE),
                hint="see that the disk has room and can be written",
            ) from error
        except BaseException:
            os.close(self._lock)
            raise
        self._writes: list[tuple[str, Sequence[object]]] = []
        self._urgent: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []

    def close(self) -> None:
        """Close the ledger; what was not committed is dropped."""
        self._database.close()
        os.close(self._lock)

    def _opened(self, *, was_used: bool) -> tuple[sqlite3.Connection, int, bool]:
        """Open the database, after its recovery if it is damaged, and read what its first use needs."""
        path = self._directory / salvage.FILE
        reason = salvage.reason_not_to_open(self._directory, was_used=was_used)
        if reason is None:
            try:
                if was_used:
                    damage.check(path)
                return _open(path)
            except damage.DamagedError as error:
                reason = str(error)
        self.recovery = salvage.recover(self._directory, reason)
        return _open(path)

    # What is collected for the next commit

    @property
    def is_dirty(self) -> bool:
        """Whether anything waits for a commit."""
        return bool(self._writes or self._urgent or self._after)

    def after(self, callback: Callable[[], None], *, urgent: bool = False) -> None:
        """Ask for `callback` once everything asked for so far is durable; for an urgent one before all others."""
        (self._urgent if urgent else self._after).append(callback)

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
                raise self._failed(error) from error
        due = self._urgent + self._after
        self._urgent, self._after, self._writes = [], [], []
        return due

    def _failed(self, error: sqlite3.Error) -> LedgerError:
        """Return the error to raise. A damaged ledger stays one, so that is noted for the next start."""
        if damage.is_damage(error):
            salvage.declare(self._directory, str(error))
            self.on_failure(f"the ledger is damaged: {error}")
        return LedgerError(str(error))

    def accept(self, job: NewJob, intake: Intake | None, *, now: float) -> int:
        """A request, or the repetition of a job, is to become a job; returns its place in the order of all jobs."""
        seq = self._next_seq
        self._next_seq += 1
        self._write(
            "INSERT INTO jobs (seq, id, site, application, script, home, mission_dir, log_file, args, submitter,"
            " request, state, accepted_at, rerun_of, additions) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
            job.rerun_of,
            json.dumps(job.additions),
        )
        if intake is not None:
            self.found(intake)
        return seq

    def found(self, intake: Intake) -> None:
        """A job's request is in its rundir."""
        self._write(
            "INSERT OR REPLACE INTO intake (job_id, site, name, rundir, identity) VALUES (?, ?, ?, ?, ?)",
            intake.job_id,
            intake.site,
            os.fsencode(intake.name),
            str(intake.rundir),  # inode numbers are unsigned, SQLite's integers are not
            intake.identity,
        )

    def restore(self, dispatch: Dispatch, *, boot: str, now: float) -> Unfinished:
        """A job that was lost with a damaged ledger is known to the helper, which has been asked to start it."""
        seq = self._next_seq
        self._next_seq += 1
        self._write(
            "INSERT INTO jobs (seq, id, site, application, script, home, mission_dir, log_file, args, submitter,"
            " request, state, attempts, boot, accepted_at, recovered, additions)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            seq,
            dispatch.job_id,
            dispatch.site,
            dispatch.application,
            dispatch.script,
            dispatch.home,
            dispatch.mission_dir,
            dispatch.log_file,
            json.dumps(dispatch.args),
            -1,  # nobody knows
            "",
            State.STARTING,
            1,
            boot,
            now,
            1,
            json.dumps(dispatch.additions),
        )
        return Unfinished(
            seq=seq,
            job_id=dispatch.job_id,
            site=dispatch.site,
            application=dispatch.application,
            script=dispatch.script,
            home=dispatch.home,
            mission_dir=dispatch.mission_dir,
            state=State.STARTING,
            boot=boot,
            additions=dispatch.additions,
        )

    def asked(self) -> None:
        """The helper has told all that it knows."""
        self.must_ask = False
        self._write("DELETE FROM notes WHERE name = ?", salvage.ASK)

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

    def running(self, seq: int, *, pid: int, started_at: float, dispatch: str | None = None) -> None:
        """The job's program runs, started with what its dispatch record says, if that is known."""
        self._write(
            "UPDATE jobs SET state = ?, reason = NULL, pid = ?, started_at = ?, dispatch = coalesce(?, dispatch)"
            " WHERE seq = ?",
            State.RUNNING,
            pid,
            started_at,
            dispatch,
            seq,
        )

    def dispatched(self, seq: int, dispatch: str) -> None:
        """The job was started with this."""
        self._write("UPDATE jobs SET dispatch = ? WHERE seq = ?", dispatch, seq)

    def postponed(self, seq: int, reason: str | None) -> None:
        """The job did not start and is to be tried again."""
        self._write("UPDATE jobs SET state = ?, reason = ? WHERE seq = ?", State.QUEUED, reason, seq)

    def ended(
        self, seq: int, state: State, record: Mapping[str, Any], *, now: float, reason: str | None = None
    ) -> None:
        """The job ended, as its exit record says; or steps before it did, and it was not run for this reason."""
        self._write(
            "UPDATE jobs SET state = ?, reason = ?, exit_code = ?, signal = ?, pid = coalesce(?, pid),"
            " started_at = coalesce(?, started_at), ended_at = ?, record = ? WHERE seq = ?",
            state,
            reason,
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

    def cancelled(self, seq: int, *, by: int, now: float) -> None:
        """Somebody, by uid, wants the job to be ended."""
        self._write("UPDATE jobs SET cancelled_by = ?, cancelled_at = ? WHERE seq = ?", by, now, seq)

    def moved(self, seq: int, application: str) -> None:
        """The job waits to be run with another application."""
        self._write("UPDATE jobs SET application = ?, reason = NULL WHERE seq = ?", application, seq)

    def returned(self, seq: int, state: State, reason: str, *, now: float) -> None:
        """The job is over, and its request is to be in its rundir again."""
        self.given_up(seq, state, reason, now=now)
        self._write("INSERT OR IGNORE INTO returned (job_id, site) SELECT id, site FROM jobs WHERE seq = ?", seq)

    def given_back(self, job_id: str) -> None:
        """The request of a job that was returned is in its rundir."""
        self._write("DELETE FROM returned WHERE job_id = ?", job_id)

    def hold(self, hold: Hold) -> None:
        """Nothing of a site is to be started, also after the next start of this program."""
        self._write(
            "INSERT OR REPLACE INTO holds (site, held_by, held_at, closed) VALUES (?, ?, ?, ?)",
            hold.site,
            hold.held_by,
            hold.held_at,
            int(hold.closed),
        )

    def release(self, site: str) -> None:
        """A hold is over."""
        self._write("DELETE FROM holds WHERE site = ?", site)

    def first_active(self, site: str, *, now: float) -> None:
        """The site was scanned for the first time ever."""
        self._write("INSERT OR IGNORE INTO sites (site, first_active_at) VALUES (?, ?)", site, now)

    def _write(self, statement: str, *values: object) -> None:
        self._writes.append((statement, values))

    def forget(self, most: int, *, now: float) -> int:
        """Forget up to `most` ended jobs that need not be kept any longer, at once; return how many.

        Raises LedgerError. To be called when nothing else is to be done: it is not free.
        """
        newest = self._next_seq - 1
        try:
            self._database.execute("BEGIN IMMEDIATE")
            forgotten = self._database.execute(
                "DELETE FROM jobs WHERE seq IN (SELECT seq FROM jobs WHERE ended_at < ? AND seq <= ?"
                " ORDER BY ended_at LIMIT ?)",
                (now - KEPT_DAYS * _DAY, newest - KEPT_ANYWAY, most),
            ).rowcount
            if forgotten < most:
                forgotten += self._database.execute(
                    "DELETE FROM jobs WHERE seq IN (SELECT seq FROM jobs WHERE ended_at IS NOT NULL AND seq <= ?"
                    " ORDER BY seq LIMIT ?)",
                    (newest - KEPT_JOBS, most - forgotten),
                ).rowcount
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise self._failed(error) from error
        return forgotten

    # What has been committed

    def _read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows. Raises LedgerError; whoever asks cannot go on without, so the watcher is to start anew."""
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            failed = self._failed(error)
            self.on_failure(f"the ledger cannot be read: {error}")
            raise failed from error

    def was_active(self, site: str) -> bool:
        """Tell whether the site was ever scanned."""
        return bool(self._read("SELECT 1 FROM sites WHERE site = ?", site))

    def holds(self) -> Iterator[Hold]:
        """Return all holds."""
        for site, held_by, held_at, closed in self._read("SELECT site, held_by, held_at, closed FROM holds"):
            yield Hold(site=site, held_by=held_by, held_at=held_at, closed=bool(closed))

    def unfinished(self) -> Iterator[Unfinished]:
        """Return the jobs that have not ended, in their order."""
        return _unfinished(self._database)

    def intake(self, site: str) -> Iterator[Intake]:
        """Return the site's requests whose removal is not recorded."""
        rows = self._read("SELECT job_id, name, rundir, identity FROM intake WHERE site = ?", site)
        for job_id, name, rundir, identity in rows:
            yield Intake(job_id=job_id, site=site, name=os.fsdecode(name), rundir=_inode(rundir), identity=identity)

    def dispatch(self, seq: int) -> Dispatch:
        """Return what is sent to the helper for a job."""
        ((job_id, site, application, home, mission_dir, log_file, script, args, additions),) = self._read(
            "SELECT id, site, application, home, mission_dir, log_file, script, args, additions"
            " FROM jobs WHERE seq = ?",
            seq,
        )
        return Dispatch(
            job_id=job_id,
            site=site,
            application=application,
            home=home,
            mission_dir=mission_dir,
            log_file=log_file,
            script=script,
            args=self._decoded(args),
            additions=self._decoded(additions),
        )

    def to_give_back(self, site: str) -> Iterator[tuple[str, bytes]]:
        """Return the site's jobs that were returned and whose requests may not be in the rundir yet, with these."""
        for (seq,) in self._read(
            "SELECT seq FROM jobs WHERE id IN (SELECT job_id FROM returned WHERE site = ?) ORDER BY seq", site
        ):
            asks = self.dispatch(seq)
            with suppress(runfile.RequestError):  # nothing that was returned: the entry was damaged
                yield asks.job_id, asks.as_request

    def _decoded(self, text: str) -> Any:  # noqa: ANN401 - JSON
        try:
            return json.loads(text)
        except ValueError as error:
            salvage.declare(self._directory, str(error))
            self.on_failure(f"the ledger is damaged: {error}")
            raise LedgerError(str(error)) from error

    def state(self, job_id: str) -> State | None:
        """Return a job's state, or None if there is no such job."""
        rows = self._read("SELECT state FROM jobs WHERE id = ?", job_id)
        return State(rows[0][0]) if rows else None

    def was_recovered(self, job_id: str) -> bool | None:
        """Tell whether a job was recovered from a damaged ledger, or None if there is no such job."""
        rows = self._read("SELECT recovered FROM jobs WHERE id = ?", job_id)
        return bool(rows[0][0]) if rows else None

    def last_ended(self, most: int) -> list[str]:
        """Return the ids of the jobs that ended last."""
        rows = self._read("SELECT id FROM jobs WHERE ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT ?", most)
        return [job_id for (job_id,) in rows]


def _unfinished(database: sqlite3.Connection) -> Iterator[Unfinished]:
    rows = database.execute(
        "SELECT seq, id, site, application, script, home, mission_dir, state, boot, cancelled_by, additions FROM jobs"
        " WHERE ended_at IS NULL ORDER BY seq"
    )
    for seq, job_id, site, application, script, home, mission_dir, state, boot, cancelled_by, additions in rows:
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
            cancelled_by=cancelled_by,
            additions=json.loads(additions),
        )


def _inode(text: str) -> int:
    return int(text) if text.isdecimal() else -1  # of no directory: the entry was damaged


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


def _lock(directory: Path) -> tuple[int, bool]:
    """Return the descriptor that holds the right to write this ledger, and whether anybody has held it before.

    Raises RunnerError if another process has it.
    """
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
    was_used = os.fstat(descriptor).st_size > 0
    with suppress(OSError):  # on a full disk: it says who holds it, which is no more than a help
        os.ftruncate(descriptor, os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
    return descriptor, was_used


def _open(path: Path) -> tuple[sqlite3.Connection, int, bool]:
    """Open the database, with its tables, readable for its owner only.

    Returns it, the next job's number, and whether the helper must be asked. Raises sqlite3.Error, RunnerError, or
    DamagedError.
    """
    try:
        # SQLite gives its journal files the mode of the database.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise RunnerError(f"the ledger cannot be opened: {error.strerror}", where=str(path)) from error
    database = sqlite3.connect(path, isolation_level=None)
    try:
        _prepare(database, path)
        (last,) = database.execute("SELECT coalesce(max(seq), 0) FROM jobs").fetchone()
        asks = database.execute("SELECT value FROM notes WHERE name = ?", (salvage.ASK,)).fetchone()
    except BaseException as error:
        database.close()
        if isinstance(error, sqlite3.Error) and damage.is_damage(error):
            raise damage.DamagedError(str(error)) from error
        raise
    return database, last + 1, asks is not None


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    version = schema.version(database)
    if version > schema.VERSION:
        what = f"the ledger is of a newer version of this program (schema {version}, this one knows {schema.VERSION})"
        raise RunnerError(what, where=str(path))
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    schema.migrate(database)
    # What an earlier crash has left behind its last commit would look like damage later.
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
