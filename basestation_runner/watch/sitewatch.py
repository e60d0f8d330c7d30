"""The life of one site: pending with a reason, or watching. Runs on the loop.

Finds the rundir, arms it, and begins again when it is lost; keeps what outlives that: the lane and what is in hand.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from basestation_runner import nss
from basestation_runner.errors import RunnerError
from basestation_runner.repeats import Repeats
from basestation_runner.watch import inbox, inotify, lockfile, takeover
from basestation_runner.watch.inbox import Inbox
from basestation_runner.watch.inhand import InHand
from basestation_runner.watch.inotify import Watches
from basestation_runner.watch.rundir import Armed, Locked, Missing, MovedError, NotReadyError, Rundir
from basestation_runner.watch.watching import Watching

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from basestation_runner.config.model import Application, Site
    from basestation_runner.runfile import Request
    from basestation_runner.watch.inbox import Scan
    from basestation_runner.watch.lanes import Lane
    from basestation_runner.watch.rundir import GetOn, Place
    from basestation_runner.watch.shared import Shared
    from basestation_runner.watch.sites import Sites

T = TypeVar("T")

MOST_HUNG: Final = 3
"""Hung tasks of one site, each of which holds a thread, before it is no longer tried."""
MOST_REJECTIONS_LOGGED: Final = 10
"""Rejected requests of one site that are logged one by one before the others are counted."""
NOT_YET: Final = "it is being looked at"


class SiteWatch:
    """One site. `reason` says why it is pending; None while it is watched and has been scanned."""

    def __init__(self, site: Site, shared: Shared, sites: Sites, choose: Callable[[Request], Application]) -> None:
        """`choose` returns a request's application, or raises RequestError. Nothing happens before `start`."""
        self.site = site
        self.shared = shared
        self.log = shared.log.bind(site=site.name)
        self.reason: str | None = NOT_YET
        self.watches = shared.watches
        self.rundir = Rundir(site, self.watches)
        self.inbox = Inbox(self.rundir, choose)
        self.in_hand = InHand(shared.ledger.intake(site.name))
        self.remarks: dict[str, str] = {}
        """What is not as it should be while the site is watched, by a word for each kind."""
        self._to_give_back = dict(shared.ledger.to_give_back(site.name))
        self._given_back: list[asyncio.Future[None]] = []
        self._was_active = shared.ledger.was_active(site.name)
        self._taken_over_at = takeover.read(shared.ledger.path.parent, site.name)
        self._stale_before: float | None = None
        self._stale_left: tuple[str, ...] = ()
        self._overflows = Repeats(shared.loop.call_later)
        self._rejections = Repeats(shared.loop.call_later, most=MOST_REJECTIONS_LOGGED)
        self._sites = sites
        self._is_retired = False
        self._watching: Watching | None = None
        self._claimed: Place | None = None
        self._lane: Lane | None = None
        self._hung = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_finding = False
        self._must_find = False
        self._found_at = 0.0
        self._hint: int | None = None  # the watch that may tell when to look again
        self._hint_name: str | None = None

    # What Sites asks

    def start(self) -> None:
        """Look for the rundir."""
        with suppress(RunnerError):  # no instance is left: it shares one
            self.watches = self.rundir.watches = Watches(
                self.shared.loop,
                on_overflow=self._on_overflow,
                on_unclaimed=self.look_again_after_finding,
                calls=self.watches.calls,
            )
        if self.site.not_supported is None:
            self._find()
        else:
            self._pend(self.site.not_supported)

    def follow(self, site: Site, choose: Callable[[Request], Application]) -> None:
        """Go on with another configuration, which does not change where requests come from and whose they are."""
        self.site = self.rundir.site = site
        self.inbox.choose = choose

    def retire(self) -> asyncio.Future[None] | None:
        """Take nothing more, ever; return what is done once everything that has begun is."""
        self._is_retired = True
        self._set_timer(None)
        return self._when_done(lambda _: None)

    def close(self) -> None:
        """Watch nothing any more."""
        self._let_go()
        self._drop_hint()
        if self.watches is not self.shared.watches:
            self.watches.close()

    def _on_overflow(self) -> None:
        self.shared.jobs.tally.overflows += 1
        self._overflows.say(
            "overflow",
            lambda: self.log.warning("inotify queue overflow: the rundir is scanned"),
            lambda times: self.log.warning("inotify queue overflows", times=times),
        )
        self.doubt()

    def doubt(self) -> None:
        """Events may have been missed."""
        if self._watching is not None:
            self._watching.doubt()
        elif self.site.not_supported is None:
            self._find_soon()

    def look_again_after_finding(self) -> None:
        """An event may have been meant for a watch that was just being made."""
        self._must_find = self._is_finding

    def take(self) -> None:
        """Requests may be taken: there is room, or the pause is over."""
        if self._watching is not None:
            self._watching.take()

    @property
    def place(self) -> Place | None:
        """Which directory is watched."""
        return None if self._watching is None else self._watching.place

    def give_back(self, requests: dict[str, bytes]) -> asyncio.Future[None]:
        """Write requests of jobs into the rundir again; return what is done when they are there, now or later."""
        self._to_give_back.update(requests)
        there: asyncio.Future[None] = self.shared.loop.create_future()
        self._given_back.append(there)
        self._give_back()
        return there

    def release(self) -> asyncio.Future[None] | None:
        """Give the lock back; return what is done after that."""
        watching = self._watching
        if watching is None:
            return None
        watching.end()
        return self._when_done(lambda _: self.rundir.release(watching.place))

    # What Watching asks

    @property
    def is_paused(self) -> bool:
        """Whether no request may be taken now."""
        return self._is_retired or self._sites.is_paused or self.shared.jobs.is_closed(self.site.name)

    @property
    def room(self) -> int:
        """How many further requests may be accepted."""
        return self.shared.max_queued - self.shared.jobs.queued(self.site.name)

    @property
    def stale_before(self) -> float | None:
        """Before when requests belong to a past that is not ours: at the first activation only, and then always.

        That is the first one ever, or the first since a legacy daemon was stopped, and then it is the time of that.
        """
        if self._taken_over_at is not None:
            return self._taken_over_at
        if self._was_active:
            return None
        if self._stale_before is None:
            self._stale_before = time.time() - self.shared.timing.stale
        return self._stale_before

    @property
    def is_taken_over(self) -> bool:
        """Whether it is the first activation since a legacy daemon was stopped: that one had all that came before."""
        return self._taken_over_at is not None

    def run(self, work: Callable[[GetOn], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Have the lane do some work, if there is one."""
        if self._lane is not None:
            self._lane.submit(partial(work, self._lane.progress), done, failed)

    def watched(self, scan: Scan) -> None:
        """The rundir was scanned."""
        if scan.stale:
            self.log.warning("stale requests set aside", count=len(scan.stale), requests=list(scan.stale))
        if scan.stale_left:
            # This cannot count as the first activation: a later one would run them.
            if scan.stale_left != self._stale_left:
                names = list(scan.stale_left)
                self.log.warning("stale requests ignored: they cannot be moved", count=len(names), requests=names)
        elif not self._was_active or self._taken_over_at is not None:
            self._was_active = True
            self._taken_over_at = None
            self.shared.ledger.first_active(self.site.name, now=time.time())
            self.shared.ledger.after(self._forget_takeover)
            self.shared.wake()
        self._stale_left = scan.stale_left
        if self.reason is not None:
            self.reason = None
            self.log.info("site watching", rundir=self.site.watch_dir, found=len(scan.seen))
            self._sites.changed(self.site.name)

    def _forget_takeover(self) -> None:
        with suppress(OSError):  # what it says is old by now, and sets nothing aside that is new
            takeover.write(self.shared.ledger.path.parent, self.site.name, None)

    def rejected(self, rejected: inbox.Rejected) -> None:
        """A file was no request. Thousands of them are logged as a number: each has its reason beside it."""
        self._rejections.say(
            "rejected",
            lambda: self.log.warning(
                "request rejected", request=rejected.name, reason=rejected.reason, moved_to=rejected.now
            ),
            lambda count: self.log.warning("requests rejected", further=count, reasons=f"in {inbox.REJECTED}/"),
        )

    def accept(self, place: Place, taken: inbox.Taken) -> bool:
        """A request may become a job; tell whether it does, or is one already."""
        if self._is_retired:  # it stays where it is
            return False
        if self.in_hand.has(taken.identity):
            return False
        request = self.shared.jobs.accept(self.site, taken, place.inode)
        if self.in_hand.accept(request):
            self.shared.ledger.after(self._acknowledge)
        return True

    def acknowledged(self, results: list[inbox.Acknowledged | inbox.Left]) -> None:
        """Requests are out of the rundir, or cannot be taken out."""
        for result in results:
            if isinstance(result, inbox.Acknowledged):
                if self.in_hand.remove(result.job_id):
                    self.shared.ledger.removed(result.job_id)
                continue
            if not self.in_hand.stuck:
                self.log.warning("requests cannot be removed from the rundir: each is run once", reason=result.reason)
            self.in_hand.stuck.add(result.job_id)
            self.remarks["removal"] = f"requests cannot be removed from the rundir: {result.reason}"
        if not self.in_hand.stuck:
            self.remarks.pop("removal", None)
        self.shared.wake()

    def lose(self, error: Exception | None = None) -> None:
        """The rundir is not where it was, or cannot be used."""
        self._let_go()
        if error is None:
            self._find_soon()
        else:
            self._on_error(error)

    def _acknowledge(self) -> None:
        requests = self.in_hand.committed()
        if self._watching is not None:  # else when the rundir is watched again
            here = self._watching.place.inode
            self._watching.acknowledge(request for request in requests if request.rundir == here)

    def _give_back(self) -> None:
        if self._to_give_back and self._watching is not None:
            work = partial(self.inbox.give_back, place=self._watching.place, requests=dict(self._to_give_back))
            self.run(work, self._on_given_back, self.lose)

    def _on_given_back(self, job_ids: list[str]) -> None:
        for job_id in job_ids:
            if self._to_give_back.pop(job_id, None) is not None:
                self.shared.ledger.given_back(job_id)
        self.shared.wake()
        if not self._to_give_back:
            waiting, self._given_back = self._given_back, []
            for there in waiting:
                if not there.done():
                    there.set_result(None)

    # Finding and arming

    def _find(self) -> None:
        if self._is_retired:
            return
        if self._is_finding:
            self._must_find = True
            return
        if self._hung >= MOST_HUNG:  # the next of them that returns brings us here again
            return
        self._set_timer(None)
        if self._lane is None:
            self._lane = self.shared.lanes.lane(on_hung=self._on_hung, on_late=self._on_late)
        self._is_finding = True
        self._must_find = False
        self._found_at = self.shared.loop.time()
        self.run(self.rundir.find, self._on_found, self._on_error)

    def _find_soon(self) -> None:
        """Look again, but not more often than `pause`: events may come without end."""
        wait = self._found_at + self.shared.timing.pause - self.shared.loop.time()
        if wait <= 0 or self._is_finding:
            self._find()
        else:
            self._set_timer(self._find, wait)

    def _on_found(self, found: Place | Missing) -> None:
        if isinstance(found, Missing):
            if found.watch is not None:
                self._take_hint(found.watch, found.name)
            self._must_find = self._must_find or found.appeared
            self._pend(found.reason)
            return
        if self._is_retired:
            return
        other = self._sites.places.setdefault(found, self.site.name)
        if other != self.site.name:
            self._pend(f"{self.site.watch_dir} is the same directory as the rundir of site {other}")
            return
        self._claimed = found
        self.run(lambda _: self.rundir.arm(found), partial(self._on_armed, found), self._on_error)

    def _on_armed(self, place: Place, armed: Armed | Locked) -> None:
        if isinstance(armed, Locked):
            self._take_hint(armed.watch, None)
            self._pend(f"the lock {self.site.watch_dir}/{lockfile.NAME} is held by process {armed.pid}")
            return
        self._is_finding = False
        self._drop_hint()
        self.remarks.clear()
        if armed.lock_fault is not None:
            self.remarks["lock"] = f"the lock cannot be written: {armed.lock_fault}"
            self.log.warning("lock cannot be written: no other daemon is kept away", reason=armed.lock_fault)
        if armed.silent is not None:
            seconds = self.shared.timing.poll
            self.remarks["polled"] = f"{armed.silent} may not tell of a request: it is looked for every {seconds:g} s"
            what = "filesystem may not tell of every request: the rundir is polled"
            self.log.warning(what, filesystem=armed.silent, seconds=seconds)
        self._watching = Watching(self, place, armed.watch, is_silent=armed.silent is not None)
        self._give_back()  # before anything is taken, so that nothing is given back twice
        self._watching.start()

    def _on_error(self, error: Exception) -> None:
        """A task failed: what it was about cannot go on."""
        match error:
            case MovedError():
                self._let_go()
                self._find_soon()
            case NotReadyError():
                self._pend(str(error))
            case nss.LookupFailedError():
                self._pend(f"the name service does not answer: {error}")
            case OSError():
                self._pend(f"{self.site.watch_dir}: {error.strerror or error}")
            case _:
                self.log.error("internal error in a rundir's task", exc_info=error)
                self._pend(f"an internal error: {type(error).__name__}: {error}")

    def _pend(self, reason: str) -> None:
        """Wait, and look again after a while or when the hint tells."""
        self._let_go()
        if reason != self.reason:
            self.reason = reason
            self.log.warning("site pending", reason=reason)
        self._sites.changed(self.site.name)
        if self._is_retired or self.site.not_supported is not None:
            return
        self._set_timer(self._find, self.shared.timing.recheck)
        if self._must_find:
            self._find_soon()

    def _let_go(self) -> None:
        """Forget the rundir, but not what is in hand."""
        self._is_finding = False
        if self._watching is not None:
            self._watching.end()
            self._watching = None
        if self._claimed is not None:
            self._sites.places.pop(self._claimed, None)
            self._claimed = None

    def _take_hint(self, watch: int, name: str | None) -> None:
        """Look again when something happens to the watched file, or to the name in the watched directory."""
        if watch != self._hint:
            self._drop_hint()
            self._hint = watch
            self.watches.subscribe(watch, self._on_hint)
        self._hint_name = name

    def _drop_hint(self) -> None:
        if self._hint is not None:
            self.watches.unsubscribe(self._hint, self._on_hint)
            self._hint = None

    def _on_hint(self, mask: int, name: str) -> None:
        if mask & inotify.GONE or self._hint_name is None or name == self._hint_name:
            self._find_soon()

    # The lane

    def _on_hung(self, doing: str) -> None:
        self._hung += 1
        self._lane = None
        self._must_find = False
        self._pend(f"{doing} does not answer")

    def _on_late(self, result: object) -> None:
        """What hung has returned. Its result is dropped: whatever it did is found out by looking."""
        self._hung -= 1
        if isinstance(result, Armed | Locked | Missing) and result.watch is not None:
            self.watches.drop(result.watch)
        if self._watching is None:
            self._find_soon()

    def _when_done(self, work: Callable[[GetOn], None]) -> asyncio.Future[None] | None:
        if self._lane is None:
            return None
        future: asyncio.Future[None] = self.shared.loop.create_future()

        def done(_: object) -> None:
            if not future.done():
                future.set_result(None)

        self.run(work, done, done)
        return future

    def _set_timer(self, callback: Callable[[], None] | None, delay: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if callback is None else self.shared.loop.call_later(delay, callback)
