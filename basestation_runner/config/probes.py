"""Questions that may hang, each asked in a throw-away child process and given up after a while.

A child and not a thread: a thread that waits for a dead file server cannot be ended, and this process could not end
either. A child holds nothing but the pipe for its answers.
"""

import os
import select
import signal
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any, Final, NoReturn

from attrs import frozen

PATIENCE: Final = 10.0
"""Seconds for one question."""
IN_ALL: Final = 60.0
"""Seconds for all of them."""
AT_ONCE: Final = 64
"""Children: so many questions may hang before others have to wait."""
_LAST_DESCRIPTOR: Final = 1 << 20
_TO_DIE: Final = 1.0

Question = Callable[[], Any]


@frozen
class Unseen:
    """In place of an answer: why there is none, and whether that is the host's fault."""

    why: str  # after a subject: "does not answer"
    is_fault: bool


@frozen
class _Raised:
    """In place of an answer: an exception that its question does not foresee."""

    trace: str


class _Lane:
    """Some of the questions, asked one after the other by one child, or by its successor after one that hung."""

    def __init__(self, questions: Sequence[Question], mine: range) -> None:
        self._questions = questions
        self.waiting = deque(mine)
        self.start()

    def start(self) -> None:
        self.answers, into = Pipe(duplex=False)
        self._pid = os.fork()
        if self._pid == 0:
            _answer([self._questions[number] for number in self.waiting], into)
        into.close()
        self.since = monotonic()

    def receive(self) -> tuple[Any, bool]:
        """Return the child's answer, and whether it is alive."""
        self.since = monotonic()
        try:
            answer = self.answers.recv()
        except (EOFError, OSError):
            return Unseen("could not be looked at: whoever did was killed", is_fault=True), False
        match answer:
            case _Raised(trace):
                raise RuntimeError(f"a question failed\n{trace}")
        return answer, True

    def end(self) -> None:
        """End the child. One that even SIGKILL cannot end at once is left to the kernel."""
        pidfd = os.pidfd_open(self._pid)
        os.kill(self._pid, signal.SIGKILL)
        select.select([pidfd], [], [], _TO_DIE)
        os.close(pidfd)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)
        self.answers.close()


def ask(questions: Sequence[Question], *, patience: float = PATIENCE, in_all: float = IN_ALL) -> list[Any]:
    """Return the answers in order: what each question returned, or Unseen. Answers travel by pickle.

    A question that raises anything is a mistake of its author's, and raises RuntimeError here.
    """
    answers: list[Any] = [Unseen("was not looked at: too much else did not answer", is_fault=True)] * len(questions)
    end = monotonic() + in_all
    starts = range(min(AT_ONCE, len(questions)))
    lanes = [_Lane(questions, range(start, len(questions), AT_ONCE)) for start in starts]
    try:
        while lanes and (now := monotonic()) < end:
            first = min(lane.since for lane in lanes) + patience
            ready = wait([lane.answers for lane in lanes], max(0.0, min(first, end) - now))
            for lane in tuple(lanes):
                if lane.answers in ready:
                    answer, is_alive = lane.receive()
                elif monotonic() - lane.since >= patience:
                    answer = Unseen(f"does not answer within {patience:g} s", is_fault=True)
                    is_alive = False
                else:
                    continue
                answers[lane.waiting.popleft()] = answer
                if not lane.waiting:
                    lanes.remove(lane)
                    lane.end()
                elif not is_alive:
                    lane.end()
                    lane.start()
    finally:
        for lane in lanes:
            lane.end()
    return answers


def _answer(questions: Sequence[Question], into: Connection) -> NoReturn:
    """What a child does, until its last answer."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os.closerange(3, into.fileno())
        os.closerange(into.fileno() + 1, _LAST_DESCRIPTOR)
        for question in questions:
            into.send(_outcome(question))
    finally:
        os._exit(0)


def _outcome(question: Question) -> Any:  # noqa: ANN401 - any question's answer
    try:
        return question()
    except Exception:  # noqa: BLE001 - whatever it is, whoever waits is told
        return _Raised(traceback.format_exc())
