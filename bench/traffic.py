"""Measurements a to d: one drop at a time on an idle host, one long queue, many queues, a burst."""

import os
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from attrs import frozen

from basestation_runner.errors import RunnerError
from basestation_runner.sandbox.installation import Site
from bench.book import Book
from bench.figures import Figure, Unit
from bench.host import Host, Request
from bench.session import Session
from bench.stamps import Stamp
from bench.stats import Verdict, judge, median, percentile
from bench.subjects import Subject, stop

PATIENCE: Final = 30.0
"""Seconds without any run after which the rest counts as lost."""
_WARM_UP: Final = 8
_REST: Final = 0.5


@frozen
class Run:
    """Requests that were dropped together and their runs."""

    verdict: Verdict
    seconds: float  # from just before the first drop to the last job's first act
    gaps_ms: list[float]  # between one job's first act and the next one's

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return (len(self.gaps_ms) + 1) / self.seconds


def rest() -> None:
    """Wait for the ends of what ran before, and for the disk: the next measurement should not share the machine."""
    os.sync()
    time.sleep(_REST)


def drop_all(host: Host, requests: Sequence[Request]) -> Run:
    """Drop requests as fast as possible and wait until each has run, or none does any more."""
    host.stamps.start()
    first = requests[0].drop()
    for request in requests[1:]:
        request.drop()
    host.stamps.wait(len(requests), PATIENCE)
    return _run(first, requests, host.stamps.read())


def _run(first: int, requests: Sequence[Request], stamps: Sequence[Stamp]) -> Run:
    numbers = [request.number for request in requests]
    asked = set(numbers)  # what an earlier measurement gave up may still run
    stamps = [stamp for stamp in stamps if stamp.number in asked]
    verdict = judge(numbers, stamps)
    times = [stamp.ns for stamp in stamps]
    gaps = [(later - earlier) / 1e6 for earlier, later in pairwise(times)]
    return Run(verdict, (times[-1] - first) / 1e9 if times else float("inf"), gaps)


def latencies(host: Host, drops: int, pause: float) -> list[float]:
    """Drop one request after the other on the idle host and return the milliseconds until each job's first act.

    What never ran is left out. Raises RunnerError when that is all.
    """
    found = []
    for request in host.requests(host.queues(drops)):
        host.stamps.start()
        dropped = request.drop()
        host.stamps.wait(1, PATIENCE, often=True)
        found += [(stamp.ns - dropped) / 1e6 for stamp in host.stamps.read() if stamp.number == request.number]
        time.sleep(pause)
    if not found:
        raise RunnerError("of all that was dropped nothing ran", where=str(host.installation.top))
    return found


def measure(session: Session, subject: Subject, book: Book) -> None:
    """Start the daemons on new sites, take those measurements, and stop the daemons."""
    with session.sandbox.installation() as installation:
        host = Host.make(installation, session.plan.sites, session.plan.missions)
        daemons = subject.start(installation)
        _measure(session, host, book)
        stop(daemons)


def _measure(session: Session, host: Host, book: Book) -> None:
    floor, plan, only = session.floor, session.plan, session.only
    latencies(host, _WARM_UP, 0)
    if "a" in only:
        floor.sample(plan.floor)
        book.samples["a"] = latencies(host, plan.drops, plan.pause)
        book.note(_latency(book.samples["a"]))
    if "b" in only:
        book.note(_queue(_repeated(session, host, [next(host.queues(1))] * plan.queue)))
    many = list(host.queues(plan.sites * plan.missions))
    fanned = _repeated(session, host, many) if only & {"c", "d"} else []
    if fanned:
        book.note(_fan(fanned))
    if "d" in only:
        requests = host.requests(host.queues(plan.burst))
        rest()
        floor.sample(plan.floor)
        burst = drop_all(host, requests)
        fanned += _repeated(session, host, many)  # the burst lasts, and the machine may not be what it was before
        book.note(_burst(burst, median(run.rate for run in fanned)))
    floor.sample(plan.floor)


def _repeated(session: Session, host: Host, queues: Sequence[tuple[Site, int]]) -> list[Run]:
    runs = []
    for _ in range(session.plan.repeats):
        requests = host.requests(queues)
        rest()
        session.floor.sample(session.plan.floor)
        runs.append(drop_all(host, requests))
    return runs


def _latency(found: Sequence[float]) -> Iterator[Figure]:
    for percent in (50, 95, 99):
        yield Figure(f"a.p{percent}", f"drop to exec, idle, p{percent}", percentile(found, percent), Unit.MS)
    yield Figure("a.max", "drop to exec, idle, longest", max(found), Unit.MS)


def _queue(runs: Sequence[Run]) -> Iterator[Figure]:
    yield Figure("b.rate", "one queue", median(run.rate for run in runs), Unit.RATE)
    yield Figure(
        "b.gap", "one queue, exec to next exec, p50", median(gap for run in runs for gap in run.gaps_ms), Unit.MS
    )
    yield Figure("b.out_of_order", "one queue, run out of order", _sum(runs, "out_of_order"), Unit.COUNT)
    yield Figure("b.lost", "one queue, lost", _sum(runs, "lost"), Unit.COUNT)


def _fan(runs: Sequence[Run]) -> Iterator[Figure]:
    yield Figure("c.rate", "many queues", median(run.rate for run in runs), Unit.RATE)
    yield Figure("c.lost", "many queues, lost", _sum(runs, "lost"), Unit.COUNT)


def _burst(run: Run, fan_rate: float) -> Iterator[Figure]:
    yield Figure("d.rate", "burst", run.rate, Unit.RATE)
    yield Figure("d.lost", "burst, lost", run.verdict.lost, Unit.COUNT)
    yield Figure("d.twice", "burst, run twice", run.verdict.twice, Unit.COUNT)
    yield Figure("d.to_c", "burst, cost per job to that of many queues", fan_rate / run.rate, Unit.TIMES)


def _sum(runs: Sequence[Run], what: str) -> int:
    return sum(getattr(run.verdict, what) for run in runs)
