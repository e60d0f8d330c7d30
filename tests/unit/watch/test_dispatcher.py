"""Which job starts next, against a slow and obvious model of the same rules."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from attrs import define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from basestation_runner.watch.dispatcher import Dispatcher, Job, Limits
from basestation_runner.watch.states import State

if TYPE_CHECKING:
    from collections.abc import Iterator

SITES = ("alpha", "beta", "gamma")
LIMITS = Limits(normal=3, interactive=2, per_site={"beta": 1}, interactive_per_site=1, resources={"foam": 2, "tape": 1})
USES = st.sampled_from([(), (), (("foam", 1),), (("foam", 2),), (("foam", 1), ("tape", 1)), (("none", 1),)])


@define(eq=False)
class Known:
    """What the model knows of a job."""

    job: Job
    was_chosen: bool = False
    is_running: bool = False
    is_delayed: bool = False


class Rules(RuleBasedStateMachine):
    """Everything that may happen to jobs, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = Dispatcher(LIMITS)
        self.limits = LIMITS
        self.known: list[Known] = []
        self.seq = 0
        self.held: set[str | None] = set()

    def running(self, site: str | None, *, interactive: bool) -> int:
        return sum(
            each.is_running and each.job.interactive == interactive and site in {None, each.job.site}
            for each in self.known
        )

    def may_start(self, each: Known) -> bool:
        """Say what the rules say, slowly."""
        queue = [other for other in self.known if other.job.queue == each.job.queue]
        if self.held & {None, each.job.site}:
            return False
        if any(other.is_running for other in queue) or each.is_delayed or each.job.held is not None:
            return False
        first = next((other for other in queue if other.was_chosen), queue[0])
        if first is not each:
            return False
        for name, amount in each.job.uses:
            used = sum(dict(other.job.uses).get(name, 0) for other in self.known if other.is_running)
            if used + amount > self.limits.resources.get(name, 0):
                return False
        if each.job.interactive:
            site_limit: int | None = self.limits.interactive_per_site
            host_limit = self.limits.interactive
        else:
            site_limit, host_limit = self.limits.per_site.get(each.job.site), self.limits.normal
        kind = each.job.interactive
        return self.running(None, interactive=kind) < host_limit and (
            site_limit is None or self.running(each.job.site, interactive=kind) < site_limit
        )

    def pick(self, data: st.DataObject, *, running: bool) -> Known:
        return data.draw(st.sampled_from([each for each in self.known if each.is_running is running]))

    @rule(
        site=st.sampled_from(SITES),
        queue=st.integers(0, 3),
        interactive=st.booleans(),
        held=st.sampled_from([None, None, None, "application x is not defined"]),
        uses=USES,
    )
    def add(
        self,
        site: str,
        queue: int,
        interactive: bool,  # noqa: FBT001 - drawn
        held: str | None,
        uses: tuple[tuple[str, int], ...],
    ) -> None:
        self.seq += 1
        job = Job(self.seq, str(self.seq), site, "app", "script", (site, str(queue)), interactive, held=held, uses=uses)
        self.dispatcher.add(job)
        self.known.append(Known(job))

    @rule(site=st.sampled_from(SITES), queue=st.integers(0, 3), interactive=st.booleans(), uses=USES)
    def recover_a_running_one(
        self,
        site: str,
        queue: int,
        interactive: bool,  # noqa: FBT001 - drawn
        uses: tuple[tuple[str, int], ...],
    ) -> None:
        self.seq += 1
        key = (site, str(queue))
        job = Job(self.seq, str(self.seq), site, "app", "script", key, interactive, state=State.RUNNING, uses=uses)
        self.dispatcher.add(job)
        self.known.append(Known(job, was_chosen=True, is_running=True))

    @rule(site=st.sampled_from([None, *SITES]), is_held=st.booleans())
    def hold_or_release(self, site: str | None, *, is_held: bool) -> None:
        self.dispatcher.hold(site, is_held=is_held)
        (self.held.add if is_held else self.held.discard)(site)

    @rule()
    def choose(self) -> None:
        able = [each for each in self.known if self.may_start(each)]
        choice = self.dispatcher.next()
        if choice is None:
            assert not able
            return
        (chosen,) = [each for each in self.known if each.job is choice.job]
        assert chosen in able
        assert chosen.job.interactive or not any(each.job.interactive for each in able)
        same_site = [each for each in able if each.job.site == chosen.job.site]
        assert chosen.job.seq == min(
            each.job.seq for each in same_site if each.job.interactive is choice.job.interactive
        )
        queue = [each for each in self.known if each.job.queue == chosen.job.queue]
        assert choice.queue_length == sum(not each.was_chosen and each is not chosen for each in queue)
        chosen.was_chosen = chosen.is_running = True

    @precondition(lambda self: any(each.is_running for each in self.known))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ended = self.pick(data, running=True)
        self.dispatcher.remove(ended.job)
        self.known.remove(ended)

    @precondition(lambda self: any(not each.is_running for each in self.known))
    @rule(data=st.data())
    def end_without_running(self, data: st.DataObject) -> None:
        ended = self.pick(data, running=False)
        self.dispatcher.remove(ended.job)
        self.known.remove(ended)

    @precondition(lambda self: any(each.is_running for each in self.known))
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        back = self.pick(data, running=True)
        self.dispatcher.put_back(back.job)
        back.is_running, back.is_delayed = False, True

    @precondition(lambda self: any(each.is_delayed for each in self.known))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        tried = data.draw(st.sampled_from([each for each in self.known if each.is_delayed]))
        self.dispatcher.retry(tried.job)
        tried.is_delayed = False

    @precondition(lambda self: any(not each.is_running for each in self.known))
    @rule(data=st.data(), interactive=st.booleans(), uses=USES)
    def change(
        self,
        data: st.DataObject,
        interactive: bool,  # noqa: FBT001 - drawn
        uses: tuple[tuple[str, int], ...],
    ) -> None:
        changed = self.pick(data, running=False)
        self.dispatcher.change(changed.job, application="other", interactive=interactive, uses=uses)
        changed.is_delayed = False
        assert (changed.job.application, changed.job.held) == ("other", None)

    @precondition(lambda self: any(not each.is_running for each in self.known))
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        resumed = self.pick(data, running=False)
        self.dispatcher.resume(resumed.job)
        resumed.was_chosen = resumed.is_running = True
        resumed.is_delayed = False
        self.known.sort(key=lambda each: not each.was_chosen)  # what runs stands before what waits

    def untouched(self, sites: set[str]) -> dict[str, int]:
        return {site: limit for site, limit in self.limits.per_site.items() if site not in sites}

    @rule(data=st.data(), sites=st.sets(st.sampled_from(SITES)), normal=st.integers(1, 4), foam=st.integers(0, 3))
    def renew(self, data: st.DataObject, sites: set[str], normal: int, foam: int) -> None:
        self.limits = Limits(
            normal=normal,
            interactive=2,
            per_site={site: data.draw(st.integers(1, 3)) for site in sites} | self.untouched(sites),
            interactive_per_site=1,
            resources={"foam": foam, "tape": 1},
        )

        def update(job: Job) -> None:
            (known,) = (each for each in self.known if each.job is job)
            job.queue = (job.site, data.draw(st.sampled_from(["0", "1", "other"])))
            if not known.is_running:
                job.uses = data.draw(USES)
                job.interactive = data.draw(st.booleans())
                job.held = data.draw(st.sampled_from([None, "application x is not defined"]))
                job.delayed = known.is_delayed = False

        self.dispatcher.renew(self.limits, sites, update)
        self.known.sort(key=lambda each: (not each.was_chosen, each.job.seq))

    @invariant()
    def counts_are_right(self) -> None:
        assert self.dispatcher.total_running == sum(each.is_running for each in self.known)
        assert self.dispatcher.total_queued == sum(not each.is_running for each in self.known)
        for site in SITES:
            queued = sum(each.job.site == site and not each.is_running for each in self.known)
            assert self.dispatcher.queued(site) == queued

    @invariant()
    def every_waiting_job_has_a_reason(self) -> None:
        for each in self.known:
            if not each.is_running:
                about_to = self.dispatcher.reason(each.job) == "it is about to start"
                assert about_to is self.may_start(each)


