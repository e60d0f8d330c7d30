"""What becomes of accepted requests: from the ledger to the helper and back, until each job has ended.

Runs on the loop and never waits. Memory changes at once; what the outside sees (dispatches, acknowledgements, log
lines) follows the commit that makes it durable.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import asdict, evolve
from attrs import fields as attrs_fields

from basestation_runner import runfile
from basestation_runner.config.additions import AdditionsError, of_data
from basestation_runner.paths import join_jail
from basestation_runner.repeats import Repeats
from basestation_runner.watch.admission import accepting, uses, why_held
from basestation_runner.watch.dispatcher import Job
from basestation_runner.watch.history import FAILURES
from basestation_runner.watch.ledger import Dispatch, Intake, NewJob
from basestation_runner.watch.states import Event, ForbiddenError, State, advance
from basestation_runner.watch.tally import OTHER, Tally

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from structlog.typing import FilteringBoundLogger

    from basestation_runner.config.model import Application, Config, Site
    from basestation_runner.protocol import Message
    from basestation_runner.watch.completions import Completions
    from basestation_runner.watch.dispatcher import Choice, Dispatcher, Limits
    from basestation_runner.watch.helper import Helper
    from basestation_runner.watch.inbox import Taken
    from basestation_runner.watch.ledger import Hold, Ledger, Unfinished
    from basestation_runner.watch.visualiser import Visualiser

FIRST_DELAY: Final = 0.5
LONGEST_DELAY: Final = 60.0
IDS_PER_FRAME: Final = 1000
MOST_RECORD: Final = 32 << 10
"""Characters of a dispatch record: with other jobs it must fit an answer."""
SETTLED_AGAIN: Final = 1000
"""Ended jobs that the helper is told of again after a reconnect: it may have missed the first word."""
HELPER_AWAY: Final = "the helper is not reachable"
REBOOTED: Final = "the host was restarted while it ran"
MARK_GONE: Final = "it ran, and the helper has no mark of it any more"
CANCELLED: Final = "it was cancelled before it ran"
RETURNED: Final = "its request was written back into the rundir"
ASKING: Final = "the ledger was damaged: first the helper is asked what it has been asked to start"

_NUMBERS: Final = ("exit_code", "signal", "pid", "max_rss_kib", "memory_peak_bytes", "leftover_processes")
_SECONDS: Final = ("started_at", "ended_at", "seconds", "user_seconds", "system_seconds", "cgroup_cpu_seconds")
_ERRORS: Final = {Event.REFUSED: "refused", Event.LOST: "lost", Event.NEVER_STARTED: "lost"}
_LIMITS: Final = {"runtime": Event.TIMED_OUT, "memory": Event.OUT_OF_MEMORY}


class Jobs:
    """All jobs that have not ended, and the way of each."""

    def __init__(  # noqa: PLR0913 - the parts that a job's way leads through
        self,
        config: Config,
        *,
        loop: asyncio.AbstractEventLoop,
        ledger: Ledger,
        dispatcher: Dispatcher,
        completions: Completions,
        visualiser: Visualiser,
        absent_patience: float,
        boot: str,
        log: FilteringBoundLogger,
        wake: Callable[[], None],
        on_room: Callable[[str], None],
        on_complete: Callable[[], None],
        on_failure: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """`wake` asks for a turn of the loop that ends in a commit; `on_room`: fewer jobs of a site wait.

        `on_complete`: `is_complete` has become true. `on_failure`: this job has ended badly.
        """
        self.config = config
        """What is in force now; `reconfigure` replaces it."""
        self._loop = loop
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._completions = completions
        self._visualiser = visualiser
        self._absent_patience = absent_patience
        self._boot = boot
        self._log = log
        self.wake: Final = wake
        self._on_room = on_room
        self._on_complete = on_complete
        self._on_failure = on_failure
        self.holds: dict[str, Hold] = {}
        """What is held, by the site's name; the empty one is the whole host."""
        self._in_flight: dict[str, Job] = {}  # starting and running ones
        self._stuck: dict[str, Job] = {}
        self._recalled: set[str] = set()
        self._settled: list[str] = []
        self._repeats = Repeats(loop.call_later)
        self.tally = Tally()
        self._scripts = _scripts(config)
        self.digests: Mapping[str, str] = {name: config.digest(name) for name in config.sites}
        self._helper: Helper | None = None

    def attach(self, helper: Helper) -> None:
        """Say who starts the jobs."""
        self._helper = helper

    def recover(self) -> None:
        """Take up what the ledger holds."""
        for hold in self._ledger.holds():
            self.holds[hold.site] = hold
            self._dispatcher.hold(hold.site or None, is_held=True)
        for known in self._ledger.unfinished():
            job = self._recovered(known)
            self._dispatcher.add(job)
            if job.state is not State.QUEUED:
                self._in_flight[job.job_id] = job

    def reconfigure(self, config: Config, limits: Limits) -> None:
        """Go on with another configuration: jobs of the sites that it changes are judged anew, and tried at once."""
        digests = {name: config.digest(name) for name in config.sites}
        names = {name for name in digests.keys() | self.digests.keys() if digests.get(name) != self.digests.get(name)}
        self.config, self.digests = config, digests
        self._scripts = _scripts(config)
        known = {job.seq: job for job in self._ledger.unfinished() if job.site in names}
        judged: dict[str, str | None] = {}

        def update(job: Job) -> None:
            now = known.get(job.seq)
            if now is None:  # it is not in the ledger yet, which cannot be written: it cannot be started before that
                return
            asks = repr((now.site, now.application, now.script, now.additions))
            if asks not in judged:  # thousands that ask for the same are common
                judged[asks] = why_held(config, now)
            self._judge(job, now, judged[asks])

        self._dispatcher.renew(limits, names, update)
        self.wake()

    def try_again(self) -> None:
        """What kept jobs from starting may be gone: those that were put back need not wait for their time."""
        for job in self._stuck.values():
            if job.delayed:
                job.postponed = 0
                self._dispatcher.retry(job)
        self.wake()

    @property
    def held(self) -> Counter[str]:
        """Why jobs must not be started with the present configuration, and how many each reason holds."""
        return Counter(job.held for job in self._stuck.values() if job.held is not None)

    def queued(self, site: str) -> int:
        """Return how many jobs of a site wait."""
        return self._dispatcher.queued(site)

    def reason(self, job: Job) -> str:
        """Say in a person's words why a job waits."""
        if not self._helper_is_up:
            return HELPER_AWAY
        return self._dispatcher.reason(job) if self.is_complete else ASKING

    @property
    def is_complete(self) -> bool:
        """Whether every job is here.

        After damage to the ledger the helper alone may know some. Until it has told of them nothing is started, for it
        could run beside one of them, and no request is taken, for it could be one of theirs.
        """
        return not self._ledger.must_ask

    @property
    def summary(self) -> str:
        """How many jobs there are, in words."""
        away = "" if self._helper_is_up else ", helper not reachable"
        return f"{self._dispatcher.total_running} running, {self._dispatcher.total_queued} queued{away}"

    def accept(self, site: Site, taken: Taken, rundir: int) -> Intake:
        """Make a job of a request, unless it is known to be one. It counts once it is committed."""
        job_id, is_known = self._id_of(taken.identity)
        intake = Intake(job_id=job_id, site=site.name, name=taken.name, rundir=rundir, identity=taken.identity)
        if is_known:
            self._ledger.found(intake)
            self._log.warning("request is a job already", site=site.name, job_id=job_id, request=taken.name)
            self.wake()
            return intake
        request = taken.request
        new = NewJob(
            job_id=job_id,
            site=site.name,
            application=taken.application.name,
            script=request.script,
            home=request.home,
            mission_dir=request.mission_dir,
            log_file=request.log_file,
            args=request.args,
            submitter=taken.submitter,
            request=taken.name,
            additions=request.additions.data,
        )
        self._add(site, new, taken.application, intake)
        return intake

    def _add(self, site: Site, new: NewJob, application: Application, intake: Intake | None) -> None:
        """Take a new job. It counts once it is committed."""
        seq = self._ledger.accept(new, intake, now=time.time())
        job = Job(
            seq=seq,
            job_id=new.job_id,
            site=site.name,
            application=new.application,
            script=new.script,
            queue=_queue(site, new),
            interactive=application.priority == "interactive",
            accepted_at=self._loop.time(),
            uses=uses(application, of_data(new.additions)),
        )
        if self.config.applications.get(application.name) is not application:  # another one since it was read
            job.held = why_held(self.config, new)
            self._note_held(job)
        self._dispatcher.add(job)
        self._ledger.after(
            partial(
                self._log.info,
                "request accepted",
                site=site.name,
                job_id=new.job_id,
                request=new.request,
                script=new.script,
                mission_dir=new.mission_dir,
            )
        )
        self._notify("queued", job)
        self.wake()

    def _id_of(self, identity: bytes) -> tuple[str, bool]:
        """Return the id of the job that a request becomes, and whether it is known to be that job already.

        The id follows from the request: where the ledger was damaged, that tells what is found again from what is new.
        Otherwise a request with a known id is another file, which has got all that makes up the earlier one's identity.
        """
        job_id = str(uuid.UUID(bytes=identity[:16], version=4))
        was_recovered = self._ledger.was_recovered(job_id)
        if was_recovered or job_id in self._recalled:
            return job_id, True
        if was_recovered is None and self._dispatcher.job(job_id) is None:
            return job_id, False
        return str(uuid.uuid4()), False

    def choose(self) -> None:
        """Start what may start: called in each turn, before the commit."""
        while self._helper_is_up and self.is_complete:
            choice = self._dispatcher.next()
            if choice is None:
                return
            job = choice.job
            job.state = advance(job.state, Event.DISPATCH)
            self._in_flight[job.job_id] = job
            self._ledger.starting(job.seq, boot=self._boot, now=time.time())
            self._ledger.after(partial(self._dispatch, choice), urgent=True)  # somebody waits for it
            self._on_room(job.site)

    def on_up(self) -> None:
        """The helper can be asked: learn what was missed, and tell it what has ended."""
        self._send_settled(self._ledger.last_ended(SETTLED_AGAIN))  # and none whose end is not durable yet
        if not self.is_complete:
            self._recalled = set()
            self._send({"request": "recall"})
        self._inquire(self._in_flight)
        self._send_cancel([job.job_id for job in self._in_flight.values() if job.cancelled_by is not None])
        self.wake()

    def on_event(self, message: Message) -> None:
        """The helper says something of a job."""
        job_id, kind = message.get("job_id"), message.get("event")
        if kind in {"recalled", "recalled all"}:
            self._recall(message)
            return
        job = self._dispatcher.job(job_id) if isinstance(job_id, str) else None
        if job is not None:
            try:
                self._happens(job, kind, message)
            except (ForbiddenError, _UnknownEventError) as error:
                self._log.error("helper's word makes no sense", site=job.site, job_id=job.job_id, reason=str(error))
            self.wake()
        elif isinstance(job_id, str) and (state := self._ledger.state(job_id)) is not None and state.is_final:
            if kind != "started":  # the helper has missed that we know
                self._settle(job_id)
                self.wake()
            elif state is State.CANCELLED:  # it was started after the helper had said that it was not
                self._send_cancel([job_id])
        else:
            self._log.warning("helper speaks of an unknown job", job_id=job_id, kind=kind)

    def _recall(self, message: Message) -> None:
        """The helper tells of a job that it was asked to start, or that these were all."""
        if self.is_complete:
            return
        if message["event"] == "recalled all":
            self._ledger.asked()
            self._inquire(self._recalled)
            self._log.warning("helper was asked for jobs that the ledger may have lost", told_of=len(self._recalled))
            self._on_complete()
        elif (dispatch := _as_sent(message)) is not None:
            self._recalled.add(dispatch.job_id)
            if self._dispatcher.job(dispatch.job_id) is None and self._ledger.state(dispatch.job_id) is None:
                job = self._recovered(self._ledger.restore(dispatch, boot=self._boot, now=time.time()))
                self._dispatcher.add(job)
                self._in_flight[job.job_id] = job
        self.wake()

    # What people ask for

    def job(self, job_id: str) -> Job | None:
        """Return a job unless it has ended or was never here."""
        return self._dispatcher.job(job_id)

    @property
    def in_flight(self) -> Collection[Job]:
        """The jobs that are starting or running, the oldest first."""
        return self._in_flight.values()

    @property
    def stuck(self) -> Collection[Job]:
        """The jobs that could not be started for a reason that may last: they keep their queues from going on."""
        return self._stuck.values()

    def running(self, site: str) -> int:
        """Return how many jobs of a site are starting or running."""
        return self._dispatcher.running(site)

    def total_queued(self) -> int:
        """Return how many jobs wait on the whole host."""
        return self._dispatcher.total_queued

    def rerun(self, new: NewJob) -> None:
        """Take a job that repeats another one. Raises NotAllowedError when it would not be accepted as a request."""
        site = self.config.sites.get(new.site)
        if site is None:
            raise NotAllowedError(f"site {new.site} is not configured")
        application = self._accepting(site, new.script, new.additions, None)
        if not self.is_complete:
            raise NotAllowedError(ASKING)
        self._add(site, evolve(new, application=application.name), application, None)

    def move(self, job: Job, additions: Mapping[str, Any], application: str, by: int) -> None:
        """Have a job that waits run with another application. Raises NotAllowedError when it would not be accepted."""
        site = self.config.sites.get(job.site)
        if site is None:
            raise NotAllowedError(f"site {job.site} is not configured")
        if job.state is not State.QUEUED:
            raise NotAllowedError(f"job {job.job_id} is {job.state}: only one that waits can be moved")
        to = self._accepting(site, job.script, additions, application)
        is_interactive = to.priority == "interactive"
        self._dispatcher.change(job, application=to.name, interactive=is_interactive, uses=uses(to, of_data(additions)))
        self._stuck.pop(job.job_id, None)
        self._ledger.moved(job.seq, to.name)
        facts = {"site": job.site, "job_id": job.job_id, "application": to.name, "by": by}
        self._ledger.after(partial(self._log.info, "job moved", **facts))
        self.wake()

    def _accepting(self, site: Site, script: str, additions: Mapping[str, Any], named: str | None) -> Application:
        """Return the application that a request for this would get now. Raises NotAllowedError."""
        try:
            return accepting(self.config, site, script, evolve(of_data(additions), application=named))
        except (AdditionsError, runfile.RequestError) as error:
            raise NotAllowedError(str(error)) from None

    def cancel(self, job: Job, by: int) -> None:
        """Have a job end: at once if it waits, else by the helper, as soon as that can be asked."""
        if job.cancelled_by is not None:
            return
        job.cancelled_by = by
        self._ledger.cancelled(job.seq, by=by, now=time.time())
        self._ledger.after(partial(self._log.warning, "job to be cancelled", job_id=job.job_id, site=job.site, by=by))
        if job.state is State.QUEUED:
            self._given_up(job, Event.CANCELLED, CANCELLED)
        else:
            self._ledger.after(partial(self._send_cancel, [job.job_id]))
        self.wake()

    def give_back(self, job: Job) -> bytes | None:
        """End a job that waits, and return its request, which is to be written once that is committed.

        Returns None, and changes nothing, for one that does not wait or that no request can ask for.
        """
        if job.state is not State.QUEUED:
            return None
        try:
            request = self._ledger.dispatch(job.seq).as_request
        except runfile.RequestError:
            return None
        job.state = advance(job.state, Event.CANCELLED)
        self._ledger.returned(job.seq, job.state, RETURNED, now=time.time())
        self._leaves(job)
        self._ledger.after(partial(self._log.info, "job returned", site=job.site, job_id=job.job_id))
        self._notify("complete", job)
        self.wake()
        return request

    def hold(self, hold: Hold) -> None:
        """Start nothing of a site, or nothing at all, until it is released."""
        self.holds[hold.site] = hold
        self._dispatcher.hold(hold.site or None, is_held=True)
        self._ledger.hold(hold)
        self.wake()

    def release(self, site: str) -> None:
        """End a hold. Does nothing when there is none."""
        if self.holds.pop(site, None) is not None:
            self._dispatcher.hold(site or None, is_held=False)
            self._ledger.release(site)
            self.wake()

    def is_closed(self, site: str) -> bool:
        """Tell whether a hold keeps the site's requests in its rundir."""
        return any(name in self.holds and self.holds[name].closed for name in (site, ""))

    # One job

    def _happens(self, job: Job, kind: object, message: Message) -> None:
        reason = str(message.get("reason") or "no reason was given")
        match kind:
            case "started":
                self._started(job, message)
            case "ended":
                if (dispatch := _dispatch_record(message)) is not None and job.state is not State.RUNNING:
                    self._ledger.dispatched(job.seq, dispatch)
                self._ended(job, _record(message.get("record")))
            case "lost":
                self._given_up(job, Event.LOST, reason)
            case "refused":
                self._given_up(job, Event.REFUSED, reason)
            case "temporary":
                self._postpone(job, reason, absent=message.get("absent") is True)
            case "never_started":
                self._never_started(job)
            case _:
                raise _UnknownEventError(f"{kind!r} is not an event")
        if job.cancelled_by is not None and job.state is State.QUEUED:  # put back, and so it need not start again
            self._given_up(job, Event.CANCELLED, CANCELLED)

    def _started(self, job: Job, message: Message) -> None:
        pid, started_at = _whole(message.get("pid")) or 0, _seconds(message.get("started_at")) or time.time()
        was = job.state
        job.state = advance(job.state, Event.STARTED)
        job.postponed = 0
        job.postponed_because = None
        job.absent_since = None
        self._stuck.pop(job.job_id, None)
        if was is State.QUEUED:  # put back, and it runs all the same
            self._dispatcher.resume(job)
        self._in_flight[job.job_id] = job
        # A helper that was started meanwhile knows less of it than the one that had started it.
        dispatch = None if was is State.RUNNING else _dispatch_record(message)
        self._ledger.running(job.seq, pid=pid, started_at=started_at, dispatch=dispatch)
        if was is not State.RUNNING:
            if job.accepted_at is not None:
                self.tally.starts.observe(self._loop.time() - job.accepted_at)
            facts = {"site": job.site, "job_id": job.job_id, "script": job.script, "pid": pid}
            self._ledger.after(partial(self._log.info, "job started", **facts))
            self._notify("start", job)

    def _ended(self, job: Job, record: dict[str, Any]) -> None:
        code, signal = record.get("exit_code"), record.get("signal")
        if record["not_run"] is not None:
            self._not_run(job, record)
            return
        if code is None and signal is None:  # never taken for 0
            self._given_up(job, Event.LOST, "its exit code is not known")
            return
        if record.get("cancelled") is True:
            event = Event.CANCELLED
        else:
            event = Event.SUCCEEDED if code == 0 and signal is None else Event.FAILED
        job.state = advance(job.state, _LIMITS.get(record["limit"], event))
        now = time.time()
        self._ledger.ended(job.seq, job.state, record, now=now)
        self._leaves(job)
        result = {"exit_code": code} if signal is None else {"signal": signal}
        if record["limit"] is not None:
            result["limit"] = record["limit"]
        if record.get("seconds") is not None:
            self.tally.runs.observe(record["seconds"])
            result["seconds"] = round(record["seconds"], 3)
        log = self._log.info if job.state is State.SUCCEEDED else self._log.warning
        self._ledger.after(partial(log, "job ended", site=job.site, job_id=job.job_id, script=job.script, **result))
        summary = {**record, "job_id": job.job_id}
        self._ledger.after(partial(self._completions.write, job.site, job.script, summary))
        self._notify("complete", job, code if signal is None else -signal)
        self._tell_of_failure(job, None, record)

    def _not_run(self, job: Job, record: dict[str, Any]) -> None:
        """Steps before the job have run, and it has not: for good, since they may have had an effect."""
        was_cancelled = record.get("cancelled") is True
        self._given_up(job, Event.CANCELLED if was_cancelled else Event.NOT_RUN, record["not_run"], record)

    def _given_up(self, job: Job, event: Event, reason: str, record: Mapping[str, Any] | None = None) -> None:
        job.state = advance(job.state, event)
        if event in _ERRORS:
            self.tally.errors[_ERRORS[event]] += 1
        if record is None:
            self._ledger.given_up(job.seq, job.state, reason, now=time.time())
        else:
            self._ledger.ended(job.seq, job.state, record, now=time.time(), reason=reason)
        self._leaves(job)
        self._ledger.after(
            partial(
                self._log.warning,
                f"job {job.state}",
                site=job.site,
                job_id=job.job_id,
                script=job.script,
                reason=reason,
            )
        )
        self._notify("complete", job)
        self._tell_of_failure(job, reason, None)

    def _tell_of_failure(self, job: Job, reason: str | None, record: Mapping[str, Any] | None) -> None:
        """Tell whoever wants to know of a job that has ended badly, after the commit."""
        if self._on_failure is None or job.state not in FAILURES:
            return
        tell = self._on_failure

        def send() -> None:
            asked = {name: value for name, value in asdict(self._ledger.dispatch(job.seq)).items() if name != "job_id"}
            tell({"id": job.job_id, **asked, "state": job.state, "reason": reason, "record": record})

        self._ledger.after(send)

    def _leaves(self, job: Job) -> None:
        """The job has ended: its queue goes on, and the helper may forget it once that is durable."""
        self._in_flight.pop(job.job_id, None)
        self._stuck.pop(job.job_id, None)
        self._dispatcher.remove(job)
        self.tally.ended[job.state, job.script if job.script in self._scripts else OTHER] += 1
        self._on_room(job.site)
        self._settle(job.job_id)

    def _postpone(self, job: Job, reason: str, *, absent: bool) -> None:
        """Not now: the job keeps its place and is tried again, later each time.

        That an account or its effective group is `absent` is believed only after a while: a directory service that is
        late looks the same.
        """
        if not absent:
            job.absent_since = None
        elif job.absent_since is None:
            job.absent_since = self._loop.time()
        if job.absent_since is not None and self._loop.time() - job.absent_since >= self._absent_patience:
            self._given_up(job, Event.REFUSED, reason)
            return
        job.state = advance(job.state, Event.POSTPONED)
        self.tally.errors["account not found" if absent else "not now"] += 1
        job.postponed += 1
        job.postponed_because = reason
        self._stuck[job.job_id] = job
        self._back(job, reason)
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(job.postponed - 1, 10))
        self._loop.call_later(delay, self._retry, job)
        self._sum_up(job, reason)

    def _never_started(self, job: Job) -> None:
        """The helper knows nothing of a dispatch: it can be repeated, unless a restart of the host lies between."""
        if job.from_before_boot:
            self._given_up(job, Event.LOST, REBOOTED)
        elif job.state is State.RUNNING:
            self._given_up(job, Event.NEVER_STARTED, MARK_GONE)
        else:
            job.state = advance(job.state, Event.NEVER_STARTED)
            self._back(job, None)
            self._retry(job)

    def _back(self, job: Job, reason: str | None) -> None:
        self._in_flight.pop(job.job_id, None)
        self._dispatcher.put_back(job)
        self._ledger.postponed(job.seq, reason)

    def _retry(self, job: Job) -> None:
        self._dispatcher.retry(job)
        self.wake()

    def _recovered(self, known: Unfinished) -> Job:
        job = Job(
            seq=known.seq,
            job_id=known.job_id,
            site=known.site,
            application=known.application,
            script=known.script,
            queue=(known.site, known.mission_dir, known.script),
            interactive=False,
            state=known.state,
            cancelled_by=known.cancelled_by,
            from_before_boot=known.state is not State.QUEUED and known.boot != self._boot,
        )
        self._judge(job, known, why_held(self.config, known), is_new=True)
        return job

    def _judge(self, job: Job, known: Unfinished, held: str | None, *, is_new: bool = False) -> None:
        """Have a job follow the configuration. One that was started keeps what it was started with, but not its queue.

        `held` says why it cannot run; `is_new`: it is not known yet what it takes.
        """
        site = self.config.sites.get(known.site)
        if site is not None:
            job.queue = _queue(site, known)
        if job.state is not State.QUEUED and not is_new:
            return
        application = self.config.applications.get(known.application)
        job.interactive = application is not None and application.priority == "interactive"
        job.uses = () if application is None or held is not None else uses(application, of_data(known.additions))
        job.held = held
        job.delayed = False
        job.postponed = 0
        self._note_held(job)

    def _note_held(self, job: Job) -> None:
        if job.held is None:
            self._stuck.pop(job.job_id, None)
        else:
            self._stuck[job.job_id] = job

    # The visualiser

    def _notify(self, action: Literal["queued", "start", "complete"], job: Job, returncode: int | None = None) -> None:
        """Tell the visualiser, after the commit, if the job's application wants that."""
        application, site = self.config.applications.get(job.application), self.config.sites.get(job.site)
        if application is not None and application.visualiser and site is not None and self._visualiser.is_heard:
            self._ledger.after(partial(self._send_notice, action, job, site, returncode))

    def _send_notice(
        self, action: Literal["queued", "start", "complete"], job: Job, site: Site, returncode: int | None
    ) -> None:
        known = self._ledger.dispatch(job.seq)
        self._visualiser.notify(
            action,
            site=job.site,
            home=known.home,
            mission_dir=known.mission_dir
            if not site.jailed or site.jail_root is None
            else join_jail(site.jail_root, known.mission_dir),
            script=job.script,
            job_id=job.job_id,
            uuids=(other.job_id for other in self._dispatcher.of_queue(job.queue)),
            returncode=returncode,
        )

    # The helper

    @property
    def _helper_is_up(self) -> bool:
        return self._helper is not None and self._helper.is_up

    def _send(self, message: Mapping[str, object]) -> None:
        if self._helper is not None:
            self._helper.send(message)

    def _inquire(self, job_ids: Iterable[str]) -> None:
        for portion in _portions(list(job_ids)):
            self._send({"request": "inquire", "job_ids": portion})

    def _send_cancel(self, job_ids: list[str]) -> None:
        """Ask the helper to end jobs. If it is away now, it is asked when it is back."""
        for portion in _portions(job_ids):
            self._send({"request": "cancel", "job_ids": portion})

    def _dispatch(self, choice: Choice) -> None:
        """Ask the helper to start a job. If it is away now, it is asked about the job when it is back."""
        job = choice.job
        self._send(
            {
                "request": "dispatch",
                **asdict(self._ledger.dispatch(job.seq)),
                "digest": self.digests.get(job.site, ""),  # none: the site has just gone, and the helper says: later
                "queue_length": choice.queue_length,
            }
        )

    def _settle(self, job_id: str) -> None:
        """Tell the helper, after the commit, that a job's end is known."""
        if not self._settled:
            self._ledger.after(self._tell_settled)
        self._settled.append(job_id)

    def _tell_settled(self) -> None:
        settled, self._settled = self._settled, []
        self._send_settled(settled)

    def _send_settled(self, job_ids: list[str]) -> None:
        for portion in _portions(job_ids):
            self._send({"request": "settled", "job_ids": portion})

    def _sum_up(self, job: Job, reason: str) -> None:
        """Log why a job was postponed, once for all jobs of a site that have the same reason."""
        log = self._log.bind(site=job.site, reason=reason)
        self._repeats.say(
            (job.site, reason),
            lambda: self._ledger.after(partial(log.warning, "job postponed", job_id=job.job_id)),
            lambda times: log.warning("jobs postponed", times=times),
        )


