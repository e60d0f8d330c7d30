"""Tells a ledger that is what was written from one that is damaged. Changes nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from contextlib import closing
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from basestation_runner import protocol
from basestation_runner.watch import schema
from basestation_runner.watch.states import FINAL, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

TABLES: Final = ("jobs", "intake", "sites")
JOB_COLUMNS: Final = (
    *("seq", "id", "site", "application", "script", "home", "mission_dir", "log_file", "args", "submitter", "request"),
    *("state", "reason", "attempts", "boot", "accepted_at", "starting_at", "started_at", "ended_at", "pid"),
    *("exit_code", "signal", "record", "rerun_of", "cancelled_by", "cancelled_at", "additions", "dispatch"),
)
"""Those of today; a ledger of an older version lacks the last ones."""
ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)  # the latter for a message of SQLite's that repeats what it read
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UNFINISHED: Final = frozenset(State) - FINAL
_PAGE: Final = 4096
# SQLite's file format: the headers of the write-ahead log and of each frame in it, and where its index says how many
# frames count.
_LOG_HEADER: Final = struct.Struct(">8I")
_LOG_MAGIC: Final = frozenset({0x377F0682, 0x377F0683})
_FRAME: Final = struct.Struct(">6I")
_INDEX_FRAMES: Final = 16


class DamagedError(Exception):
    """The ledger is not what was written; the text says what is wrong."""


def is_damage(error: sqlite3.Error) -> bool:
    """Tell whether an error says that the file is not what was written to it."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # not SQLite's word but the module's, for a text that is none
        return isinstance(error, sqlite3.OperationalError)
    return code & 0xFF in _DAMAGE


def connect(path: Path) -> sqlite3.Connection:
    """Connect to a ledger so that not even its write-ahead log is tidied up."""
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    database.text_factory = lambda data: data.decode(errors="surrogateescape")
    return database


def check(path: Path) -> None:
    """See whether the ledger is what was written, as far as a start needs it.

    Raises DamagedError, or sqlite3.Error when that cannot be told now.
    """
    try:
        with closing(connect(path)) as database:
            version = schema.version(database)
            if version > schema.VERSION:
                return  # whoever opens it says so
            tables = schema.written(database)
            if tables != schema.tables(version):
                raise DamagedError("its tables are not its own")
            if tables:
                _check_entries(database, tables.keys() & {"intake", "sites", "notes", "holds", "returned"})
            if not log_is_whole(path):
                raise DamagedError("its write-ahead log is damaged")
    except sqlite3.Error as error:
        if is_damage(error):
            raise DamagedError(str(error)) from error
        raise
    except UnicodeDecodeError as error:
        raise DamagedError("its tables are not its own") from error


def _check_entries(database: sqlite3.Connection, tables: Iterable[str]) -> None:
    columns = job_columns(database)
    for values in database.execute(f"SELECT {', '.join(columns)} FROM jobs WHERE ended_at IS NULL"):  # noqa: S608 - names from above
        if not may_run(dict(zip(columns, values, strict=True))):
            raise DamagedError("an entry makes no sense")
    for name in tables:
        for values in database.execute(f"SELECT * FROM {name}"):  # noqa: S608 - names from above
            if any(map(is_broken, values)):
                raise DamagedError("an entry makes no sense")


def job_columns(database: sqlite3.Connection) -> tuple[str, ...]:
    """Return those of a job's columns that a ledger of any version has. Raises sqlite3.Error."""
    names = {name for _, name, *_ in database.execute("PRAGMA table_info(jobs)")}
    return tuple(name for name in JOB_COLUMNS if name in names)


def may_run(row: Mapping[str, Any]) -> bool:
    """Tell whether the row of a job that has not ended is one that could have been written."""
    is_right = protocol.is_job_id(row["id"]) and row["ended_at"] is None and not any(map(is_broken, row.values()))
    return (
        is_right and row["state"] in _UNFINISHED and _is_words(row["args"]) and _is_mapping(row.get("additions", "{}"))
    )


def is_broken(value: object) -> bool:
    """Tell whether a value is a text with bytes in it that are none."""
    return isinstance(value, str) and not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)


def _is_words(text: str) -> bool:
    try:
        words = json.loads(text)
    except ValueError:
        return False
    return isinstance(words, list) and all(isinstance(word, str) for word in words)


def _is_mapping(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def log_is_whole(path: Path) -> bool:
    """Tell whether SQLite has taken all commits that are in the write-ahead log of a ledger that is open.

    Of a log that is damaged it takes what comes before the damage and passes over the rest, silently. The very last
    commit may be there in part after a power failure: that one was never acknowledged.
    """
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or log.stat().st_size <= _LOG_HEADER.size:
        return True
    with path.with_name(f"{path.name}-shm").open("rb") as index:
        index.seek(_INDEX_FRAMES)
        (taken,) = struct.unpack("=I", index.read(4))
    with log.open("rb") as file:
        header = file.read(_LOG_HEADER.size)
        magic, _, page, _, *salts, _, _ = _LOG_HEADER.unpack(header)
        has_header = magic in _LOG_MAGIC and header[24:] == _checksum(header[:24], is_big=bool(magic & 1))
        commits = [
            of_frame
            for number, (size, of_frame) in enumerate(_frames(file, page if has_header else _PAGE))
            if size and (number >= taken or not has_header)
        ]
    # A header is durable before any frame is written: without one, none of them was passed over for a good reason.
    return commits.count(salts) <= 1 if has_header else not commits


def _frames(file: BinaryIO, page: int) -> Iterator[tuple[int, list[int]]]:
    """Yield of each frame the database's size in pages, which only the last one of a commit has, and its salts."""
    while len(header := file.read(_FRAME.size)) == _FRAME.size:
        _, size, *salts, _, _ = _FRAME.unpack(header)
        yield size, salts
        file.seek(page, os.SEEK_CUR)


def _checksum(data: bytes, *, is_big: bool) -> bytes:
    first = second = 0
    for one, two in struct.iter_unpack(">2I" if is_big else "<2I", data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return struct.pack(">2I", first, second)
