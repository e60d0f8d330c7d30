"""The table of job states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.watch.states import FINAL, TABLE, Event, ForbiddenError, State, advance

states = st.sampled_from(list(State))
events = st.lists(st.sampled_from(list(Event)), max_size=30)


def test_every_state_is_in_the_table() -> None:
    assert set(TABLE) == set(State)


@given(states, events)
def test_an_end_is_final_whatever_is_said_later(state: State, told: list[Event]) -> None:
    for event in told:
        try:
            after = advance(state, event)
        except ForbiddenError:
            continue
        assert after is state or not state.is_final
        state = after


@given(events)
def test_a_job_that_has_run_is_never_queued_again(told: list[Event]) -> None:
    state, has_run = State.QUEUED, False
    for event in told:
        try:
            state = advance(state, event)
        except ForbiddenError:
            continue
        has_run = has_run or state is State.RUNNING
        assert not (has_run and state in {State.QUEUED, State.STARTING})


@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING, *sorted(FINAL)])
def test_only_a_queued_job_can_be_dispatched(state: State) -> None:
    with pytest.raises(ForbiddenError):
        advance(state, Event.DISPATCH)


def test_a_running_job_whose_mark_is_gone_is_lost_and_not_run_again() -> None:
    assert advance(State.RUNNING, Event.NEVER_STARTED) is State.LOST


def test_a_job_whose_first_steps_were_taken_for_it_is_refused_when_it_turns_out_not_to_run() -> None:
    assert advance(State.RUNNING, Event.NOT_RUN) is State.REFUSED


@pytest.mark.parametrize("event", [Event.POSTPONED, Event.REFUSED])
def test_what_was_started_cannot_be_said_not_to_start(event: Event) -> None:
    with pytest.raises(ForbiddenError, match="running"):
        advance(State.RUNNING, event)
