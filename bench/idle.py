"""Measurement e: what daemons cost that have nothing to do, by their number of sites, and what a running job costs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bench.book import Book
from bench.figures import Figure, Unit
from bench.host import Host
from bench.processes import Activity, activity, children, memory
from bench.session import Session
from bench.stats import median
from bench.subjects import Runner, Started, Subject, stop

_KEEPERS: Final = 20
_LIFE_MS: Final = 8000
_PATIENCE: Final = 30.0
_SETTLED_MS: Final = 2.0  # of CPU time within a look
_SETTLE: Final = 0.5
_SETTLES: Final = 60


def measure(session: Session, subject: Subject, book: Book) -> None:
    """Start the daemons with more and more sites, each time on a new installation."""
    for count in session.plan.site_counts:
        with session.sandbox.installation() as installation:
            Host.make(installation, count)
            session.floor.sample(session.plan.floor)
            starts = []
            for is_last in [False] * (session.plan.repeats - 1) + [True]:
                daemons = subject.start(installation)
                starts.append({name: started.seconds for name, started in daemons.items()})
                if is_last:
                    _settle(daemons)
                    book.note(_ready(count, starts))
                    book.note(_idle(count, daemons, session.plan.idle))
                stop(daemons)


def keepers(session: Session, book: Book) -> None:
    """Measure what the runner holds in memory for each running job, while several run."""
    with session.sandbox.installation() as installation:
        host = Host.make(installation, _KEEPERS)
        daemons = Runner(watcher_arguments=("--max-running", str(2 * _KEEPERS))).start(installation)
        host.stamps.start()
        for request in host.requests(host.queues(_KEEPERS), life_ms=_LIFE_MS):
            request.drop()
        host.stamps.wait(_KEEPERS, _PATIENCE)
        found = [memory(pid) for pid in children(daemons["helper"].daemon.pid)]
        book.note(
            [
                Figure("e.keepers", "keepers that were found", len(found), Unit.COUNT),
                Figure(
                    "e.keeper.private", "keeper of a running job: private", median(m.private for m in found), Unit.MB
                ),
            ]
        )


def _settle(daemons: Mapping[str, Started]) -> None:
    """Wait until the daemons do nothing more, but not for ever: some are never quite still."""
    seen = _activities(daemons)
    for _ in range(_SETTLES):
        time.sleep(_SETTLE)
        now = _activities(daemons)
        if all(now[name].cpu_ms - seen[name].cpu_ms < _SETTLED_MS for name in now):
            return
        seen = now


def _idle(count: int, daemons: Mapping[str, Started], seconds: float) -> Iterator[Figure]:
    before, begin = _activities(daemons), time.monotonic()
    time.sleep(seconds)
    after, minutes = _activities(daemons), (time.monotonic() - begin) / 60
    for name, started in daemons.items():
        key, what = _name(count, name)
        size = memory(started.daemon.pid)
        yield Figure(f"{key}.rss", f"{what}: RSS", size.rss, Unit.MB)
        yield Figure(f"{key}.private", f"{what}: private", size.private, Unit.MB)
        wake_ups = after[name].wake_ups - before[name].wake_ups
        yield Figure(f"{key}.wakeups", f"{what}: wake-ups when idle", wake_ups / minutes, Unit.PER_MINUTE)
        cpu_ms = after[name].cpu_ms - before[name].cpu_ms
        yield Figure(f"{key}.cpu", f"{what}: CPU when idle", cpu_ms / minutes, Unit.MS_PER_MINUTE)


def _ready(count: int, starts: Sequence[Mapping[str, float]]) -> Iterator[Figure]:
    for name in starts[0]:
        key, what = _name(count, name)
        seconds = median(start[name] for start in starts)
        yield Figure(f"{key}.ready", f"{what}: start to READY", seconds, Unit.SECONDS)


def _name(count: int, daemon: str) -> tuple[str, str]:
    """Return how the key and the text of a daemon's figures begin."""
    return f"e.{count}.{daemon}", f"{count} {'site' if count == 1 else 'sites'}, {daemon}"


def _activities(daemons: Mapping[str, Started]) -> dict[str, Activity]:
    return {name: activity(started.daemon.pid) for name, started in daemons.items()}
