"""The life of each site: from waiting for its rundir to taking its requests, and back. Runs on the loop.

A site is pending, with a reason, or watching. Whatever touches its rundir is a task on its lane (see inbox); this
module decides which task is next and what its result means. Nothing of one site waits for another.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import define, frozen

from basestation_runner import nss
from basestation_runner.watch import inbox, inotify, lockfile
from basestation_runner.watch.inbox import Inbox, MovedError, NotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from structlog.typing import FilteringBoundLogger

    from basestation_runner.config.model import Application, Config, Site
    from basestation_runner.watch.inbox import Outcome, Place, Scan, Stamp
    from basestation_runner.watch.inotify import Watches
    from basestation_runner.watch.jobs import Jobs
    from basestation_runner.watch.lanes import Lane, Lanes
    from basestation_runner.watch.ledger import Intake, Ledger

T = TypeVar("T")

PER_TASK: Final = 64
"""Requests that one task reads: few enough that another site's turn comes soon."""
MOST_NAMES: Final = 50_000
"""Names of requests that are remembered unread; beyond that the rundir is scanned again later."""
MOST_HUNG: Final = 3
"""Hung tasks of one site, each of which holds a thread, before it is no longer tried."""
STARTING: Final = "it is being looked at"


@frozen(kw_only=True)
class Timing:
    """How long things take, in seconds."""

    settle: float = 2.0  # a file that a scan found is taken when it has not changed for this long
    recheck: float = 60.0
    pause: float = 0.2  # between two looks at the same rundir that were asked for by events
    first_wait: float = 1.0  # before a request that could not be judged is tried again; doubles each time
    longest_wait: float = 30.0
    stale: float = 600.0  # a request's age at the first activation beyond which it is set aside
    hung: float = 10.0


@frozen(kw_only=True)
class Shared:
    """What all sites use."""

    loop: asyncio.AbstractEventLoop
    lanes: Lanes
    watches: Watches
    ledger: Ledger
    jobs: Jobs
    log: FilteringBoundLogger
    timing: Timing
    max_queued: int
    wake: Callable[[], None]


class Sites:
    """All sites of the config."""

    def __init__(self, config: Config, shared: Shared, *, on_change: Callable[[], None]) -> None:
        """`on_change`: some site has begun or ceased to be watched, or has a new reason."""
        self._shared = shared
        self.places: dict[Place, str] = {}  # which site watches which directory
        self.is_paused = False
        self._undecided = set(config.sites)
        self._on_change = on_change
        self._sites = {
            name: SiteWatch(site, shared, self, partial(config.application_for, site))
            for name, site in config.sites.items()
        }
        self.decided = asyncio.Event()
        """Set once every site is watched and was scanned, or is pending."""
        if not self._undecided:
            self.decided.set()

    def __iter__(self) -> Iterator[SiteWatch]:
        return iter(self._sites.values())

    def start(self) -> None:
        """Begin to look at all sites."""
        for site in self:
            site.start()

    def scan(self) -> None:
        """Events were lost: look at everything again."""
        self._shared.log.warning("inotify queue overflow: all rundirs are scanned")
        for site in self:
            site.doubt()

    def unclaimed(self) -> None:
        """An event came before anybody had subscribed to its watch: whoever is just making one looks again."""
        for site in self:
            site.look_again_after_finding()

    def pause(self) -> None:
        """Take no further requests until `go_on`."""
        self.is_paused = True

    def go_on(self) -> None:
        """Take requests again."""
        self.is_paused = False
        for site in self:
            site.take()

    def has_room(self, name: str) -> None:
        """Fewer jobs of a site wait."""
        if name in self._sites:
            self._sites[name].has_room()

    def changed(self, name: str) -> None:
        """Called by a site: it is watched and scanned, or it is pending."""
        self._undecided.discard(name)
        if not self._undecided:
            self.decided.set()
        self._on_change()

    async def stop(self, commit: Callable[[], None], patience: float) -> None:
        """Take nothing more, finish what has begun, give the locks back. A hung site is left as it is."""
        until = self._shared.loop.time() + patience
        self.is_paused = True
        await self._all(until, SiteWatch.settle)
        commit()  # asks for the acknowledgement of what was just accepted
        await self._all(until, SiteWatch.release)
        commit()

    async def _all(self, until: float, ask: Callable[[SiteWatch], asyncio.Future[None] | None]) -> None:
        """Ask something of every site, and wait for what is asked until that time of the loop."""
        waited_for = [future for site in self if (future := ask(site)) is not None]
        if waited_for:
            await asyncio.wait(waited_for, timeout=max(0.0, until - self._shared.loop.time()))


