"""The way of all jobs against a helper that crashes, answers late, twice or never, and a disk that fills up.

Deterministic: the real ledger, dispatcher and table of states; loop, helper and time are the test's. Every crash drops
what is in memory, and what was said and not heard.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from basestation_runner import runfile
from basestation_runner.config.model import Config, Site
from basestation_runner.config.profiles import builtin_profiles
from basestation_runner.watch.dispatcher import Dispatcher, Limits
from basestation_runner.watch.inbox import Stamp, Taken
from basestation_runner.watch.jobs import MARK_GONE, Jobs
from basestation_runner.watch.ledger import Hold, Ledger
from basestation_runner.watch.states import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from basestation_runner.watch.helper import Helper

Message = dict[str, Any]
MISSIONS = 3
CANCELLED = {"exit_code": None, "signal": 15, "cancelled": True}


class Silent:
    """A logger, a completions log and a visualiser that say nothing."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: self


@define(eq=False)
class FakeLoop:
    """Timers that ring when the test says so."""

    timers: list[tuple[Callable[..., object], tuple[Any, ...]]] = field(factory=list)

    def call_later(self, _: float, callback: Callable[..., object], *args: Any) -> None:  # noqa: ANN401 - asyncio's
        self.timers.append((callback, args))

    def time(self) -> float:
        return 0.0

    def ring(self) -> None:
        due, self.timers = self.timers, []
        for callback, args in due:
            callback(*args)


@define(eq=False)
class FakeHelper:
    """What a helper knows and does. `marks` outlive it, as claims and exit records do; what it is starting does not."""

    marks: dict[str, Message | None] = field(factory=dict)  # None: it runs; {"lost": …} or an exit record
    starting: dict[str, Message] = field(factory=dict)
    runs: Counter[str] = field(factory=Counter)
    running: dict[tuple[str, ...], str] = field(factory=dict)  # by queue
    order: dict[tuple[str, ...], list[str]] = field(factory=dict)
    queues: dict[str, tuple[str, ...]] = field(factory=dict)
    heard: list[Message] = field(factory=list)  # sent by the watcher and not dealt with
    said: list[Message] = field(factory=list)  # not heard by the watcher
    cancelled: set[str] = field(factory=set)  # outlives it too
    outcomes: dict[str, Message] = field(factory=dict)
    is_up: bool = False

    def send(self, message: Message) -> None:
        if self.is_up:
            self.heard.append(message)

    def deal(self, how: str) -> None:
        """Deal with the oldest message; `how` says what comes of a dispatch."""
        message = self.heard.pop(0)
        match message["request"]:
            case "dispatch":
                self._dispatch(message, how)
            case "inquire":
                for job_id in message["job_ids"]:
                    self._tell(job_id)
            case "cancel":
                for job_id in message["job_ids"]:
                    self.cancelled.add(job_id)
                    if job_id in self.running.values():
                        self.end(job_id, CANCELLED)
            case "settled":
                for job_id in message["job_ids"]:
                    if self.marks.get(job_id) is not None:
                        del self.marks[job_id]

    def _dispatch(self, message: Message, how: str) -> None:
        job_id = message["job_id"]
        self.queues[job_id] = (message["mission_dir"], message["script"])
        if job_id in self.marks or job_id in self.starting:
            self._tell(job_id)
        elif how == "late":
            self.starting[job_id] = message
        elif how == "start":
            self.run(job_id)
        else:
            self.say(job_id, "temporary", reason="not now")

    def run(self, job_id: str) -> None:
        queue = self.queues[job_id]
        self.starting.pop(job_id, None)
        assert queue not in self.running, "beside another job of its queue"
        self.runs[job_id] += 1
        self.running[queue] = job_id
        self.order.setdefault(queue, []).append(job_id)
        self.marks[job_id] = None
        self._tell(job_id)
        if job_id in self.cancelled:
            self.end(job_id, CANCELLED)

    def put_back(self, job_id: str) -> None:
        del self.starting[job_id]
        self.say(job_id, "temporary", reason="the claim cannot be written")

    def end(self, job_id: str, outcome: Message) -> None:
        del self.running[self.queues[job_id]]
        self.marks[job_id] = self.outcomes[job_id] = outcome
        self._tell(job_id)

    def say(self, job_id: str, event: str, **facts: object) -> None:
        if self.is_up:
            self.said.append({"event": event, "job_id": job_id, **facts})

    def _tell(self, job_id: str) -> None:
        if job_id in self.starting:
            return
        if job_id not in self.marks:
            self.say(job_id, "never_started")
            return
        outcome = self.marks[job_id]
        if outcome is None:
            self.say(job_id, "started", pid=1, started_at=1.0)
        elif "lost" in outcome:
            self.say(job_id, "lost", reason=outcome["lost"])
        else:
            self.say(job_id, "ended", record={"job_id": job_id, **outcome})

    def lose_connection(self) -> None:
        self.is_up = False
        self.heard.clear()
        self.said.clear()

    def crash(self) -> None:
        self.lose_connection()
        self.starting.clear()  # their keepers cannot claim for a dead helper

    def reboot(self) -> None:
        self.crash()
        for job_id in self.running.values():
            self.marks[job_id] = {"lost": "its host was restarted"}
        self.running.clear()


