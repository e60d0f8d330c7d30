"""Which job starts next. Pure: no clock, no ledger, no helper; the cost of every call is flat in the number of jobs.

A queue runs one job at a time, first in first out; a job that is put back keeps its place. Sites take turns, so that a
site with a thousand queues delays another by one job. Interactive jobs have bounds of their own and never wait for
normal ones of another queue.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from attrs import Factory, define, frozen

from basestation_runner.watch.states import State

INTERACTIVE_PER_SITE: Final = 16
INTERACTIVE_PER_CORE: Final = 8
RESERVED_PART: Final = 4
"""One in so many of the host's places is for sites of which nothing runs."""

HOST_HELD: Final = "the host is held"
SITE_HELD: Final = "its site is held"

Kind = int
_NORMAL: Final[Kind] = 0
_INTERACTIVE: Final[Kind] = 1


@define(eq=False)
class Job:
    """A job that has not ended, as it is held in memory; everything else about it is in the ledger.

    `seq` orders jobs by their acceptance. `held` says why the job must not be started at all at present; `delayed` is
    set from the moment it was put back until it may be tried again.
    """

    seq: int
    job_id: str
    site: str
    application: str
    script: str
    queue: tuple[str, ...]
    interactive: bool
    state: State = State.QUEUED
    held: str | None = None
    delayed: bool = False
    postponed: int = 0
    postponed_because: str | None = None
    cancelled_by: int | None = None  # uid of whoever wants it to be ended
    accepted_at: float | None = None  # on the loop's clock; None: by an earlier watcher
    absent_since: float | None = None  # on the loop's clock: since when its account or group has not been found
    from_before_boot: bool = False
    uses: tuple[tuple[str, int], ...] = ()
    """What it takes of the host's resources while it runs."""

    @property
    def kind(self) -> Kind:
        """Which bounds the job counts against."""
        return _INTERACTIVE if self.interactive else _NORMAL


@frozen
class Limits:
    """The host's bounds; `per_site` holds those of sites that have one for their normal jobs."""

    normal: int
    interactive: int
    per_site: Mapping[str, int]
    interactive_per_site: int = INTERACTIVE_PER_SITE
    has_reserve: bool = False
    """Keep a part of the host's places for sites of which nothing runs: whoever fills the rest stops nobody."""
    resources: Mapping[str, int] = Factory(dict)
    """What the host offers to jobs that use something, by name."""


@frozen
class Choice:
    """The job to start now, and how many wait behind it in its queue."""

    job: Job
    queue_length: int


@define(eq=False)
class _Queue:
    """Jobs that must not run side by side.

    `chosen` are those that were chosen once and have not ended, by age: more than one only when a ledger brings them
    from a time of other queues. `running` is the part of them that was not put back. `offered` is set while the queue
    is lined up at its site.
    """

    key: tuple[str, ...]
    site: "_Site"
    chosen: list[Job] = Factory(list)
    running: set[Job] = Factory(set)
    waiting: deque[Job] = Factory(deque)
    offered: bool = False

    @property
    def first(self) -> Job | None:
        """The job that starts next in this queue."""
        for job in self.chosen:
            if job not in self.running:
                return job
        return self.waiting[0] if self.waiting else None


@define(eq=False)
class _Class:
    """One site's queues that could start a job of one kind, by the age of that job, and how many such jobs run."""

    limit: int | None
    ready: list[tuple[int, _Queue]] = Factory(list)
    running: int = 0

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.running >= self.limit


@define(eq=False)
class _Site:
    name: str
    classes: tuple[_Class, _Class]
    queued: int = 0
    is_held: bool = False

    @property
    def running(self) -> int:
        return sum(jobs.running for jobs in self.classes)


