"""What becomes of a damaged ledger: its files are moved aside together, and what can be read goes into a new one.

Runs at start, by whoever holds the ledger's lock. Can be killed at any step: the next start goes on from there. Of what
was moved aside nothing is changed.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import time
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from basestation_runner import protocol
from basestation_runner.errors import printable
from basestation_runner.watch import damage, schema
from basestation_runner.watch.states import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE: Final = "ledger.db"
ASK: Final = "ask the helper"
"""The note in a new ledger that says that the helper may know jobs which it does not hold."""
NOT_CURRENT: Final = "the ledger was damaged: it is not known whether it ran"
NO_SENSE: Final = "the ledger was damaged: what was asked for cannot be read any more"

_TOGETHER: Final = (FILE, f"{FILE}-wal", f"{FILE}-shm")
_DECLARED: Final = "ledger.damaged"
_NEW: Final = "ledger.new"
_SCRATCH: Final = "salvage-"
_ASIDE: Final = "damaged-"
_MOVING: Final = ".moving"  # not all files are there yet, and the originals still are
_READING: Final = ".reading"  # all are there; until it loses this ending, what is called ledger.db is of no use
_MOST_ASIDE: Final = 3
_MOST_LOOKUPS: Final = 20_000
_PAGE: Final = 4096
_WITH_LOG: Final = (2, 2)  # in SQLite's header: to be read and written with a write-ahead log
_INTAKE_COLUMNS: Final = ("job_id", "site", "name", "rundir", "identity")
_SITE_COLUMNS: Final = ("site", "first_active_at")
_HOLD_COLUMNS: Final = ("site", "held_by", "held_at", "closed")


@frozen(kw_only=True)
class Recovery:
    """What was done about a damaged ledger; `whole` if nothing in it was found to be unreadable."""

    reason: str
    kept_in: str
    jobs: int
    unfinished: int
    whole: bool


def declare(directory: Path, reason: str) -> None:
    """Note for the next start that the ledger is damaged: it may not look so when it is opened."""
    with suppress(OSError):
        (directory / _DECLARED).write_text(reason)


def reason_not_to_open(directory: Path, *, was_used: bool) -> str | None:
    """Return why the ledger is known to be damaged before it is opened; `was_used`: a watcher has run on it before."""
    if any(directory.glob(f"{_ASIDE}*{_READING}")):
        return "its recovery was interrupted"
    with suppress(FileNotFoundError):
        return (directory / _DECLARED).read_text(errors="replace")
    try:
        is_empty = (directory / FILE).lstat().st_size == 0
    except FileNotFoundError:
        is_empty = True
    return "its file is gone or empty" if was_used and is_empty else None


def recover(directory: Path, reason: str) -> Recovery:
    """Make a new ledger of what can be read of a damaged one. Raises OSError or sqlite3.Error; nothing is lost then."""
    folder = _set_aside(directory)
    new = directory / _NEW
    for name in (_NEW, f"{_NEW}-journal"):
        (directory / name).unlink(missing_ok=True)
    for scratch in directory.glob(f"{_SCRATCH}*"):
        shutil.rmtree(scratch)
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(new, isolation_level=None)) as database:
        schema.migrate(database)
        database.execute("BEGIN IMMEDIATE")
        whole = _fill(database, folder)
        database.execute("INSERT INTO notes (name, value) VALUES (?, ?)", (ASK, reason))
        (jobs,) = database.execute("SELECT count(*) FROM jobs").fetchone()
        (unfinished,) = database.execute("SELECT count(*) FROM jobs WHERE ended_at IS NULL").fetchone()
        database.execute("COMMIT")
    new.rename(directory / FILE)
    (directory / _DECLARED).unlink(missing_ok=True)
    _sync(directory)
    kept = folder.rename(str(folder).removesuffix(_READING))
    _sync(directory)
    for old in sorted(directory.glob(f"{_ASIDE}*"), key=_number)[:-_MOST_ASIDE]:
        shutil.rmtree(old, ignore_errors=True)
    return Recovery(reason=reason, kept_in=str(kept), jobs=jobs, unfinished=unfinished, whole=whole)


# Moving aside


def _set_aside(directory: Path) -> Path:
    """Move the ledger's files into a folder, all together or not at all; return it."""
    for half in directory.glob(f"{_ASIDE}*{_MOVING}"):
        shutil.rmtree(half)
    folder = next(iter(directory.glob(f"{_ASIDE}*{_READING}")), None)
    if folder is None:
        moving = _fresh_folder(directory)
        for name in _TOGETHER:
            with suppress(FileNotFoundError):
                os.link(directory / name, moving / name)
        _sync(moving)
        folder = moving.rename(str(moving).removesuffix(_MOVING) + _READING)
        _sync(directory)
    for name in _TOGETHER:
        (directory / name).unlink(missing_ok=True)
    return folder


def _fresh_folder(directory: Path) -> Path:
    last = max((_number(path) for path in directory.glob(f"{_ASIDE}*")), default=0)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = directory / f"{_ASIDE}{last + 1:04}-{stamp}{_MOVING}"
    folder.mkdir(mode=0o700)
    return folder


def _number(folder: Path) -> int:
    digits = folder.name.removeprefix(_ASIDE).partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Reading