@define(eq=False)
class _Candidate:
    """A file that is taken when it does not change until `due`."""

    stamp: Stamp
    due: float


class SiteWatch:
    """One site. Its state is in `reason`: None while it is watched."""

    def __init__(self, site: Site, shared: Shared, sites: Sites, choose: Callable[[str], Application | None]) -> None:
        self.site = site
        self.reason: str | None = STARTING
        self._shared = shared
        self._sites = sites
        self._log = shared.log.bind(site=site.name)
        self._inbox = Inbox(site, shared.watches, choose)
        self._lane: Lane | None = None
        self._hung = 0
        self._epoch = 0  # counts how often the rundir was lost
        self._timer: asyncio.TimerHandle | None = None

        # While it is pending
        self._is_finding = False
        self._find_again = False
        self._found_at = 0.0
        self._hint: int | None = None  # the watch that may tell when to look again
        self._hint_name: str | None = None

        # While it is watched
        self._place: Place | None = None
        self._watch: int | None = None
        self._names: OrderedDict[str, bool] = (
            OrderedDict()
        )  # requests to be read, and whether they have not changed for a while
        self._is_taking = False
        self._scan_after_names = False
        self._is_scanning = False
        self._scan_again = False
        self._scan_timer: asyncio.TimerHandle | None = None
        self._candidates: dict[str, _Candidate] = {}
        self._candidates_timer: asyncio.TimerHandle | None = None
        self._is_checking = False
        self._check_again = False
        self._waiting: dict[str, None] = {}  # requests that could not be judged
        self._wait = shared.timing.first_wait

        # At all times
        self._in_hand: dict[str, Intake] = {}  # accepted, and not yet known to be out of the rundir
        self._known: dict[bytes, str] = {}  # their identities
        self._uncommitted: dict[str, Intake] = {}
        self._left: set[str] = set()  # those that could not be taken out
        self._was_active = shared.ledger.was_active(site.name)

    def start(self) -> None:
        """Take up what the ledger holds, and look for the rundir."""
        for intake in self._shared.ledger.intake(self.site.name):
            self._remember(intake)
        if self.site.not_supported is not None:
            self._pend(self.site.not_supported)
        else:
            self._find()

    # Pending: finding and arming

    def _find(self) -> None:
        if self._is_finding:
            self._find_again = True
            return
        if self._hung >= MOST_HUNG:  # the next of them that returns brings us here again
            return
        self._set_timer(None)
        if self._lane is None:
            self._lane = self._shared.lanes.lane(on_hung=self._on_hung, on_late=self._on_late)
        self._is_finding = True
        self._find_again = False
        self._found_at = self._shared.loop.time()
        self._run(self._inbox.find, self._on_found)

    def _find_soon(self) -> None:
        """Look again, but not more often than `pause`: events may come without end."""
        if self._is_finding:
            self._find_again = True
            return
        wait = self._found_at + self._shared.timing.pause - self._shared.loop.time()
        if wait <= 0:
            self._find()
        else:
            self._set_timer(self._find, wait)

    def look_again_after_finding(self) -> None:
        """An event may have been meant for the watch that is being made."""
        if self._is_finding:
            self._find_again = True

    def _on_found(self, found: inbox.Found | inbox.Missing) -> None:
        if isinstance(found, inbox.Missing):
            if found.watch is not None:
                self._take_hint(found.watch, found.name)
            self._find_again = self._find_again or found.appeared
            self._pend(found.reason)
            return
        other = self._sites.places.setdefault(found.place, self.site.name)
        if other != self.site.name:
            self._pend(f"{self.site.watch_dir} is the same directory as the rundir of site {other}")
            return
        self._place = place = found.place
        self._run(lambda _: self._inbox.arm(place), self._on_armed)

    def _on_armed(self, armed: inbox.Armed | inbox.Locked) -> None:
        if isinstance(armed, inbox.Locked):
            self._take_hint(armed.watch, None)
            self._pend(f"the lock {self.site.watch_dir}/{lockfile.NAME} is held by process {armed.pid}")
            return
        self._is_finding = False
        self._drop_hint()
        if armed.lock_fault is not None:
            self._log.warning("lock cannot be written: no other daemon is kept away", reason=armed.lock_fault)
        self._watch = armed.watch
        self._shared.watches.subscribe(armed.watch, self._on_event)
        self._acknowledge([intake for job_id, intake in self._in_hand.items() if job_id not in self._uncommitted])
        self._scan()

    def _pend(self, reason: str) -> None:
        """Wait, and look again after a while or when the hint tells."""
        self._is_finding = False
        self._let_go()
        if reason != self.reason:
            self.reason = reason
            self._log.warning("site pending", reason=reason)
        self._sites.changed(self.site.name)
        if self.site.not_supported is None:
            self._set_timer(self._find, self._shared.timing.recheck)
            if self._find_again:
                self._find_soon()

    def _let_go(self) -> None:
        """Forget everything about the rundir but what is in hand."""
        self._epoch += 1
        if self._watch is not None:
            self._shared.watches.unsubscribe(self._watch, self._on_event)
            self._watch = None
        if self._place is not None:
            self._sites.places.pop(self._place, None)
            self._place = None
        for timer in (self._scan_timer, self._candidates_timer):
            if timer is not None:
                timer.cancel()
        self._scan_timer = self._candidates_timer = None
        self._names.clear()
        self._candidates.clear()
        self._waiting.clear()
        self._is_taking = self._is_scanning = self._is_checking = False
        self._scan_again = self._scan_after_names = self._check_again = False

    def _take_hint(self, watch: int, name: str | None) -> None:
        if watch != self._hint:
            self._drop_hint()
            self._hint = watch
            self._shared.watches.subscribe(watch, self._on_hint)
        self._hint_name = name

    def _drop_hint(self) -> None:
        if self._hint is not None:
            self._shared.watches.unsubscribe(self._hint, self._on_hint)
            self._hint = None

    def _on_hint(self, mask: int, name: str) -> None:
        if mask & inotify.GONE or self._hint_name is None or name == self._hint_name:
            self._find_soon()

    # The lane

    def _run(self, work: Callable[[Callable[[str], None]], T], done: Callable[[T], None]) -> None:
        """Have the lane do some work, then `done` or `_on_error`, unless the rundir is lost meanwhile."""
        lane, epoch = self._lane, self._epoch

        def when_done(result: T) -> None:
            if epoch == self._epoch:
                done(result)
            else:
                self._drop(result)

        def when_failed(error: Exception) -> None:
            if epoch == self._epoch:
                self._on_error(error)

        if lane is not None:
            lane.submit(partial(work, lane.progress), when_done, when_failed)

    def _on_error(self, error: Exception) -> None:
        """A task failed: what it was about cannot go on."""
        match error:
            case MovedError():
                self._lose()
            case NotReadyError():
                self._pend(str(error))
            case nss.LookupFailedError():
                self._pend(f"the name service does not answer: {error}")
            case OSError():
                self._pend(f"{self.site.watch_dir}: {error.strerror or error}")
            case _:
                self._log.error("internal error in a rundir's task", exc_info=error)
                self._pend(f"an internal error: {type(error).__name__}: {error}")

    def _on_hung(self, doing: str) -> None:
        self._hung += 1
        self._lane = None
        self._find_again = False
        self._pend(f"{doing} does not answer")

    def _on_late(self, result: object) -> None:
        """What hung has returned. Its result is dropped: whatever it did is found out by looking."""
        self._hung -= 1
        self._drop(result)
        if self.reason is not None:
            self._find_soon()

    def _drop(self, result: object) -> None:
        """Undo the only thing of a result that would last."""
        if isinstance(result, inbox.Armed | inbox.Locked | inbox.Missing) and result.watch is not None:
            self._shared.watches.drop(result.watch)

    # Watching

    def _on_event(self, mask: int, name: str) -> None:
        if mask & inotify.GONE:
            self._lose()
        elif name == lockfile.NAME:
            self._check()
        elif inbox.is_request(name):
            self._candidates.pop(name, None)
            self._enqueue(name, is_settled=False)

    def _lose(self) -> None:
        """The rundir is not where it was."""
        self._is_finding = False
        self._let_go()
        self._find_soon()

    def doubt(self) -> None:
        """Events may have been missed."""
        if self.site.not_supported is not None:
            return
        if self._watch is not None:
            self._check()
            self._scan()
        else:
            self._find_soon()

    def _check(self) -> None:
        """See whether all is as it was: once a minute, and when the lock changes."""
        place = self._place
        if self._watch is None or place is None:
            return
        if self._is_checking:
            self._check_again = True
            return
        self._is_checking = True
        self._run(lambda _: self._inbox.check(place), self._on_checked)
        self._acknowledge([self._in_hand[job_id] for job_id in self._left])

    def _on_checked(self, _: None) -> None:
        self._is_checking = False
        self._set_timer(self._check, self._shared.timing.recheck)
        if self._check_again:
            self._check_again = False
            self._check()

    # Scanning

    def _scan(self) -> None:
        place = self._place
        if place is None:
            return
        if self._is_scanning or self._scan_timer is not None:
            self._scan_again = True
            return
        self._is_scanning = True
        stale_before = None if self._was_active else time.time() - self._shared.timing.stale
        in_hand = frozenset(self._in_hand)
        self._run(
            lambda get_on: self._inbox.scan(get_on, place, in_hand=in_hand, stale_before=stale_before),
            self._on_scanned,
        )

    def _on_scanned(self, scan: Scan) -> None:
        self._is_scanning = False
        self._scan_timer = self._shared.loop.call_later(self._shared.timing.pause, self._scan_due)
        due = self._shared.loop.time() + self._shared.timing.settle
        for name, stamp in scan.seen.items():
            if name not in self._names:
                self._consider(name, stamp, due)
        self._note_activation(scan)
        if self.reason is not None:
            self.reason = None
            self._set_timer(self._check, self._shared.timing.recheck)
            self._log.info("site watching", rundir=self.site.watch_dir, found=len(scan.seen))
            self._sites.changed(self.site.name)

    def _scan_due(self) -> None:
        self._scan_timer = None
        if self._scan_again:
            self._scan_again = False
            self._scan()

    def _note_activation(self, scan: Scan) -> None:
        if scan.stale:
            self._log.warning("stale requests set aside", count=len(scan.stale), requests=list(scan.stale))
        if scan.stale_left:
            # They would be run by a later scan if this counted as the first activation.
            self._log.warning(
                "stale requests ignored: they cannot be moved",
                count=len(scan.stale_left),
                requests=list(scan.stale_left),
            )
        elif not self._was_active:
            self._was_active = True
            self._shared.ledger.first_active(self.site.name, now=time.time())
            self._shared.wake()

    def _consider(self, name: str, stamp: Stamp, due: float) -> None:
        """Take a file if it has not changed when it is `due`: nothing says that it is complete."""
        known = self._candidates.get(name)
        if known is None or known.stamp != stamp:
            self._candidates[name] = _Candidate(stamp, due)
        if self._candidates_timer is None:
            self._candidates_timer = self._shared.loop.call_at(due, self._look_again)

    def _look_again(self) -> None:
        self._candidates_timer = None
        place = self._place
        now = self._shared.loop.time()
        due = {name: candidate for name, candidate in self._candidates.items() if candidate.due <= now}
        if place is not None and due:
            self._run(lambda get_on: self._inbox.look_again(get_on, place, due), partial(self._on_looked, due))
        elif self._candidates:
            self._plan_to_look_again()

    def _on_looked(self, due: dict[str, _Candidate], found: dict[str, Stamp]) -> None:
        next_due = self._shared.loop.time() + self._shared.timing.settle
        for name, candidate in due.items():
            if self._candidates.get(name) is not candidate:  # an event was faster
                continue
            del self._candidates[name]
            stamp = found.get(name)
            if stamp == candidate.stamp:
                self._enqueue(name, is_settled=True)
            elif stamp is not None:
                self._consider(name, stamp, next_due)
        if self._candidates:
            self._plan_to_look_again()

    def _plan_to_look_again(self) -> None:
        if self._candidates_timer is None:
            due = min(candidate.due for candidate in self._candidates.values())
            self._candidates_timer = self._shared.loop.call_at(due, self._look_again)

    # Taking

    def _enqueue(self, name: str, *, is_settled: bool) -> None:
        if len(self._names) < MOST_NAMES or name in self._names:
            self._names[name] = is_settled
        else:
            self._scan_after_names = True
        self.take()

    def take(self) -> None:
        """Read the next requests, unless that is going on or must wait."""
        place = self._place
        if self._is_taking or self._sites.is_paused or place is None or self._watch is None:
            return
        if not self._names:
            if self._scan_after_names:
                self._scan_after_names = False
                self._scan()
            return
        room = self._shared.max_queued - self._shared.jobs.queued(self.site.name)
        if room <= 0:  # the rest stays in the rundir; `has_room` goes on
            return
        names = {name: self._names.pop(name) for name in tuple(islice(self._names, min(room, PER_TASK)))}
        self._is_taking = True
        self._run(lambda get_on: self._inbox.take(get_on, place, names), partial(self._on_taken, place))

    def has_room(self) -> None:
        """Fewer jobs of this site wait."""
        if self._names:
            self.take()

    def _on_taken(self, place: Place, outcomes: list[Outcome]) -> None:
        self._is_taking = False
        for outcome in outcomes:
            match outcome:
                case inbox.Taken():
                    self._accept(place, outcome)
                case inbox.Unsettled(name, stamp):
                    self._consider(name, stamp, self._shared.loop.time() + self._shared.timing.settle)
                case inbox.Waiting(name, reason):
                    self._try_later(name, reason)
                case inbox.Rejected(name, reason, now):
                    self._log.warning("request rejected", request=name, reason=reason, moved_to=now)
        self.take()

    def _accept(self, place: Place, taken: inbox.Taken) -> None:
        if taken.identity in self._known:  # seen twice, or it could not be taken out of the rundir
            return
        intake = self._shared.jobs.accept(self.site, taken, place.inode)
        self._remember(intake)
        if not self._uncommitted:
            self._shared.ledger.after(self._acknowledge_committed)
        self._uncommitted[intake.job_id] = intake

    def _remember(self, intake: Intake) -> None:
        self._in_hand[intake.job_id] = intake
        self._known[intake.identity] = intake.job_id

    def _try_later(self, name: str, reason: str) -> None:
        if not self._waiting:
            self._log.warning("request cannot be judged now", request=name, reason=reason, retry_seconds=self._wait)
            self._shared.loop.call_later(self._wait, self._try_again)
            self._wait = min(self._wait * 2, self._shared.timing.longest_wait)
        self._waiting[name] = None

    def _try_again(self) -> None:
        names, self._waiting = self._waiting, {}
        for name in names:
            self._enqueue(name, is_settled=False)

    # Acknowledging

    def _acknowledge_committed(self) -> None:
        committed, self._uncommitted = self._uncommitted, {}
        self._acknowledge(committed.values())

    def _acknowledge(self, requests: Iterable[Intake]) -> None:
        """Take requests out of the rundir, those that were accepted from this directory."""
        place, lane = self._place, self._lane
        if place is None or lane is None:  # done when the rundir is watched again
            return
        here = [request for request in requests if request.rundir == place.inode]
        for start in range(0, len(here), PER_TASK):
            part = here[start : start + PER_TASK]
            work = partial(self._inbox.acknowledge, lane.progress, place, part)
            lane.submit(work, self._on_acknowledged, self._on_error)

    def _on_acknowledged(self, results: list[inbox.Acknowledged | inbox.Left]) -> None:
        for result in results:
            if isinstance(result, inbox.Left):
                if not self._left:
                    self._log.warning(
                        "requests cannot be removed from the rundir: each is run once", reason=result.reason
                    )
                self._left.add(result.job_id)
            elif (intake := self._in_hand.pop(result.job_id, None)) is not None:
                self._known.pop(intake.identity, None)
                self._left.discard(result.job_id)
                self._shared.ledger.removed(result.job_id)
        self._shared.wake()

    # Stopping

    def settle(self) -> asyncio.Future[None] | None:
        """Return what is done once everything that has begun is done; None if nothing has."""
        self._set_timer(None)
        return self._when_done(lambda: None)

    def release(self) -> asyncio.Future[None] | None:
        """Give the lock back; return what is done after that."""
        place, is_watched = self._place, self._watch is not None
        if place is None or not is_watched:
            return None
        return self._when_done(lambda: self._inbox.release(place))

    def _when_done(self, work: Callable[[], None]) -> asyncio.Future[None] | None:
        if self._lane is None:
            return None
        future: asyncio.Future[None] = self._shared.loop.create_future()

        def done(_: object) -> None:
            if not future.done():
                future.set_result(None)

        self._lane.submit(work, done, done)
        return future

    def _set_timer(self, callback: Callable[[], None] | None, delay: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if callback is None else self._shared.loop.call_later(delay, callback)
