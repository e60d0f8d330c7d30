"""The helper's table of jobs: forks a keeper for each dispatch, hears from it, and tells the watcher how it went.

The fork server says when a keeper that this helper had forked has ended; one that was found at start is waited for
through its pidfd.
"""

import os
import resource
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from signal import SIGALRM
from typing import Any, Final, Literal

import structlog

from basestation_runner import processes, protocol
from basestation_runner.privexec import ending, keeper
from basestation_runner.privexec.cgroups import Cgroups
from basestation_runner.privexec.claims import Claims
from basestation_runner.privexec.forks import Forks
from basestation_runner.privexec.leaf import LIMITS
from basestation_runner.privexec.loop import Loop
from basestation_runner.privexec.order import NotNowError, Order, RefusedError

_DESCRIPTORS_A_JOB: Final = 3  # its report, and while it is being ordered another two
_SPARE_DESCRIPTORS: Final = 128
_MOST_KEEPERS: Final = 4096
_CANCEL_AGAIN: Final = 5.0  # seconds, while the mark cannot be written
_EMPTY_INTERVAL: Final = 0.2  # seconds between looks at the cgroup of a job that was killed; they die at once

_DISPATCHED: Final = ("account", "uid", "groups", "argv", "env")
"""What a keeper says of a job that its dispatch record holds."""

log = structlog.get_logger()

State = Literal["starting", "running", "ended", "lost"]

Subscriber = Callable[[protocol.Message], None]
"""Whoever is to hear each event of a job: {"event", "job_id", …}."""


@dataclass
class Job:
    """One job that has been started or is being started, until the watcher has settled it."""

    job_id: str
    site: str
    state: State
    request: Mapping[str, Any] | None = None
    asked_by: int | None = None  # uid of whoever ordered it; None: an earlier helper was asked
    subscriber: Subscriber | None = None
    report: int | None = None
    pid: int | None = None
    started_at: float | None = None
    record: Mapping[str, Any] | None = None
    reason: str = ""
    has_told: bool = False  # that it runs
    dispatch: Mapping[str, Any] = field(default_factory=dict)  # what it was started with, for people
    has_told_dispatch: bool = False
    decoder: protocol.FrameDecoder = field(default_factory=protocol.FrameDecoder)


