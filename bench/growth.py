"""Measurement i: whether a job costs more where there are ten times as many sites, waiting jobs, or ledger rows."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing

from basestation_runner.errors import RunnerError
from basestation_runner.sandbox import Installation
from bench.book import Book
from bench.figures import Figure, Unit
from bench.host import Host
from bench.session import Session
from bench.stats import median
from bench.subjects import Runner, stop
from bench.traffic import drop_all, rest


def measure(session: Session, book: Book) -> None:
    """Measure the runner's cost per job along each of the three."""
    book.note(_by_sites(session))
    book.note(_by_queued(session))
    book.note(_by_rows(session))


def _by_sites(session: Session) -> Iterable[Figure]:
    costs = []
    for count in session.plan.growing_sites:
        with session.sandbox.installation() as installation:
            host = Host.make(installation, count)
            daemons = Runner().start(installation)
            costs.append(_cost(session, host, session.plan.growth_jobs, session.plan.repeats))
            stop(daemons)
        yield Figure(f"i.sites.{count}", f"cost per job, sites: {count}", costs[-1], Unit.MS)
    yield _growth("sites", costs, session.plan.growing_sites)


def _by_queued(session: Session) -> Iterable[Figure]:
    costs = []
    with session.sandbox.installation() as installation:
        host = Host.make(installation, 1)
        daemons = Runner().start(installation)
        for count in session.plan.growing_queues:
            costs.append(_cost(session, host, count, 1))
            yield Figure(f"i.queued.{count}", f"cost per job, jobs in the queue: {count}", costs[-1], Unit.MS)
        stop(daemons)
    yield _growth("queued", costs, session.plan.growing_queues)


def _by_rows(session: Session) -> Iterable[Figure]:
    costs = []
    with session.sandbox.installation() as installation:
        host = Host.make(installation, 1)
        daemons = Runner().start(installation)
        _cost(session, host, 2, 1)  # the first of them has ended then: its row is the pattern of the others
        stop(daemons)
        for count in session.plan.growing_rows:
            _fill(installation, count)
            daemons = Runner().start(installation)
            costs.append(_cost(session, host, session.plan.growth_jobs, session.plan.repeats))
            stop(daemons)
            ready = daemons["watcher"].seconds
            yield Figure(f"i.rows.{count}", f"cost per job, ledger rows: {count}", costs[-1], Unit.MS)
            yield Figure(f"i.ready.{count}", f"watcher, start to READY, ledger rows: {count}", ready, Unit.SECONDS)
    yield _growth("rows", costs, session.plan.growing_rows)


def _cost(session: Session, host: Host, jobs: int, repeats: int) -> float:
    """Return the milliseconds per job of one queue, the median of some runs. Raises RunnerError for a lost request."""
    found = []
    for _ in range(repeats):
        requests = host.requests([next(host.queues(1))] * jobs)
        rest()
        session.floor.sample(session.plan.floor)
        run = drop_all(host, requests)
        if run.verdict.lost:
            raise RunnerError(f"{run.verdict.lost} of {jobs} requests did not run", where=str(host.installation.top))
        found.append(1000 / run.rate)
    return median(found)


def _growth(what: str, costs: list[float], counts: tuple[int, ...]) -> Figure:
    text = f"cost per job, {what}: {counts[-1]} to {counts[0]}"
    return Figure(f"i.{what}.growth", text, costs[-1] / costs[0], Unit.TIMES)


def _fill(installation: Installation, count: int) -> None:
    """Add rows like the newest ended job's to the ledger of a stopped watcher, until it has `count` of them."""
    with closing(sqlite3.connect(installation.watcher_state / "ledger.db", isolation_level=None)) as ledger:
        ledger.execute("PRAGMA synchronous = OFF")
        columns = [name for _, name, *_ in ledger.execute("PRAGMA table_info(jobs)") if name not in {"seq", "id"}]
        (have,) = ledger.execute("SELECT count(*) FROM jobs").fetchone()
        if have < count:
            names = ", ".join(columns)
            ledger.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"  # noqa: S608 - columns' names
                f" INSERT INTO jobs (id, {names}) SELECT lower(hex(randomblob(16))), {names} FROM n,"
                " (SELECT * FROM jobs WHERE ended_at IS NOT NULL ORDER BY seq DESC LIMIT 1)",
                (count - have,),
            )