def _fill(new: sqlite3.Connection, folder: Path) -> bool:
    """Copy what can be read; return whether that is everything."""
    if (old := _open(folder / FILE)) is not None:
        with closing(old):
            whole = _copy(new, old, is_current=damage.log_is_whole(folder / FILE))
            if "holds" in schema.written(old):  # only where its own first page says where they are
                for row in _rows(old, "holds", _HOLD_COLUMNS):
                    whole &= row is not None and _insert(new, "holds", row)
        if whole or new.execute("SELECT 1 FROM jobs").fetchone():
            return whole
    # Its first page says nothing. Ours says where everything is, and what is there can be told by itself.
    with TemporaryDirectory(prefix=_SCRATCH, dir=folder.parent) as scratch:
        patched = Path(scratch) / FILE
        for name in _TOGETHER[:2]:
            with suppress(FileNotFoundError):
                shutil.copyfile(folder / name, patched.with_name(name))
        _put_first_page(patched)
        if (old := _open(patched)) is not None:
            with closing(old):
                _copy(new, old, is_current=damage.log_is_whole(patched))
    return False


def _open(path: Path) -> sqlite3.Connection | None:
    """Open a damaged ledger for reading; None when its tables cannot be found."""
    if not path.exists():
        return None
    database = damage.connect(path)
    try:
        database.execute("PRAGMA writable_schema = ON")  # also: believe the file's size rather than its header
        for table in damage.TABLES:
            database.execute(f"SELECT 1 FROM {table} LIMIT 0").fetchall()  # noqa: S608 - names from above
    except damage.ERRORS:
        database.close()
        return None
    return database


def _put_first_page(ledger: Path) -> None:
    """Give a ledger the first page of a new one, which has its tables at the same places."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as template:
        template.execute(f"PRAGMA page_size = {_PAGE}")
        schema.migrate(template)
        page = bytearray(template.serialize()[:_PAGE])
    pages = ledger.stat().st_size // _PAGE if ledger.exists() else 1
    struct.pack_into(">BB", page, 18, *_WITH_LOG)
    struct.pack_into(">III", page, 28, pages, 0, 0)  # nothing is known of free pages
    page[92:96] = page[24:28]  # the number of pages counts
    with ledger.open("r+b" if ledger.exists() else "wb") as file:
        file.write(page)


def _copy(new: sqlite3.Connection, old: sqlite3.Connection, *, is_current: bool) -> bool:
    """Copy rows that make sense; return whether all could be read and did."""
    whole = True
    now = time.time()
    for row in _rows(old, "jobs", damage.job_columns(old)):
        values = None if row is None else _job(row, now, is_current=is_current)
        whole &= values is not None and _insert(new, "jobs", values)
    for row in _rows(old, "intake", _INTAKE_COLUMNS):
        # Without its job an entry is of no use: the request is taken anew if it is still there.
        whole &= row is not None and _has_job(new, row["job_id"]) and _insert(new, "intake", row)
    for row in _rows(old, "sites", _SITE_COLUMNS):
        whole &= row is not None and _insert(new, "sites", row)
    return whole


def _has_job(new: sqlite3.Connection, job_id: str) -> bool:
    is_there = not damage.is_broken(job_id) and new.execute("SELECT 1 FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return bool(is_there)


def _rows(old: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> Iterator[Mapping[str, Any] | None]:
    """Yield the rows that can be read, from both ends towards what cannot be; None for each time that it could not."""
    select = f"SELECT rowid, {', '.join(columns)} FROM {table} NOT INDEXED WHERE rowid"  # noqa: S608 - names from above
    last, first = 0, None
    try:
        for rowid, *values in old.execute(f"{select} > 0 ORDER BY rowid"):
            last = rowid
            yield dict(zip(columns, values, strict=True))
    except damage.ERRORS:
        yield None
    else:
        return
    with suppress(*damage.ERRORS):
        for rowid, *values in old.execute(f"{select} > ? ORDER BY rowid DESC", (last,)):
            first = rowid
            yield dict(zip(columns, values, strict=True))
    end = last + _MOST_LOOKUPS if first is None else min(first, last + _MOST_LOOKUPS)
    for rowid in range(last + 1, end):
        with suppress(*damage.ERRORS):
            for _, *values in old.execute(f"{select} = ?", (rowid,)):
                yield dict(zip(columns, values, strict=True))


def _job(row: Mapping[str, Any], now: float, *, is_current: bool) -> dict[str, Any] | None:
    """Return a job's row as it is to be kept, None if not even its id and its state make sense."""
    try:
        state = State(row["state"])
    except ValueError:
        return None
    if not protocol.is_job_id(row["id"]):
        return None
    kept = {name: printable(value) if damage.is_broken(value) else value for name, value in row.items()}
    kept["recovered"] = 1
    if state.is_final:
        kept["ended_at"] = row["ended_at"] or now
    elif not damage.may_run(row):
        kept |= {"state": State.LOST, "reason": NO_SENSE, "args": "[]", "additions": "{}", "ended_at": now}
    elif not is_current:
        kept |= {"state": State.LOST, "reason": NOT_CURRENT, "ended_at": now}
    return kept


def _insert(new: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> bool:
    """Insert a row; return False if it cannot be one."""
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    try:
        new.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))  # noqa: S608
    except (sqlite3.IntegrityError, UnicodeEncodeError):
        return False
    return True
