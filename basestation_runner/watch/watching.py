"""One site's rundir while it is watched: which files are taken, and when. On the loop; made anew for each time.

Whatever touches the rundir is a task on the site's lane. When the rundir is lost this object is over: it asks for
nothing more, and results that come later mean nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import frozen

from basestation_runner.watch import inbox, inotify, lockfile

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from basestation_runner.watch.inbox import Outcome, Scan, Stamp
    from basestation_runner.watch.ledger import Intake
    from basestation_runner.watch.rundir import GetOn, Place
    from basestation_runner.watch.sitewatch import SiteWatch

T = TypeVar("T")

PER_TASK: Final = 64
"""Requests that one task deals with: few enough that another site's turn comes soon."""
MOST_NAMES: Final = 50_000
"""Names of requests that are remembered unread; beyond that the rundir is scanned again later."""


@frozen
class _Candidate:
    """A file that is taken if it has not changed when it is `due`: nothing says that it is complete."""

    stamp: Stamp
    due: float


class Watching:
    """The time from arming a rundir to losing it."""

    def __init__(self, owner: SiteWatch, place: Place, watch: int, *, is_silent: bool) -> None:
        """Nothing happens before `start`. `is_silent`: there may be no event for a request."""
        self.place = place
        self._owner = owner
        self._watch = watch
        self._is_silent = is_silent
        self._log = owner.log
        self._loop = owner.shared.loop
        self._timing = owner.shared.timing
        self._is_over = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._names: OrderedDict[str, Stamp | None] = OrderedDict()  # to be read, and how it has been for a while
        self._is_taking = False
        self._candidates: dict[str, _Candidate] = {}
        self._in_hand: dict[str, Stamp] = {}  # found again after they were accepted: they cannot be removed
        self._unjudged: dict[str, None] = {}
        self._wait = self._timing.first_wait
        self._is_scanning = False
        self._must_scan = False
        self._is_checking = False
        self._must_check = False

    def start(self) -> None:
        """Complete what was interrupted, then list what is there."""
        self._owner.watches.subscribe(self._watch, self._on_event)
        self.acknowledge(self._owner.in_hand.in_directory(self.place.inode))
        self.scan()
        self._later("check", self._timing.recheck, self.check)
        if self._is_silent:
            self._later("poll", self._timing.poll, self._poll)

    def end(self) -> None:
        """The rundir is lost, or the watcher stops."""
        self._is_over = True
        self._owner.watches.unsubscribe(self._watch, self._on_event)
        for timer in self._timers.values():
            timer.cancel()

    def doubt(self) -> None:
        """Events may have been missed."""
        self.check()
        self.scan()

    def _on_event(self, mask: int, name: str) -> None:
        if mask & inotify.GONE:
            self._owner.lose()
        elif name == lockfile.NAME:
            self.check()
        elif mask & (inotify.CLOSE_WRITE | inotify.MOVED_TO) and inbox.is_request(name):
            self._candidates.pop(name, None)
            self._enqueue(name)

    def _run(self, work: Callable[[GetOn], T], done: Callable[[T], None]) -> None:
        """Have the lane do some work. Its result counts unless this is over then; so does its failure."""

        def when_done(result: T) -> None:
            if not self._is_over:
                done(result)

        def when_failed(error: Exception) -> None:
            if not self._is_over:
                self._owner.lose(error)

        self._owner.run(work, when_done, when_failed)

    def _later(self, what: str, delay: float, callback: Callable[[], None]) -> None:
        """Call back after a while; one timer for each purpose."""
        if what in self._timers:
            self._timers[what].cancel()
        self._timers[what] = self._loop.call_later(delay, self._due, what, callback)

    def _due(self, what: str, callback: Callable[[], None]) -> None:
        del self._timers[what]
        callback()

    # Checking: once a minute, and when the lock changes

    def check(self) -> None:
        """See whether all is as it was, and try again what could not be removed."""
        if self._is_checking:
            self._must_check = True
            return
        self._is_checking = True
        self._run(lambda _: self._owner.rundir.check(self.place), self._on_checked)
        self.acknowledge(self._owner.in_hand.in_directory(self.place.inode, only_stuck=True))

    def _on_checked(self, _: None) -> None:
        self._is_checking = False
        self._later("check", self._timing.recheck, self.check)
        if self._must_check:  # the lock may be changed without end
            self._must_check = False
            self._later("check", self._timing.pause, self.check)

    # Scanning

    def scan(self) -> None:
        """List the rundir; what is found is taken when it has not changed for a while."""
        if self._is_scanning or "scan" in self._timers:
            self._must_scan = True
            return
        self._is_scanning = True
        in_hand = self._owner.in_hand.job_ids
        work = partial(
            self._owner.inbox.scan,
            place=self.place,
            in_hand=in_hand,
            stale_before=self._owner.stale_before,
            is_by_coming=self._owner.is_taken_over,
        )
        self._run(work, self._on_scanned)

    def _on_scanned(self, scan: Scan) -> None:
        self._is_scanning = False
        self._later("scan", self._timing.pause, self._scan_if_asked)
        due = self._loop.time() + self._timing.settle
        self._in_hand = {name: stamp for name, stamp in self._in_hand.items() if scan.seen.get(name) == stamp}
        for name, stamp in scan.seen.items():
            if name not in self._names and name not in self._in_hand:
                self._consider(name, stamp, due)
        self._owner.watched(scan)

    def _scan_if_asked(self) -> None:
        if self._must_scan:
            self._must_scan = False
            self.scan()

    def _poll(self) -> None:
        self._later("poll", self._timing.poll, self._poll)
        self.scan()

    def _consider(self, name: str, stamp: Stamp, due: float) -> None:
        known = self._candidates.get(name)
        if known is None or known.stamp != stamp:
            self._candidates[name] = _Candidate(stamp, due)
        if "settle" not in self._timers:
            self._later("settle", due - self._loop.time(), self._look_again)

    def _look_again(self) -> None:
        now = self._loop.time()
        due = {name: candidate for name, candidate in self._candidates.items() if candidate.due <= now}
        if due:
            work = partial(self._owner.inbox.look_again, place=self.place, names=due)
            self._run(work, partial(self._on_looked, due))
        else:
            self._plan_to_look_again()

    def _on_looked(self, due: dict[str, _Candidate], found: dict[str, Stamp]) -> None:
        next_due = self._loop.time() + self._timing.settle
        for name, candidate in due.items():
            if self._candidates.get(name) is not candidate:  # an event was faster
                continue
            del self._candidates[name]
            stamp = found.get(name)
            if stamp == candidate.stamp:
                self._enqueue(name, candidate.stamp)
            elif stamp is not None:
                self._consider(name, stamp, next_due)
        self._plan_to_look_again()

    def _plan_to_look_again(self) -> None:
        if self._candidates and "settle" not in self._timers:
            due = min(candidate.due for candidate in self._candidates.values())
            self._later("settle", due - self._loop.time(), self._look_again)

    # Taking

    def _enqueue(self, name: str, rested: Stamp | None = None) -> None:
        if len(self._names) < MOST_NAMES or name in self._names:
            self._names[name] = rested
            self.take()
        else:
            self._must_scan = True

    def take(self) -> None:
        """Read the next requests, unless that is going on or must wait; what has no room stays in the rundir."""
        if self._is_taking or self._owner.is_paused:
            return
        room = self._owner.room
        names = {name: self._names.pop(name) for name in tuple(islice(self._names, min(max(0, room), PER_TASK)))}
        if names:
            self._is_taking = True
            self._run(partial(self._owner.inbox.take, place=self.place, names=names), self._on_taken)
        elif not self._names and "scan" not in self._timers:
            self._scan_if_asked()

    def _on_taken(self, outcomes: list[Outcome]) -> None:
        self._is_taking = False
        for outcome in outcomes:
            match outcome:
                case inbox.Taken():
                    self._wait = self._timing.first_wait
                    if not self._owner.accept(self.place, outcome):
                        self._in_hand[outcome.name] = outcome.stamp
                case inbox.Unsettled(name, stamp):
                    self._consider(name, stamp, self._loop.time() + self._timing.settle)
                case inbox.Waiting(name, reason):
                    self._try_later(name, reason)
                case inbox.Rejected():
                    self._owner.rejected(outcome)
        self.take()

    def _try_later(self, name: str, reason: str) -> None:
        if not self._unjudged:
            self._log.warning("request cannot be judged now", request=name, reason=reason, retry_seconds=self._wait)
            self._later("wait", self._wait, self._try_again)
            self._wait = min(self._wait * 2, self._timing.longest_wait)
        self._unjudged[name] = None

    def _try_again(self) -> None:
        names, self._unjudged = self._unjudged, {}
        for name in names:
            self._enqueue(name)

    # Acknowledging

    def acknowledge(self, requests: Iterable[Intake]) -> None:
        """Take accepted requests out of the rundir. What comes of that counts even when this is over."""
        left = list(requests)
        while left:
            part, left = left[:PER_TASK], left[PER_TASK:]
            work = partial(self._owner.inbox.acknowledge, place=self.place, requests=part)
            self._owner.run(work, self._owner.acknowledged, self._on_failed_acknowledgement)

    def _on_failed_acknowledgement(self, error: Exception) -> None:
        if not self._is_over:
            self._owner.lose(error)
