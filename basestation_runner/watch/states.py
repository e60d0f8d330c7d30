"""What a job's state may become, as one table of state and event. Pure: knows no ledger, no helper and no clock.

Nothing else decides a job's next state; a pair that is not in the table is the helper's or our own mistake.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a job is. The values are what the ledger holds."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    LOST = "lost"
    REFUSED = "refused"

    @property
    def is_final(self) -> bool:
        """Tell whether the job has ended, one way or the other."""
        return self in FINAL


class Event(StrEnum):
    """What happens to a job."""

    DISPATCH = "dispatch"
    STARTED = "started"
    POSTPONED = "postponed"
    NEVER_STARTED = "never started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    LOST = "lost"
    REFUSED = "refused"
    NOT_RUN = "not run"  # but steps before it; a successor helper may have taken these for it


FINAL: Final = frozenset(
    {
        State.SUCCEEDED,
        State.FAILED,
        State.TIMED_OUT,
        State.OUT_OF_MEMORY,
        State.CANCELLED,
        State.LOST,
        State.REFUSED,
    }
)

# The helper's word counts whatever we thought: an answer to an earlier dispatch may arrive after the job was put back
# (the connection broke in between), and a repeated dispatch is answered with what became of the first one.
_ENDS: Final = {
    Event.SUCCEEDED: State.SUCCEEDED,
    Event.FAILED: State.FAILED,
    Event.CANCELLED: State.CANCELLED,
    Event.TIMED_OUT: State.TIMED_OUT,
    Event.OUT_OF_MEMORY: State.OUT_OF_MEMORY,
    Event.LOST: State.LOST,
    Event.NOT_RUN: State.REFUSED,
}

TABLE: Final[Mapping[State, Mapping[Event, State]]] = {
    State.QUEUED: {
        Event.DISPATCH: State.STARTING,
        Event.STARTED: State.RUNNING,
        Event.POSTPONED: State.QUEUED,
        Event.NEVER_STARTED: State.QUEUED,
        Event.REFUSED: State.REFUSED,
        **_ENDS,  # a cancellation too: it never ran
    },
    State.STARTING: {
        Event.STARTED: State.RUNNING,
        Event.POSTPONED: State.QUEUED,
        Event.NEVER_STARTED: State.QUEUED,
        Event.REFUSED: State.REFUSED,
        **_ENDS,
    },
    State.RUNNING: {
        Event.STARTED: State.RUNNING,
        # It ran, and the mark that says so is gone: running it again could do its work twice.
        Event.NEVER_STARTED: State.LOST,
        **_ENDS,
    },
    # An end is final: whatever is said later, the job is not run, counted or reported again.
    **{state: dict.fromkeys((event for event in Event if event is not Event.DISPATCH), state) for state in FINAL},
}


class ForbiddenError(Exception):
    """An event that cannot happen to a job in its state."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event!r} cannot happen to a job that is {state}")
        self.state = state
        self.event = event


def advance(state: State, event: Event) -> State:
    """Given a job's state and what happened, return its next state. Raises ForbiddenError."""
    try:
        return TABLE[state][event]
    except KeyError:
        raise ForbiddenError(state, event) from None
