"""The ledger's tables, and how those of an older version become today's. Reads and writes no rows."""

import sqlite3
from contextlib import closing
from typing import Final

_STEPS: Final = (
    """
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
""",
    # The request of a job that was recovered from a damaged ledger may still lie in its rundir, unknown to intake.
    # A note is a fact about the ledger itself.
    """
ALTER TABLE jobs ADD COLUMN recovered INTEGER NOT NULL DEFAULT 0;
CREATE TABLE notes (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
""",
    # Who asked, by uid: for a job's cancellation, for a hold. A hold of the site '' is one of the whole host.
    # A job in `returned` has become a request again, of which it is not known that it is in the rundir.
    """
ALTER TABLE jobs ADD COLUMN rerun_of TEXT;
ALTER TABLE jobs ADD COLUMN cancelled_by INTEGER;
ALTER TABLE jobs ADD COLUMN cancelled_at REAL;
CREATE TABLE holds (
    site TEXT PRIMARY KEY,
    held_by INTEGER NOT NULL,
    held_at REAL NOT NULL,
    closed INTEGER NOT NULL
) STRICT;
CREATE TABLE returned (
    job_id TEXT PRIMARY KEY,
    site TEXT NOT NULL
) STRICT, WITHOUT ROWID;
""",
    # What a request adds to its application's profile, as JSON.
    """
ALTER TABLE jobs ADD COLUMN additions TEXT NOT NULL DEFAULT '{}';
""",
    # What the helper has started a job with, as JSON; none for one that has not been started.
    """
ALTER TABLE jobs ADD COLUMN dispatch TEXT;
""",
)
"""What makes each version of the last one; a new ledger takes them all. A step that was released never changes."""

VERSION: Final = len(_STEPS)


def version(database: sqlite3.Connection) -> int:
    """Return the version of a ledger's tables, 0 for one that has none yet."""
    (number,) = database.execute("PRAGMA user_version").fetchone()
    return int(number)


def tables(version: int) -> dict[str, str]:
    """Return the tables and indices of a version, each with the statement that makes it."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript("".join(_STEPS[:version]))
        return written(database)


def written(database: sqlite3.Connection) -> dict[str, str]:
    """Return the tables and indices of a database, each with the statement that made it."""
    rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: " ".join(statement.split()) for name, statement in rows}


def migrate(database: sqlite3.Connection) -> None:
    """Bring a ledger of any version up to this one, in one transaction. Raises sqlite3.Error."""
    steps = "".join(_STEPS[version(database) :])
    if steps:
        database.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {VERSION}; COMMIT;")