@define(eq=False)
class _Host:
    """One kind of job on the whole host: its bound, and the sites that could start one, in the order of their turns."""

    limit: int
    reserve: int
    turns: OrderedDict[str, _Site] = Factory(OrderedDict)
    idle: OrderedDict[str, _Site] = Factory(OrderedDict)  # those of them that run no such job
    running: int = 0

    def why_not(self, jobs: _Class) -> str | None:
        """Say why a site with these jobs may not start another; None if it may."""
        if self.running >= self.limit:
            return f"the host runs as many jobs as it may ({self.limit})"
        if jobs.running and self.running >= self.limit - self.reserve:
            return f"the host's last places ({self.reserve}) are kept for sites of which nothing runs"
        return None

    def next_site(self) -> _Site | None:
        """Take the site whose turn it is out of the line; None if none of them may start a job now."""
        line = self.turns if self.running < self.limit - self.reserve else self.idle
        if not line or self.running >= self.limit:
            return None
        name, site = line.popitem(last=False)
        for other in (self.turns, self.idle):
            other.pop(name, None)
        return site


class Dispatcher:
    """Holds every job that has not ended and chooses among those that wait."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._hosts = tuple(_Host(*bounds) for bounds in _bounds(limits))
        self._sites: dict[str, _Site] = {}
        self._queues: dict[tuple[str, ...], _Queue] = {}
        self._jobs: dict[str, Job] = {}
        self._is_held = False
        self._used: Counter[str] = Counter()  # of the host's resources
        self._short: dict[tuple[str, ...], _Queue] = {}  # queues whose first jobs lack resources

    def job(self, job_id: str) -> Job | None:
        """Return the job with this id unless it has ended or was never here."""
        return self._jobs.get(job_id)

    def jobs(self) -> Iterator[Job]:
        """Return all jobs that have not ended."""
        return iter(self._jobs.values())

    def of_queue(self, key: tuple[str, ...]) -> Iterator[Job]:
        """Return the jobs of one queue, the running one first."""
        queue = self._queues.get(key)
        if queue is not None:
            yield from queue.chosen
            yield from queue.waiting

    def queued(self, site: str) -> int:
        """Return how many jobs of the site wait."""
        return self._sites[site].queued if site in self._sites else 0

    def running(self, site: str) -> int:
        """Return how many jobs of the site have been chosen and have neither ended nor been put back."""
        return self._sites[site].running if site in self._sites else 0

    def hold(self, site: str | None, *, is_held: bool) -> None:
        """Choose no job of a site, or none at all if it is None, or choose again."""
        if site is None:
            self._is_held = is_held
            return
        held = self._site(site)
        held.is_held = is_held
        for kind in (_INTERACTIVE, _NORMAL):
            self._update_turn(held, kind)

    @property
    def total_running(self) -> int:
        """How many jobs have been chosen and have neither ended nor been put back."""
        return sum(host.running for host in self._hosts)

    @property
    def total_queued(self) -> int:
        """How many jobs wait on the whole host."""
        return len(self._jobs) - self.total_running

    def add(self, job: Job) -> None:
        """Take a new job or, at start, one that the ledger knows; in the order of `seq`.

        A job that is not queued counts as running, whatever the bounds say, and blocks its queue.
        """
        queue = self._queue(job)
        self._jobs[job.job_id] = job
        if job.state is State.QUEUED:
            queue.waiting.append(job)
            queue.site.queued += 1
            self._offer(queue)
        else:
            self._withdraw(queue)
            queue.chosen.append(job)
            self._run(queue, job)

    def renew(self, limits: Limits, names: Collection[str], update: Callable[[Job], None]) -> None:
        """Take other bounds, and have every job of some sites changed: what it uses, its queue, what holds it.

        `update` changes one job. Each keeps its age, and whether it runs or was chosen. Costs as much as these sites
        have jobs.
        """
        self._limits = limits
        for host, bounds in zip(self._hosts, _bounds(limits), strict=True):
            host.limit, host.reserve = bounds
        queues = [queue for queue in self._queues.values() if queue.site.name in names]
        running = {job for queue in queues for job in queue.running}
        chosen = {job for queue in queues for job in queue.chosen}
        jobs = sorted(chosen.union(*(queue.waiting for queue in queues)), key=lambda job: job.seq)
        for job in running:
            self._hosts[job.kind].running -= 1
            self._used.subtract(dict(job.uses))
        for queue in queues:
            del self._queues[queue.key]
            self._short.pop(queue.key, None)
        for name in names:
            self._begin_anew(name)
        for job in jobs:
            update(job)
            queue = self._queue(job)
            if job in chosen:
                queue.chosen.append(job)
            else:
                queue.waiting.append(job)
            if job in running:
                self._run(queue, job)
            else:
                queue.site.queued += 1
        for queue in [*(self._queues[job.queue] for job in jobs), *self._short.values()]:
            self._offer(queue)

    def _begin_anew(self, name: str) -> None:
        """Forget what is known of a site besides whether it is held."""
        for host in self._hosts:
            for line in (host.turns, host.idle):
                line.pop(name, None)
        known = self._sites.pop(name, None)
        if known is not None:
            self._site(name).is_held = known.is_held

    def _queue(self, job: Job) -> _Queue:
        """Return a job's queue, which is made if there is none."""
        queue = self._queues.get(job.queue)
        if queue is None:
            queue = self._queues[job.queue] = _Queue(job.queue, self._site(job.site))
        job.queue = queue.key  # one object for all jobs of a queue
        return queue

    def next(self) -> Choice | None:
        """Choose the next job to start and count it as running; None if nothing may start now."""
        if self._is_held:
            return None
        for kind in (_INTERACTIVE, _NORMAL):
            taken = self._take(kind)
            if taken is None:
                continue
            site, queue = taken
            if queue.chosen:
                job = queue.chosen[0]
            else:
                job = queue.waiting.popleft()
                queue.chosen.append(job)
            site.queued -= 1
            self._run(queue, job)  # lines the site up for its next turn, behind the others
            return Choice(job, len(queue.waiting))
        return None

    def _take(self, kind: Kind) -> tuple[_Site, _Queue] | None:
        """Take the queue whose first job starts next out of the line; None if no job of this kind may start."""
        while (site := self._hosts[kind].next_site()) is not None:
            _, queue = heappop(site.classes[kind].ready)
            queue.offered = False
            if queue.first is None or self._lack(queue.first) is None:
                return site, queue
            self._short[queue.key] = queue  # another job has taken its resources since it was lined up
            self._update_turn(site, kind)
        return None

    def put_back(self, job: Job) -> None:
        """A chosen job did not start: it frees its place among the running ones, not its place in its queue."""
        queue = self._queues[job.queue]
        job.delayed = True
        if job in queue.running:
            queue.site.queued += 1
            self._stop(queue, job)
            self._offer(queue)  # the queue may hold an older one that was put back before

    def retry(self, job: Job) -> None:
        """A job that was put back may be chosen again, unless it has ended or runs after all."""
        job.delayed = False
        if job.job_id in self._jobs:
            self._offer(self._queues[job.queue])

    def change(self, job: Job, *, application: str, interactive: bool, uses: tuple[tuple[str, int], ...]) -> None:
        """A job that waits is of another application from now on, and may be chosen."""
        queue = self._queues[job.queue]
        self._withdraw(queue)
        job.application, job.interactive, job.uses = application, interactive, uses
        job.held, job.delayed = None, False
        self._offer(queue)

    def resume(self, job: Job) -> None:
        """A job that was put back, or not chosen by us at all, turns out to run."""
        queue = self._queues[job.queue]
        if job not in queue.running:
            self._withdraw(queue)
            if job not in queue.chosen:
                queue.waiting.remove(job)
                queue.chosen.append(job)
            job.delayed = False
            queue.site.queued -= 1
            self._run(queue, job)

    def remove(self, job: Job) -> None:
        """The job has ended: its queue goes on."""
        queue = self._queues[job.queue]
        self._withdraw(queue)
        del self._jobs[job.job_id]
        if job in queue.running:
            self._stop(queue, job)
        else:
            queue.site.queued -= 1
        if job in queue.chosen:
            queue.chosen.remove(job)
        else:  # it ended without having been chosen: rare, so the cost may grow with the queue
            queue.waiting.remove(job)
        if queue.first is None and not queue.running:
            del self._queues[queue.key]
        else:
            self._offer(queue)

    def reason(self, job: Job) -> str:
        """Say in a person's words why a job waits."""
        queue = self._queues[job.queue]
        site, host = queue.site.classes[job.kind], self._hosts[job.kind]
        if queue.running or queue.first is not job:
            return "another job of its queue is before it"
        if job.held is not None:
            return job.held
        if self._is_held or queue.site.is_held:
            return HOST_HELD if self._is_held else SITE_HELD
        if job.delayed:
            return job.postponed_because or "it is tried again soon"
        full = f"its site runs as many jobs as it may ({site.limit})" if site.is_full else None
        return self._lack(job) or full or host.why_not(site) or "it is about to start"

    def _site(self, name: str) -> _Site:
        site = self._sites.get(name)
        if site is None:
            normal, interactive = _Class(self._limits.per_site.get(name)), _Class(self._limits.interactive_per_site)
            site = self._sites[name] = _Site(name, (normal, interactive))
        return site

    def _offer(self, queue: _Queue) -> None:
        """Line the queue up at its site if its first job could start now."""
        first = queue.first
        if first is None or first.held is not None or first.delayed or queue.running or queue.offered:
            return
        if first.uses:
            if self._lack(first) is not None:
                self._short[queue.key] = queue
                return
            self._short.pop(queue.key, None)
        queue.offered = True
        heappush(queue.site.classes[first.kind].ready, (first.seq, queue))
        self._update_turn(queue.site, first.kind)

    def _withdraw(self, queue: _Queue) -> None:
        """Take the queue out of the line. Rare, so its cost may grow with the number of ready queues of the site."""
        self._short.pop(queue.key, None)
        first = queue.first
        if first is None or not queue.offered:
            return
        queue.offered = False
        ready = queue.site.classes[first.kind].ready
        ready.remove((first.seq, queue))
        heapify(ready)
        self._update_turn(queue.site, first.kind)

    def _run(self, queue: _Queue, job: Job) -> None:
        queue.running.add(job)
        queue.site.classes[job.kind].running += 1
        self._hosts[job.kind].running += 1
        self._used.update(dict(job.uses))
        self._update_turn(queue.site, job.kind)

    def _stop(self, queue: _Queue, job: Job) -> None:
        queue.running.remove(job)
        queue.site.classes[job.kind].running -= 1
        self._hosts[job.kind].running -= 1
        self._update_turn(queue.site, job.kind)
        if job.uses:
            self._used.subtract(dict(job.uses))
            short, self._short = self._short, {}  # rare, so its cost may grow with the queues that lack resources
            for other in short.values():
                self._offer(other)

    def _lack(self, job: Job) -> str | None:
        """Say which of the host's resources a job lacks; None if there is enough."""
        for name, amount in job.uses:
            offered = self._limits.resources.get(name, 0)
            if amount > offered:
                return f"it needs {amount} {name}, of which this host offers {offered}"
            if amount > offered - self._used[name]:
                return f"it needs {amount} {name}, of which {self._used[name]} of {offered} are in use"
        return None

    def _update_turn(self, site: _Site, kind: Kind) -> None:
        """Keep the site in the order of turns if it could start a job of this kind, and only then."""
        host, jobs = self._hosts[kind], site.classes[kind]
        could_start = bool(jobs.ready) and not jobs.is_full and not site.is_held
        for line, belongs in ((host.turns, could_start), (host.idle, could_start and not jobs.running)):
            if belongs:
                line.setdefault(site.name, site)
            else:
                line.pop(site.name, None)


def _bounds(limits: Limits) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return, for each kind of job, how many the host runs, and how many places of these are kept."""
    normal, interactive = (
        (limit, limit // RESERVED_PART if limits.has_reserve else 0) for limit in (limits.normal, limits.interactive)
    )
    return normal, interactive