TestRules = Rules.TestCase
TestRules.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def jobs(site: str, count: int, *, interactive: bool = False, queues: bool = True, first: int = 1) -> Iterator[Job]:
    for seq in range(first, first + count):
        queue = (site, str(seq if queues else 0))
        yield Job(seq, f"{site}{seq}", site, "app", "script", queue, interactive)


def chosen(dispatcher: Dispatcher) -> list[str]:
    found = []
    while (choice := dispatcher.next()) is not None:
        found.append(choice.job.job_id)
    return found


def test_sites_take_turns_however_much_one_of_them_has() -> None:
    dispatcher = Dispatcher(Limits(normal=6, interactive=8, per_site={}))
    for job in (*jobs("alpha", 1000), *jobs("beta", 2, first=2000), *jobs("gamma", 1, first=3000)):
        dispatcher.add(job)
    assert chosen(dispatcher) == ["alpha1", "beta2000", "gamma3000", "alpha2", "beta2001", "alpha3"]


@pytest.mark.parametrize("interactive", [False, True], ids=["normal", "interactive"])
def test_who_fills_the_host_stops_no_site_of_which_nothing_runs(*, interactive: bool) -> None:
    dispatcher = Dispatcher(Limits(normal=8, interactive=8, per_site={}, has_reserve=True))
    for job in jobs("alpha", 20, interactive=interactive):
        dispatcher.add(job)
    assert chosen(dispatcher) == [f"alpha{number}" for number in range(1, 7)]
    waiting = next(job for job in dispatcher.jobs() if job.job_id == "alpha7")
    assert dispatcher.reason(waiting) == "the host's last places (2) are kept for sites of which nothing runs"
    for first, site in enumerate(("beta", "gamma", "delta"), start=1):
        for job in jobs(site, 2, interactive=interactive, first=1000 * first):
            dispatcher.add(job)
    assert chosen(dispatcher) == ["beta1000", "gamma2000"]
    assert dispatcher.reason(waiting) == "the host runs as many jobs as it may (8)"
    for job in list(dispatcher.jobs()):
        if job.job_id in {"alpha1", "alpha2", "alpha3"}:
            dispatcher.remove(job)
    assert chosen(dispatcher) == ["alpha7", "delta3000"]


