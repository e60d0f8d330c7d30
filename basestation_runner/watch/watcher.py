"""The watcher, put together: sites, jobs, helper, and the turns of the loop that end in a commit."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Final

from attrs import asdict

from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.processes import boot_id
from basestation_runner.repeats import Repeats
from basestation_runner.watch import reload
from basestation_runner.watch.callers import Callers
from basestation_runner.watch.completions import Completions
from basestation_runner.watch.control import Control
from basestation_runner.watch.dispatcher import INTERACTIVE_PER_CORE, Dispatcher, Limits
from basestation_runner.watch.errands import Errands
from basestation_runner.watch.failurehook import FailureHook
from basestation_runner.watch.helper import Helper
from basestation_runner.watch.history import History
from basestation_runner.watch.inotify import Watches
from basestation_runner.watch.jobs import ASKING, Jobs
from basestation_runner.watch.lanes import Lanes
from basestation_runner.watch.ledger import Ledger, LedgerError
from basestation_runner.watch.reload import Reload
from basestation_runner.watch.report import Report
from basestation_runner.watch.requests import Requests
from basestation_runner.watch.shared import Shared, Timing
from basestation_runner.watch.sites import Sites
from basestation_runner.watch.visualiser import Visualiser
from basestation_runner.watch.web import Web

if TYPE_CHECKING:
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from basestation_runner.config.model import Config
    from basestation_runner.systemd import Notifier
    from basestation_runner.watch.options import WatchOptions

STOP_PATIENCE: Final = 5.0
FIRST_RETRY: Final = 0.5
LONGEST_RETRY: Final = 15.0
STATUS_PAUSE: Final = 0.5
FIRST_FORGETTING: Final = 60.0
FORGETTING_EVERY: Final = 3600.0
FORGETTING_PAUSE: Final = 1.0
FORGOTTEN_AT_ONCE: Final = 100
ACCOUNTS_PATIENCE: Final = 60.0
ACCOUNTS_PAUSE: Final = 1.0
MOST_QUESTIONS: Final = 2
"""Questions to the ledger that are answered at once; each takes a thread."""
MOST_LOOK_UPS: Final = 4
ASKING_PATIENCE: Final = 10.0


class Watcher:
    """One running watcher. Make it on the loop that it is to run on."""

    def __init__(
        self,
        options: WatchOptions,
        config: Config,
        *,
        log: FilteringBoundLogger,
        notifier: Notifier,
        timing: Timing | None = None,
    ) -> None:
        """Open the ledger and what else is needed; nothing happens before `run`. Raises RunnerError."""
        timing = timing or Timing()
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._config = config
        self._log = log
        self._notifier = notifier
        self._stop = asyncio.Event()
        self._repeats = Repeats(self._loop.call_later)
        self._is_ready = False
        self._is_held = False
        self._turn: asyncio.Handle | None = None
        self._retry_delay = FIRST_RETRY
        self._status_timer: asyncio.TimerHandle | None = None
        self._told = ""

        self._failure: TemporaryError | None = None
        self._forgetting: asyncio.TimerHandle | None = None

        self.ledger = Ledger(options.state_dir)
        self.ledger.on_failure = self._fail
        self._take_note_of_recovery()
        self.completions = Completions(options.job_completions_log, log)
        self.visualiser = Visualiser()
        self.watches = Watches(
            self._loop,
            on_overflow=self._on_overflow,
            on_unclaimed=lambda: self.sites.unclaimed(),  # noqa: PLW0108 - `sites` is made later
        )
        self.lanes = Lanes(self._loop, deadline=timing.hung)
        self.hook = (
            None
            if options.on_failure is None
            else FailureHook(options.on_failure, loop=self._loop, lanes=self.lanes, log=log)
        )
        self.jobs = Jobs(
            config,
            loop=self._loop,
            ledger=self.ledger,
            dispatcher=Dispatcher(_limits(options, config)),
            completions=self.completions,
            absent_patience=options.absent_patience,
            visualiser=self.visualiser,
            boot=boot_id(),
            log=log,
            wake=self.wake,
            on_room=lambda site: self.sites.has_room(site),  # noqa: PLW0108
            on_complete=self._go_on_unless_held,
            on_failure=None if self.hook is None else self.hook.tell,
        )
        self.helper = Helper(
            options.priv_exec_socket,
            loop=self._loop,
            watches=self.watches,
            log=log,
            on_up=self.jobs.on_up,
            on_event=self.jobs.on_event,
            on_reconfigured=self.jobs.try_again,
        )
        self.jobs.attach(self.helper)
        shared = Shared(
            loop=self._loop,
            lanes=self.lanes,
            watches=self.watches,
            ledger=self.ledger,
            jobs=self.jobs,
            log=log,
            timing=timing,
            max_queued=options.max_queued,
            wake=self.wake,
        )
        self.sites = Sites(config, shared, on_change=self._tell_soon)
        looking_up = Errands(self.lanes, most=MOST_LOOK_UPS, patience=ASKING_PATIENCE)
        self.reload = Reload(
            read=lambda: reload.load(options.sites_config, options.applications_config),
            errands=looking_up,
            helper=self.helper,
            jobs=self.jobs,
            trouble=lambda: self._trouble,
            use=self._use,
            log=log,
        )
        report = self._report()
        self.control = self._control(options.control_socket, looking_up, report)
        self.webs = self._webs(options, report)
        if not self.jobs.is_complete:
            self.sites.pause()

    def _report(self) -> Report:
        return Report(
            sites=self.sites,
            jobs=self.jobs,
            helper=self.helper,
            history=History(self.ledger.path),
            errands=Errands(self.lanes, most=MOST_QUESTIONS, patience=ASKING_PATIENCE),
            trouble=lambda: self._trouble,
            started_at=time.time(),
        )

    def _webs(self, options: WatchOptions, report: Report) -> list[Web]:
        """Return what shows pages to those who have asked for one on the command line."""
        webs = []
        if options.metrics is not None:
            from basestation_runner.watch import metrics  # noqa: PLC0415 - memory that few want to spend

            webs.append(Web(options.metrics, {metrics.PATH: metrics.page(report, self.jobs)}, log=self._log))
        if options.http is not None:
            from basestation_runner.watch import page  # noqa: PLC0415 - the same

            status = page.page(report, is_private=options.http.is_private)
            webs.append(Web(options.http, {"/": status}, log=self._log))
        return webs

    def _control(self, path: Path, looking_up: Errands, report: Report) -> Control:
        """Return what answers those who ask."""
        requests = Requests(
            callers=Callers(self._loop, looking_up, self.sites),
            report=report,
            sites=self.sites,
            jobs=self.jobs,
            ledger=self.ledger,
            reload=self.reload.ask,
            probe=self.helper.probe,
            log=self._log,
        )
        return Control(path, requests.answer, loop=self._loop, log=self._log)

    def stop(self) -> None:
        """Have `run` come to its end."""
        self._stop.set()

    async def run(self) -> None:
        """Serve the sites until `stop` is called.

        Raises RunnerError when an account does not exist, or when the ledger fails so that only a new start can help.
        """
        try:
            if not await self._accounts_exist():
                return
            self.jobs.recover()
            await self.control.start()
            for web in self.webs:
                await web.start()
            self.helper.start()
            self.sites.start()
            self._forgetting = self._loop.call_later(FIRST_FORGETTING, self._forget)
            if await self._until_stopped(self.sites.decided):
                self._is_ready = True
                self._told = self._status
                self._notifier.ready(self._told)
                self._log.info("ready", status=self._told)
                await self._stop.wait()
            if self._failure is not None:
                raise self._failure
            self._log.info("stopping")
            self._notifier.stopping()
            await self.reload.stop()
            await self.sites.stop(self._commit, STOP_PATIENCE)
        except LedgerError as error:
            raise self._failure or _ledger_failure(str(error)) from error
        finally:
            self._close()

    def _use(self, config: Config) -> asyncio.Future[None]:
        """Go by another configuration; return what is done when every site does."""
        self._commit()  # what is known of each job is read from the ledger
        self.jobs.reconfigure(config, _limits(self._options, config))
        return asyncio.ensure_future(self.sites.reconfigure(config, self._commit, STOP_PATIENCE))

    def _close(self) -> None:
        for handle in (self._turn, self._status_timer, self._forgetting):
            if handle is not None:
                handle.cancel()
        self.control.stop()
        for web in self.webs:
            web.stop()
        self.helper.stop()
        self.watches.close()
        self.lanes.close()
        if self.hook is not None:
            self.hook.close()
        self.visualiser.close()
        self.completions.close()
        self.ledger.close()

    # Turns

    def wake(self) -> None:
        """Something changed: when what is ready now has run, choose jobs and commit."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self.jobs.choose()
        self._commit()
        self._tell_soon()

    def _commit(self) -> None:
        """Make durable what has happened, then do what waited for that."""
        began, is_dirty = time.monotonic(), self.ledger.is_dirty
        try:
            due = self.ledger.commit()
            if is_dirty:
                self.jobs.tally.commits.observe(time.monotonic() - began)
        except LedgerError as error:
            self._hold(str(error))
            return
        if self._is_held:
            self._is_held = False
            self._retry_delay = FIRST_RETRY
            self._log.warning("ledger can be written again")
            if not self._stop.is_set() and self.jobs.is_complete:
                self.sites.go_on()
        for action in due:
            try:
                action()
            except Exception:  # noqa: BLE001 - the others must be done all the same
                self._log.exception("internal error after a commit")

    def _hold(self, reason: str) -> None:
        """The ledger cannot be written: accept nothing, acknowledge nothing, start nothing, and try again."""
        if not self._is_held:
            self._is_held = True
            self.sites.pause()
            self._log.error("ledger cannot be written: nothing is accepted or started", reason=reason)
        if self._turn is None:
            self._turn = self._loop.call_later(self._retry_delay, self._take_turn)
            self._retry_delay = min(self._retry_delay * 2, LONGEST_RETRY)

    def _go_on_unless_held(self) -> None:
        """All jobs are known: requests may be taken."""
        if not self._is_held and not self._stop.is_set():
            self.sites.go_on()

    def _fail(self, reason: str) -> None:
        """The ledger cannot be used any more: all that is not durable is forgotten, as after a kill."""
        if self._failure is None:
            self._failure = _ledger_failure(reason)
            self._log.error("ledger failed: this watcher ends, and the next one recovers", reason=reason)
            self._stop.set()

    def _take_note_of_recovery(self) -> None:
        """Tell of a ledger that was damaged. Its sites have been active before: nothing in their rundirs is stale."""
        recovery = self.ledger.recovery
        if recovery is None:
            return
        self._log.error("ledger was damaged: what could be read of it is in a new one", **asdict(recovery))
        for name in self._config.sites:
            self.ledger.first_active(name, now=time.time())
        try:
            self.ledger.commit()
        except LedgerError as error:
            self.ledger.close()
            raise _ledger_failure(str(error)) from error

    def _forget(self) -> None:
        """Forget some old jobs; go on soon while there are more, else much later."""
        pause = FORGETTING_PAUSE
        if not self._is_held and not self.ledger.is_dirty:
            try:
                forgotten = self.ledger.forget(FORGOTTEN_AT_ONCE, now=time.time())
            except LedgerError as error:
                self._log.warning("old jobs cannot be forgotten", reason=str(error))
                forgotten = 0
            if forgotten < FORGOTTEN_AT_ONCE:
                pause = FORGETTING_EVERY
        self._forgetting = self._loop.call_later(pause, self._forget)

    def _on_overflow(self) -> None:
        self.jobs.tally.overflows += len(self.sites)
        self._repeats.say(
            "overflow",
            lambda: self._log.warning("inotify queue overflow: all rundirs are scanned"),
            lambda times: self._log.warning("inotify queue overflows", times=times),
        )
        self.sites.scan()

    # Status

    @property
    def _status(self) -> str:
        pending = sum(site.reason is not None for site in self.sites)
        watching = len(self.sites) - pending
        faulty = sum(bool(site.remarks) for site in self.sites if site.reason is None)
        warnings = f" ({faulty} with warnings)" if faulty else ""
        sites = f"{watching} site{'' if watching == 1 else 's'} watching{warnings}"
        trouble = f"; {self._trouble}" if self._trouble else ""
        return f"{sites}{f', {pending} pending' if pending else ''}; {self.jobs.summary}{trouble}"

    @property
    def _trouble(self) -> str | None:
        """What keeps all sites from going on, in words."""
        held = ["the ledger cannot be written"] if self._is_held else []
        return "; ".join(held if self.jobs.is_complete else [*held, ASKING]) or None

    def _tell_soon(self) -> None:
        if self._is_ready and self._status_timer is None:
            self._status_timer = self._loop.call_later(STATUS_PAUSE, self._tell)

    def _tell(self) -> None:
        self._status_timer = None
        status = self._status
        if status != self._told:
            self._told = status
            self._notifier.status(status)

    # Starting

    async def _until_stopped(self, event: asyncio.Event, patience: float | None = None) -> bool:
        """Wait for an event; return whether it came before `stop` and within `patience`."""
        waits = {self._loop.create_task(each.wait()) for each in (event, self._stop)}
        await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return event.is_set() and not self._stop.is_set()

    async def _accounts_exist(self) -> bool:
        """Wait until all sites' accounts are known: directory services come up late. Returns False when stopped.

        Raises RunnerErrors when some are still unknown after ACCOUNTS_PATIENCE.
        """
        until = self._loop.time() + ACCOUNTS_PATIENCE
        has_said = False
        while faults := await self._unknown_accounts():
            if self._stop.is_set():
                return False
            if self._loop.time() > until:
                raise ExceptionGroup("accounts", [RunnerError(fault) for fault in faults])
            if not has_said:
                has_said = True
                self._log.warning("accounts are waited for", patience_seconds=ACCOUNTS_PATIENCE, reasons=faults)
                self._notifier.status(f"waiting for accounts: {faults[0]}")
            await self._until_stopped(asyncio.Event(), ACCOUNTS_PAUSE)
        return True

    async def _unknown_accounts(self) -> list[str]:
        """Look all accounts up, off the loop; return what is wrong."""
        answer: asyncio.Future[list[str]] = self._loop.create_future()

        def hung(doing: str) -> None:
            answer.set_result([f"{doing} does not answer"])

        lane = self.lanes.lane(on_hung=hung, on_late=lambda _: None)
        sites = self._config.sites.values()
        lane.submit(lambda: reload.unknown_accounts(sites, lane.progress), answer.set_result, answer.set_exception)
        return await answer


def _limits(options: WatchOptions, config: Config) -> Limits:
    return Limits(
        normal=options.max_running,
        interactive=INTERACTIVE_PER_CORE * len(os.sched_getaffinity(0)),
        per_site={name: site.max_running for name, site in config.sites.items() if site.max_running is not None},
        has_reserve=len(config.sites) > 1,
        resources=dict(config.host.resources),
    )


def _ledger_failure(reason: str) -> TemporaryError:
    return TemporaryError(f"the ledger cannot be used: {reason}", hint="start it again: a damaged ledger is recovered")
