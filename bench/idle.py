"""Measurement e: what daemons cost that have nothing to do, by their number of sites, and what a running job costs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from basestation_runner.errors import RunnerError
from bench.book import Book
from bench.figures import Figure, Unit
from bench.host import Host
from bench.processes import activity, descendants, memory, title
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
                    book.note(_ready(count, starts))
                    _settle(daemons)
                    book.note(_idle(count, _processes(daemons), session.plan.idle))
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
        all_of_them = descendants(daemons["helper"].daemon.pid)
        found = [memory(pid) for pid in all_of_them if title(pid).startswith("runner-keeper:")]
        if not found:
            raise RunnerError("no job has a keeper", where=str(installation.top))
        book.note(
            [
                Figure("e.keepers", "keepers of running jobs", len(found), Unit.COUNT),
                Figure("e.keeper.private", "a keeper of them: private", median(m.private for m in found), Unit.MB),
            ]
        )


def _processes(daemons: Mapping[str, Started]) -> dict[str, int]:
    """Return the pids of the daemons and of all that they have started, each with a name of its own."""
    found: dict[str, int] = {}
    for daemon, started in daemons.items():
        found[daemon] = started.daemon.pid
        for pid in descendants(started.daemon.pid):
            name = title(pid).removeprefix("runner-")
            names = (name, *(f"{name}-{number}" for number in range(2, len(found) + 2)))
            found[next(free for free in names if free not in found)] = pid
    return found


def _settle(daemons: Mapping[str, Started]) -> None:
    """Wait until the daemons do nothing more, but not for ever: some are never quite still."""
    seen = _cpu_ms(daemons)
    for _ in range(_SETTLES):
        time.sleep(_SETTLE)
        now = _cpu_ms(daemons)
        if now - seen < _SETTLED_MS:
            return
        seen = now


def _cpu_ms(daemons: Mapping[str, Started]) -> float:
    found = map(activity, _processes(daemons).values())
    return sum(done.cpu_ms for done in found if done is not None)


def _idle(count: int, processes: Mapping[str, int], seconds: float) -> Iterator[Figure]:
    before, begin = {name: activity(pid) for name, pid in processes.items()}, time.monotonic()
    time.sleep(seconds)
    minutes = (time.monotonic() - begin) / 60
    for name, pid in processes.items():
        then, now = before[name], activity(pid)
        if then is None or now is None:
            continue
        key, what = _name(count, name)
        size = memory(pid)
        yield Figure(f"{key}.rss", f"{what}: RSS", size.rss, Unit.MB)
        yield Figure(f"{key}.private", f"{what}: private", size.private, Unit.MB)
        wake_ups, cpu_ms = now.wake_ups - then.wake_ups, now.cpu_ms - then.cpu_ms
        yield Figure(f"{key}.wakeups", f"{what}: wake-ups when idle", wake_ups / minutes, Unit.PER_MINUTE)
        yield Figure(f"{key}.cpu", f"{what}: CPU when idle", cpu_ms / minutes, Unit.MS_PER_MINUTE)


def _ready(count: int, starts: Sequence[Mapping[str, float]]) -> Iterator[Figure]:
    for name in starts[0]:
        key, what = _name(count, name)
        seconds = median(start[name] for start in starts)
        yield Figure(f"{key}.ready", f"{what}: start to READY", seconds, Unit.SECONDS)


def _name(count: int, process: str) -> tuple[str, str]:
    """Return how the key and the text of a process's figures begin."""
    return f"e.{count}.{process}", f"{count} {'site' if count == 1 else 'sites'}, {process}"