class Jobs:
    """All jobs that the helper knows, and what it does about each."""

    def __init__(self, events: Loop, claims: Claims, cgroups: Cgroups, forks: Forks) -> None:
        """Start with an empty table; `adopt` fills it with what an earlier helper left."""
        self._loop = events
        self._claims = claims
        self._cgroups = cgroups
        self._forks = forks
        self._jobs: dict[str, Job] = {}
        self._warned: set[tuple[str, str]] = set()
        self._waited_for = 0
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_waited_for = min(_MOST_KEEPERS, (descriptors - _SPARE_DESCRIPTORS) // _DESCRIPTORS_A_JOB)

    @property
    def alive(self) -> int:
        """How many jobs are starting or running."""
        return sum(job.state in {"starting", "running"} for job in self._jobs.values())

    def adopt(self) -> None:
        """Find the jobs that an earlier helper started: running ones are waited for, ended ones kept until settled."""
        for job_id in self._claims.take_over():
            self._adopt(job_id)
        if self._jobs:
            log.info("jobs adopted", running=self.alive, ended_meanwhile=len(self._jobs) - self.alive)

    def _adopt(self, job_id: str, subscriber: Subscriber | None = None) -> None:
        """Take over a job that has been claimed for an earlier helper. Does nothing when its claim is gone by now."""
        claim = self._claims.claimed(job_id)
        if claim is None:
            return
        job = Job(job_id, str(claim.get("site", "")), "running", claim.get("request"), subscriber=subscriber)
        self._jobs[job_id] = job
        if claim.get("boot_id") != processes.boot_id():
            self._conclude(job, "its host was restarted or its claim is damaged")
            return
        job.pid, job.started_at = claim["child"]["pid"], claim["claimed_at"]
        job.dispatch = claim.get("dispatch", {})
        pidfd = processes.open_if_alive(claim["keeper"]) if self._claims.is_kept(job_id) else None
        if pidfd is None:
            self._keeper_gone(job)
        else:
            self._wait_for_keeper(job, pidfd)

    def dispatch(self, job_id: str, order: Callable[[], Order], subscriber: Subscriber, asked_by: int) -> None:
        """Start a job, once whatever happens, and tell the subscriber when it is known how that went.

        `order` makes the order when there is no job of that id yet; it may raise RefusedError or NotNowError.
        """
        known = self._jobs.get(job_id)
        if known is not None:
            self._tell_anew(known, subscriber)
            return
        try:
            self._require_room()
            wanted = order()
        except RefusedError as error:
            log.warning("job refused", job_id=job_id, asked_by=asked_by, reason=str(error))
            _answer(subscriber, "refused", job_id, reason=str(error))
        except NotNowError as error:
            _answer(subscriber, "temporary", job_id, reason=str(error), absent=False)
        else:
            self._fork_keeper(wanted, subscriber, asked_by)

    def with_pid(self, pid: int) -> Job | None:
        """Return the newest job whose process has or had this pid; the order of adopted ones says nothing."""
        with_it = (job for job in self._jobs.values() if job.pid == pid)
        return max(with_it, key=lambda job: job.started_at or 0.0, default=None)

    def inquire(self, job_ids: Iterable[str], subscriber: Subscriber) -> None:
        """Tell what is known about each of the jobs, now or as soon as it is."""
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is None:
                _answer(subscriber, "never_started", job_id)
            else:
                self._tell_anew(job, subscriber)

    def recall(self, subscriber: Subscriber) -> None:
        """Tell of every job that is not settled, so that a watcher which has lost its ledger can ask for each."""
        for job in self._jobs.values():
            if job.request is not None:
                _answer(subscriber, "recalled", job.job_id, request=job.request)
        subscriber({"event": "recalled all"})

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Have jobs ended by their keepers; one that is starting, as soon as it runs."""
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is not None and job.state in {"starting", "running"}:
                self._cancel(job)

    def _cancel(self, job: Job) -> None:
        if self._jobs.get(job.job_id) is not job or job.state not in {"starting", "running"}:
            return
        try:
            self._claims.cancel(job.job_id)
        except OSError as error:
            log.warning("job cannot be cancelled now", site=job.site, job_id=job.job_id, reason=error.strerror)
            self._loop.call_later(_CANCEL_AGAIN, lambda: self._cancel(job))
            return
        log.info("job to be cancelled", site=job.site, job_id=job.job_id)
        claim = self._claims.claimed(job.job_id)
        keeper_pidfd = processes.open_if_alive(claim["keeper"]) if claim else None
        if keeper_pidfd is not None:  # otherwise it looks for the mark once it has claimed the job
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(keeper_pidfd, ending.WAKE)
            os.close(keeper_pidfd)

    def settle(self, job_ids: Iterable[str]) -> None:
        """Forget jobs whose end the watcher has committed."""
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is not None and job.state in {"ended", "lost"}:
                del self._jobs[job_id]
                self._claims.settle(job_id)
                self._cgroups.remove_leaf(job.site, job_id)

    def prune(self) -> None:
        """Forget jobs that ended long ago and that no watcher has ever settled.

        Not at start: the clock may have been stepped since, and the watcher is to ask for what it knows before.
        """
        self.settle([job_id for job_id in self._jobs if self._claims.is_old(job_id)])

    def sweep_cgroups(self) -> None:
        """Remove the cgroups of jobs that are forgotten; something of a job may have lived on in one until now."""
        for site, job_id in self._cgroups.leaves():
            if job_id not in self._jobs:
                self._cgroups.remove_leaf(site, job_id)

    def _require_room(self) -> None:
        """Raise NotNowError when one more job could cost the helper the descriptors that it serves the others with."""
        if self._waited_for >= self._most_waited_for:
            raise NotNowError(f"the helper keeps {self._waited_for} jobs already")

    def _fork_keeper(self, order: Order, subscriber: Subscriber, asked_by: int) -> None:
        job = Job(order.job_id, order.site.name, "starting", order.request, asked_by, subscriber, dispatch=order.facts)
        try:
            job.report = self._fork(order, job)
        except OSError as error:
            self._not_forked(job, error.errno or 0)
            return
        self._waited_for += 1
        self._jobs[order.job_id] = job
        self._loop.watch(job.report, lambda _: self._take_report(job))

    def _fork(self, order: Order, job: Job) -> int:
        """Have a keeper forked; return the descriptor of its reports. Raises OSError."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(reader, False)
            ordered = order._replace(cgroup=self._cgroups.leaf(order.site.name, order.job_id))
            self._forks.fork(ordered, writer, partial(self._forked_keeper_ended, job))
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return reader

    def _not_forked(self, job: Job, fault: int) -> None:
        reason = f"the keeper cannot be forked: {os.strerror(fault)}"
        _answer(job.subscriber, "temporary", job.job_id, reason=reason, absent=False)

    def _forked_keeper_ended(self, job: Job, fault: int, status: int) -> None:
        if fault:
            self._waited_for -= 1
            self._take_report(job)
            self._forget_unstarted(job)
            self._not_forked(job, fault)
        else:
            self._keeper_ended(job, status)

    def _wait_for_keeper(self, job: Job, pidfd: int) -> None:
        """Wait for a keeper of an earlier helper, which is reaped by init."""

        def ended(_: int) -> None:
            self._loop.forget(pidfd)
            os.close(pidfd)
            self._keeper_ended(job, 0)

        self._waited_for += 1
        self._loop.watch(pidfd, ended)

    def _take_report(self, job: Job) -> None:
        """Take what the keeper has said so far: how the start went, and later how the job ended."""
        while job.report is not None:
            try:
                data = os.read(job.report, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._loop.forget(job.report)
                os.close(job.report)
                job.report = None
            for report in job.decoder.feed(data):
                self._hear(job, report)

    def _hear(self, job: Job, report: Mapping[str, Any]) -> None:
        facts = {"site": job.site, "job_id": job.job_id}
        if report["outcome"] == "ended":
            self._ended(job, report["record"])
            return
        if report["outcome"] == "step":
            told = {
                name: report[name] for name in ("step", "exit_code", "signal", "failed") if report[name] is not None
            }
            (log.info if report["failed"] is None else log.warning)("step ended", **facts, **told)
            return
        if report["outcome"] == "started":
            job.state, job.pid, job.started_at = "running", report["pid"], report["started_at"]
            job.dispatch = {**job.dispatch, **{name: report[name] for name in _DISPATCHED}}
            self._tell(job)
            for warning in report["warnings"]:
                known = warning.startswith(LIMITS) and self._cgroups.is_faulty(job.site)
                if not known and (job.site, warning) not in self._warned:
                    self._warned.add((job.site, warning))
                    log.warning(warning, site=job.site)
            identity = {"uid": report["uid"], "gid": report["groups"][0], "groups": report["groups"]}
            log.info("job started", **facts, asked_by=job.asked_by, pid=job.pid, **identity, command=report["command"])
            return
        self._forget_unstarted(job)
        if report["outcome"] == "claimed":
            self._take_over(job)
            return
        reason = report["reason"]
        if report["outcome"] == "refused":
            log.warning("job refused", **facts, reason=reason)
            _answer(job.subscriber, "refused", job.job_id, reason=reason)
        else:
            log.info("job put back", **facts, reason=reason)
            _answer(job.subscriber, "temporary", job.job_id, reason=reason, absent=report["absent"])

    def _take_over(self, job: Job) -> None:
        """Go on with what an earlier helper's keeper has started under this id after we looked for claims."""
        self._adopt(job.job_id, job.subscriber)
        adopted = self._jobs.get(job.job_id)
        if adopted is None:
            _answer(job.subscriber, "temporary", job.job_id, reason="it was being started already", absent=False)
        elif adopted.state == "running":
            self._tell(adopted)

    def _forget_unstarted(self, job: Job) -> None:
        """Drop a job that has no claim; its keeper is still reaped when it ends."""
        self._jobs.pop(job.job_id, None)
        self._claims.uncancel(job.job_id)

    def _keeper_ended(self, job: Job, status: int) -> None:
        self._waited_for -= 1
        self._take_report(job)
        if self._jobs.get(job.job_id) is not job or job.state == "ended":
            return  # it was refused or put back, or the keeper has said all
        if self._claims.claimed(job.job_id) is None:
            slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) == SIGALRM
            reason = (
                f"the name service did not answer within {keeper.LOOKUP_SECONDS} s"
                if slow
                else f"its keeper ended before it started anything (wait status {status})"
            )
            self._not_started(job, reason)
        else:
            self._keeper_gone(job)

    def _not_started(self, job: Job, reason: str) -> None:
        """A keeper has ended without a claim. An earlier helper's may have taken it back, and could not say why.

        Of a job that is adopted while its child is on its way nobody can tell that it does not run yet. Whoever has
        been told that it does must not be told that it never has: it could be on its way again by then.
        """
        if job.has_told:
            self._conclude(job, "it was being started by an earlier helper, and was not")
            return
        self._forget_unstarted(job)
        log.info("job put back", site=job.site, job_id=job.job_id, reason=reason)
        _answer(job.subscriber, "temporary", job.job_id, reason=reason, absent=False)

    def _keeper_gone(self, job: Job) -> None:
        """Conclude a claimed job whose keeper has ended: by its record, or, without one, when its process is gone."""
        record = self._claims.ended(job.job_id)
        if record is not None:
            self._ended(job, record)
            return
        claim = self._claims.claimed(job.job_id)
        if claim is None:
            self._not_started(job, "an earlier helper's keeper could not start it")
            return
        child = processes.open_if_alive(claim["child"]) if claim else None
        self._cgroups.kill(job.site, job.job_id)
        if child is None:
            self._lose_when_empty(job)
            return
        job.state = "running"
        log.warning("job without a keeper", site=job.site, job_id=job.job_id, pid=job.pid)

        def gone(_: int) -> None:
            self._loop.forget(child)
            os.close(child)
            self._lose_when_empty(job)

        self._loop.watch(child, gone)

    def _lose_when_empty(self, job: Job) -> None:
        """Conclude a job whose own process is gone once nothing else of it is left in its cgroup either."""
        if self._cgroups.is_populated(job.site, job.job_id):
            job.state = "running"
            self._cgroups.kill(job.site, job.job_id)
            self._loop.call_later(_EMPTY_INTERVAL, lambda: self._lose_when_empty(job))
        else:
            self._conclude(job, "its keeper ended without a record")

    def _conclude(self, job: Job, reason: str) -> None:
        record = self._claims.ended(job.job_id)
        if record is not None:
            self._ended(job, record)
            return
        job.state, job.reason = "lost", reason
        log.error("job lost", site=job.site, job_id=job.job_id, reason=reason)
        self._tell(job)

    def _ended(self, job: Job, record: Mapping[str, Any]) -> None:
        job.state, job.record = "ended", record
        self._tell(job)  # its queue waits for this
        outcome = {name: record[name] for name in ("exit_code", "signal", "not_run") if record.get(name) is not None}
        seconds = round(record["ended_at"] - (record["started_at"] or record["ended_at"]), 3)
        log.info("job ended", site=job.site, job_id=job.job_id, script=record["script"], **outcome, seconds=seconds)

    def _tell_anew(self, job: Job, subscriber: Subscriber) -> None:
        """Tell a watcher that may have missed everything."""
        job.subscriber = subscriber
        job.has_told_dispatch = False
        self._tell(job)

    def _tell(self, job: Job) -> None:
        """Tell the job's watcher the state it is in; nothing yet while it is starting."""
        dispatch = {} if job.has_told_dispatch else {"dispatch": job.dispatch}
        if job.state == "running":
            job.has_told = job.has_told or job.subscriber is not None
            job.has_told_dispatch = job.subscriber is not None
            _answer(job.subscriber, "started", job.job_id, pid=job.pid, started_at=job.started_at, **dispatch)
        elif job.state == "ended":
            _answer(job.subscriber, "ended", job.job_id, record=job.record, **dispatch)
        elif job.state == "lost":
            _answer(job.subscriber, "lost", job.job_id, reason=job.reason)


def _answer(subscriber: Subscriber | None, event: str, job_id: str, **facts: object) -> None:
    if subscriber is not None:
        subscriber({"event": event, "job_id": job_id, **facts})