class NotAllowedError(Exception):
    """What was asked for cannot be done; the text says why."""


class _UnknownEventError(Exception):
    """The helper says something that is not in the protocol."""


def _queue(site: Site, job: NewJob | Unfinished) -> tuple[str, ...]:
    """Return the key of the queue that a job belongs to."""
    if not site.queue_scripts:
        return (site.name,)
    return (site.name, job.mission_dir, job.script, runfile.glider(job.home))


def _scripts(config: Config) -> frozenset[str]:
    """Return the scripts that some application profile claims."""
    return frozenset(script for application in config.applications.values() for script in application.claims)


def _portions(job_ids: list[str]) -> Iterator[list[str]]:
    """Cut a list of ids so that each part fits a frame."""
    for start in range(0, len(job_ids), IDS_PER_FRAME):
        yield job_ids[start : start + IDS_PER_FRAME]


def _as_sent(message: Message) -> Dispatch | None:
    """Return what the helper was once sent of a job, from its `recalled`; None if that makes no sense."""
    job_id, request = message.get("job_id"), message.get("request")
    # A helper of an older version knew of no additions.
    fields = {"additions": {}, **request, "job_id": job_id} if isinstance(request, dict) else {}
    args = fields.get("args")
    if not isinstance(args, list) or fields.keys() != {field.name for field in attrs_fields(Dispatch)}:
        return None
    texts = (fields[name] for name in fields if name not in {"args", "additions"})
    if not isinstance(fields["additions"], dict) or not all(isinstance(word, str) for word in (*args, *texts)):
        return None
    return Dispatch(**fields)


def _dispatch_record(message: Message) -> str | None:
    """Return a job's dispatch record as the ledger holds it; None if the message has none, or one that is none."""
    told = message.get("dispatch")
    record = json.dumps(told) if isinstance(told, dict) and told else ""
    return record if 0 < len(record) <= MOST_RECORD else None


def _whole(value: object) -> int | None:
    """Return a number that fits the ledger; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 << 62 else None


def _record(value: object) -> dict[str, Any]:
    """Return an exit record of which the fields that are used have their types, or are None."""
    record = dict(value) if isinstance(value, dict) else {}
    record.update({field: _whole(record.get(field)) for field in _NUMBERS})
    record.update({field: _seconds(record.get(field)) for field in _SECONDS})
    for field in ("limit", "not_run"):
        text = record.get(field)
        record[field] = text if isinstance(text, str) else None
    return record
