"""The ledger for those who ask about jobs: read only, what is committed, each time through a connection of its own.

Blocking calls, for a thread beside the loop: readers and the writer of a write-ahead log do not wait for each other.
What an answer holds is bounded, and so is the time that a question takes.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MOST_ROWS: Final = 200
"""Jobs in one answer."""
MOST_TEXT: Final = 64 << 10
"""Characters in an answer's jobs, roughly: as JSON they must fit a frame. Whoever wants more asks again."""
MOST_SECONDS: Final = 3.0
FEW: Final = 10
FAILURES: Final = ("failed", "timed_out", "out_of_memory", "lost", "refused")
_RECENT: Final = 1000
"""Newest jobs among which one is looked for by its request's name."""

_END: Final = 1 << 62  # after every job
_STEPS_BETWEEN_LOOKS: Final = 10_000
_SUMMARY: Final = (
    *("seq", "id", "site", "application", "script", "home", "mission_dir", "submitter", "request", "state", "reason"),
    *("attempts", "accepted_at", "starting_at", "started_at", "ended_at", "exit_code", "signal", "pid", "rerun_of"),
    *("cancelled_by", "cancelled_at"),
)
_OF_TIMELINE: Final = ("id", "site", "script", "state", "started_at", "ended_at")
_ALL: Final = (*_SUMMARY, "log_file", "args", "additions", "record", "dispatch")
_OF_SITES: Final = "(?1 IS NULL OR site IN (SELECT value FROM json_each(?1)))"

Facts = dict[str, Any]


class TooMuchError(Exception):
    """The question would take too long."""


@frozen(kw_only=True)
class Wanted:
    """Which jobs are asked for; None where it does not matter. The newest come first."""

    sites: Sequence[str] | None = None
    states: Sequence[str] | None = None
    script: str | None = None
    since: float | None = None
    before: int | None = None
    limit: int = MOST_ROWS


class History:
    """What the ledger holds. Every call may raise sqlite3.Error or TooMuchError."""

    def __init__(self, path: Path) -> None:
        self._uri = f"{path.absolute().as_uri()}?mode=ro"

    def jobs(self, wanted: Wanted) -> list[Facts]:
        """Return the newest of the jobs that are wanted."""
        return self._ask(
            _SUMMARY,
            wanted.sites,
            "(?2 IS NULL OR state IN (SELECT value FROM json_each(?2))) AND (?3 IS NULL OR script = ?3)"
            " AND (?4 IS NULL OR accepted_at >= ?4) AND seq < ?5 ORDER BY seq DESC LIMIT ?6",
            _listed(wanted.states),
            wanted.script,
            wanted.since,
            _END if wanted.before is None else wanted.before,
            min(wanted.limit, MOST_ROWS),
        )

    def with_numbers(self, numbers: Iterable[int]) -> list[Facts]:
        """Return jobs by their places in the order of all jobs."""
        return self._ask(_SUMMARY, None, "seq IN (SELECT value FROM json_each(?2)) ORDER BY seq", _listed(numbers))

    def with_prefix(self, prefix: str, sites: Sequence[str] | None) -> list[Facts]:
        """Return everything about the job whose id begins so; if there are several, the ids of some of them."""
        # An id holds nothing that comes after f.
        found = self._ask(("id",), sites, "id >= ?2 AND id < ?2 || 'g' ORDER BY id LIMIT 3", prefix)
        if len(found) > 1 and found[0]["id"] != prefix:
            return found
        return [facts for each in found[:1] for facts in self._ask(_ALL, None, "id = ?2", each["id"])]

    def of_request(self, site: str, name: str) -> list[Facts]:
        """Return the job that a site's request of this name has become lately, if it has."""
        recent = "seq > (SELECT max(seq) FROM jobs) - ?2 AND request = ?3 ORDER BY seq DESC LIMIT 1"
        return self._ask(_SUMMARY, [site], recent, _RECENT, name)

    def longest_queued(self, sites: Sequence[str], most: int) -> list[Facts]:
        """Return the jobs that have waited longest, the oldest first."""
        return self._ask(_SUMMARY, sites, "ended_at IS NULL AND state = 'queued' ORDER BY seq LIMIT ?2", most)

    def first_queued(self, sites: Sequence[str] | None) -> list[Facts]:
        """Return the job that has waited longest, if any waits."""
        return self._ask(_SUMMARY, sites, "ended_at IS NULL AND state = 'queued' ORDER BY seq LIMIT 1")

    def oldest_queued(self, sites: Sequence[str]) -> list[Facts]:
        """Return of each site the job that has waited longest."""
        # Of a query with min(), SQLite takes the other columns from the row that has the minimum.
        return self._ask(("min(seq)", *_SUMMARY), sites, "ended_at IS NULL AND state = 'queued' GROUP BY site")

    def failures(self, sites: Sequence[str] | None, since: float) -> list[Facts]:
        """Return the last few jobs that ended badly since then, the last one first."""
        bad = "ended_at >= ?2 AND state IN (SELECT value FROM json_each(?3)) ORDER BY ended_at DESC LIMIT ?4"
        return self._ask(_SUMMARY, sites, bad, since, _listed(FAILURES), FEW)

    def ran_since(self, since: float) -> list[Facts]:
        """Return, of the newest jobs, those that run or have ended since then, by what a timeline shows of them."""
        recent = "seq > (SELECT max(seq) FROM jobs) - ?2 AND started_at IS NOT NULL"
        ran = f"{recent} AND (ended_at IS NULL OR ended_at >= ?3) ORDER BY seq DESC LIMIT ?2"
        return self._ask(_OF_TIMELINE, None, ran, _RECENT, since)

    def lost(self, sites: Sequence[str] | None, since: float) -> int:
        """Return how many jobs were lost since then."""
        (facts,) = self._ask(("count(*) AS lost",), sites, "ended_at >= ?2 AND state = 'lost'", since)
        return int(facts["lost"])

    def _ask(self, columns: Sequence[str], sites: Sequence[str] | None, wanted: str, *values: object) -> list[Facts]:
        """Return the wanted jobs of some sites, or of all, by column; the first ones if they are too large together."""
        until = monotonic() + MOST_SECONDS
        statement = f"SELECT {', '.join(columns)} FROM jobs WHERE {_OF_SITES} AND {wanted}"  # noqa: S608 - texts from here
        with closing(sqlite3.connect(self._uri, uri=True, isolation_level=None)) as database:
            database.row_factory = sqlite3.Row
            database.set_progress_handler(lambda: monotonic() > until, _STEPS_BETWEEN_LOOKS)
            found: list[Facts] = []
            room = MOST_TEXT
            try:
                for row in database.execute(statement, (_listed(sites), *values)):
                    found.append(dict(row))
                    room -= sum(len(value) for value in row if isinstance(value, str))
                    if room < 0:
                        break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                    raise TooMuchError from None
                raise
        return found


def _listed(values: Iterable[object] | None) -> str | None:
    return None if values is None else json.dumps(list(values))