class JobsMachine(RuleBasedStateMachine):
    """Anything may happen to watcher, helper and host, in any order; at the end all is well for long enough."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="runner-test-"))
        self.site = Site(name="one", watch_dir="/srv/one", runner_user="one", applications=("base",))
        self.config = Config(sites={"one": self.site}, applications=builtin_profiles().applications)
        self.helper = FakeHelper()
        self.loop = FakeLoop()
        self.to_be_cancelled: set[str] = set()
        self.caught_by_reboot: set[str] = set()
        self.boot = 0
        self.dropped = 0
        self.unacknowledged: list[Taken] = []
        self.accepted: list[str] = []
        self.disk_is_full = False

    # The watcher

    @initialize()
    def start(self) -> None:
        self.loop = FakeLoop()
        self.ledger = Ledger(self.directory)
        self.dispatcher = Dispatcher(Limits(normal=4, interactive=4, per_site={}))
        self.jobs = Jobs(
            self.config,
            loop=cast("Any", self.loop),
            ledger=self.ledger,
            dispatcher=self.dispatcher,
            completions=cast("Any", Silent()),
            visualiser=cast("Any", Silent()),
            absent_patience=600.0,
            boot=f"boot {self.boot}",
            log=cast("Any", Silent()),
            wake=lambda: None,  # each rule is followed by a turn
            on_room=lambda _: None,
            on_complete=lambda: None,
        )
        self.jobs.attach(cast("Helper", self.helper))
        self.jobs.recover()
        for taken in list(self.unacknowledged):
            self.accept(taken)

    def accept(self, taken: Taken) -> None:
        intake = self.jobs.accept(self.site, taken, 17)

        def acknowledge() -> None:
            self.unacknowledged.remove(taken)
            self.accepted.append(intake.job_id)
            self.ledger.removed(intake.job_id)

        self.ledger.after(acknowledge)

    def turn(self) -> None:
        self.jobs.choose()
        if not self.disk_is_full:
            for action in self.ledger.commit():
                action()

    @rule(mission=st.integers(0, MISSIONS - 1))
    def drop(self, mission: int) -> None:
        self.dropped += 1
        text = f"/h/sg123 /h/sg123/m{mission} /h/sg123/m{mission}/log Base.py --n {self.dropped}\n"
        application = self.config.applications["base"]
        identity = self.dropped.to_bytes(4, "big") * 8
        stamp = Stamp(inode=self.dropped, size=len(text), mtime_ns=1, ctime_ns=1, mode=0o100644)
        request = runfile.parse(text.encode())
        taken = Taken(f"{self.dropped}.run", stamp, identity, 1000, request, application)
        self.unacknowledged.append(taken)
        self.accept(taken)
        self.turn()

    @rule(which=st.integers(0, 9))
    def a_job_is_cancelled(self, which: int) -> None:
        known = list(self.ledger.unfinished())
        job = self.jobs.job(known[which % len(known)].job_id) if known else None
        if job is not None:
            self.to_be_cancelled.add(job.job_id)
            self.jobs.cancel(job, 1000)
            self.turn()

    @rule(site=st.sampled_from(["", "one"]), is_held=st.booleans())
    def somebody_holds_or_releases(self, site: str, *, is_held: bool) -> None:
        if is_held:
            self.jobs.hold(Hold(site=site, held_by=1000, held_at=1.0))
        else:
            self.jobs.release(site)
        self.turn()

    @invariant()
    def nothing_is_dispatched_while_it_is_held(self) -> None:
        if not hasattr(self, "jobs") or not self.jobs.holds:
            return
        assert self.dispatcher.next() is None

    @rule()
    def time_passes(self) -> None:
        self.loop.ring()
        self.turn()

    @rule(what=st.sampled_from(["the watcher", "the helper", "the connection", "the host"]))
    def something_fails(self, what: str) -> None:
        match what:
            case "the watcher":
                self.watcher_is_killed()
            case "the helper":
                self.helper.crash()
            case "the connection":
                self.helper.lose_connection()
            case "the host":
                self.host_is_restarted()

    @rule()
    def all_is_said_and_heard(self) -> None:
        if not self.helper.is_up:
            self.helper_comes_up()
        while self.helper.heard or self.helper.said:
            while self.helper.heard:
                self.helper.deal("start")
            while self.helper.said:
                self.watcher_hears_something(times=1)

    def watcher_is_killed(self) -> None:
        self.helper.lose_connection()
        self.ledger.close()
        self.start()

    @rule()
    def disk_fills_up_or_gets_room(self) -> None:
        self.disk_is_full = not self.disk_is_full
        self.turn()

    # The helper

    @precondition(lambda self: not self.helper.is_up)
    @rule()
    def helper_comes_up(self) -> None:
        self.helper.is_up = True
        self.jobs.on_up()
        self.turn()

    @precondition(lambda self: self.helper.heard)
    @rule(how=st.sampled_from(["start", "late", "not now"]))
    def helper_deals_with_a_message(self, how: str) -> None:
        self.helper.deal(how)

    @precondition(lambda self: self.helper.starting)
    @rule(which=st.integers(0, 9), does_start=st.booleans())
    def a_late_job_starts_or_does_not(self, which: int, *, does_start: bool) -> None:
        waiting = list(self.helper.starting)
        job_id = waiting[which % len(waiting)]
        if does_start:
            self.helper.run(job_id)
        else:
            self.helper.put_back(job_id)

    @precondition(lambda self: self.helper.running)
    @rule(which=st.integers(0, 9), code=st.sampled_from([0, 0, 3, None]))
    def a_job_ends(self, which: int, code: int | None) -> None:
        """Without a code, its keeper was killed."""
        running = list(self.helper.running.values())
        job_id = running[which % len(running)]
        outcome = {"lost": "its keeper ended without a record"} if code is None else {"exit_code": code, "signal": None}
        self.helper.end(job_id, outcome)

    @precondition(lambda self: self.helper.said)
    @rule(times=st.sampled_from([1, 1, 1, 2]))
    def watcher_hears_something(self, times: int) -> None:
        message = self.helper.said.pop(0)
        for _ in range(times):
            self.jobs.on_event(message)
        self.turn()

    def host_is_restarted(self) -> None:
        self.caught_by_reboot.update(
            known.job_id
            for known in self.ledger.unfinished()
            if known.state is not State.QUEUED and self.helper.marks.get(known.job_id) is None
        )
        self.helper.reboot()
        self.boot += 1
        self.ledger.close()
        self.start()

    # What must always be true, and at the end

    @invariant()
    def no_job_ran_twice(self) -> None:
        assert all(count == 1 for count in self.helper.runs.values())

    def teardown(self) -> None:
        try:
            if hasattr(self, "ledger"):
                self.come_to_rest()
                self.judge()
        finally:
            if hasattr(self, "ledger"):
                self.ledger.close()
            shutil.rmtree(self.directory)

    def come_to_rest(self) -> None:
        """Do all that was asked for, kill the watcher before it has heard of that, and then let all be well."""
        while self.helper.heard:
            self.helper.deal("start")
        self.watcher_is_killed()
        self.disk_is_full = False
        self.jobs.release("")
        self.jobs.release("one")
        if not self.helper.is_up:
            self.helper_comes_up()
        for _ in range(10 * self.dropped + 10):
            self.time_passes()
            while self.helper.heard:
                self.helper.deal("start")
            for job_id in list(self.helper.starting):
                self.helper.run(job_id)
            for job_id in list(self.helper.running.values()):
                self.helper.end(job_id, {"exit_code": 0, "signal": None})
            while self.helper.said:
                self.watcher_hears_something(times=1)

    def judge(self) -> None:
        assert not self.unacknowledged
        assert len(self.accepted) == len(set(self.accepted)) == self.dropped
        assert list(self.ledger.unfinished()) == []
        rows = self.ledger._database.execute("SELECT id, state, reason, exit_code, seq FROM jobs").fetchall()
        for job_id, state, reason, code, _ in rows:
            outcome = self.helper.outcomes.get(job_id, {})
            if state == "lost":
                assert reason
                assert reason != MARK_GONE
                assert "lost" in outcome or job_id in self.caught_by_reboot
                continue
            if state == "cancelled":
                assert job_id in self.to_be_cancelled
                assert outcome in ({}, CANCELLED)
                assert self.helper.runs[job_id] == len(outcome) // len(CANCELLED)
                continue
            assert job_id not in self.caught_by_reboot, "what may have run before is not started again by itself"
            assert (state, code) == ("succeeded" if code == 0 else "failed", outcome["exit_code"])
            assert self.helper.runs[job_id] == 1
        place = {job_id: seq for job_id, _, _, _, seq in rows}
        for ran in self.helper.order.values():
            assert [place[job_id] for job_id in ran] == sorted(place[job_id] for job_id in ran)
        assert not self.helper.marks, "what has ended was settled"


@pytest.mark.usefixtures("tmp_path")
class TestJobs(JobsMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=40, stateful_step_count=60)


def test_an_end_that_is_not_durable_is_not_settled_when_the_helper_comes_back() -> None:
    """Its mark is all that would be left of it if the watcher were killed now."""
    machine = JobsMachine()
    machine.start()
    machine.drop(mission=0)
    machine.all_is_said_and_heard()
    machine.disk_fills_up_or_gets_room()
    machine.a_job_ends(which=0, code=0)
    machine.all_is_said_and_heard()
    machine.something_fails("the helper")
    machine.all_is_said_and_heard()
    assert len(machine.helper.marks) == 1
    machine.teardown()