def test_an_interactive_job_starts_although_the_host_is_full_of_normal_ones() -> None:
    dispatcher = Dispatcher(Limits(normal=2, interactive=8, per_site={"alpha": 1}))
    for job in jobs("alpha", 10):
        dispatcher.add(job)
    assert chosen(dispatcher) == ["alpha1"]
    for job in jobs("alpha", 1, interactive=True, first=50):
        dispatcher.add(job)
    assert chosen(dispatcher) == ["alpha50"]


def test_the_length_of_a_queue_is_what_waits_behind_the_job() -> None:
    dispatcher = Dispatcher(Limits(normal=2, interactive=8, per_site={}))
    for job in jobs("alpha", 4, queues=False):
        dispatcher.add(job)
    choice = dispatcher.next()
    assert choice is not None
    assert choice.queue_length == 3
    assert dispatcher.next() is None


def test_a_job_that_is_put_back_keeps_its_place_and_blocks_its_queue_alone() -> None:
    dispatcher = Dispatcher(Limits(normal=9, interactive=8, per_site={}))
    first, second = jobs("alpha", 2, queues=False)
    other = next(jobs("alpha", 1, first=10))
    for job in (first, second, other):
        dispatcher.add(job)
    assert chosen(dispatcher) == ["alpha1", "alpha10"]
    dispatcher.put_back(first)
    assert chosen(dispatcher) == []
    dispatcher.retry(first)
    assert chosen(dispatcher) == ["alpha1"]


@pytest.mark.parametrize("queues", [True, False], ids=["side by side", "one queue"])
def test_the_cost_of_a_job_does_not_grow_with_the_number_of_jobs(queues: bool) -> None:  # noqa: FBT001 - a parameter
    """The factor is generous: it is to tell flat from linear, which would be 30."""

    def seconds_a_job(count: int) -> float:
        dispatcher = Dispatcher(Limits(normal=4, interactive=8, per_site={}))
        for job in jobs("alpha", count, queues=queues):
            dispatcher.add(job)
        done = 2000
        start = time.process_time()
        for _ in range(done):
            choice = dispatcher.next()
            assert choice is not None
            dispatcher.remove(choice.job)
        return (time.process_time() - start) / done

    few, many = min(seconds_a_job(2_000) for _ in range(3)), seconds_a_job(60_000)
    assert many < 8 * few


def test_a_job_waits_for_the_hosts_resources_and_says_for_which() -> None:
    dispatcher = Dispatcher(Limits(normal=9, interactive=8, per_site={}, resources={"foam": 2}))
    one, two, three, never = (
        Job(seq, str(seq), "alpha", "app", "script", ("alpha", str(seq)), interactive=False, uses=(("foam", amount),))
        for seq, amount in enumerate((1, 1, 2, 3))
    )
    for job in (one, two, three, never):
        dispatcher.add(job)
    assert chosen(dispatcher) == ["0", "1"]
    assert dispatcher.reason(three) == "it needs 2 foam, of which 2 of 2 are in use"
    assert dispatcher.reason(never) == "it needs 3 foam, of which this host offers 2"
    dispatcher.remove(one)
    assert chosen(dispatcher) == []
    assert dispatcher.reason(three) == "it needs 2 foam, of which 1 of 2 are in use"
    dispatcher.remove(two)
    assert chosen(dispatcher) == ["2"]
