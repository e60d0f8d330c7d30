"""Ends a job that must end, in its keeper: SIGTERM, time to tidy up, then SIGKILL for all that is left of it.

The keeper has no CAP_KILL, and its account is not the job's. To signal it takes the job's uid as its effective one for
that moment: it can reach what the job could, and nothing of the job's account can reach the keeper, whose real and
saved uid stay its own. The job's cgroup, where there is one, is the helper's and can be killed as it is.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import prctl

from basestation_runner.privexec.identity import Identity
from basestation_runner.privexec.leaf import Leaf
from basestation_runner.privexec.limits import RUNTIME

WAKE: Final = signal.SIGUSR1
"""What the helper sends to a keeper when it has marked a job; what counts is the mark of the keeper's present job."""
CANCELLED: Final = "cancelled"
SLOW: Final = "slow"
START_SECONDS: Final = 60.0
"""How long a job's child may take from the claim to its program: a file system of the site's may hang."""
GRACE_SECONDS: Final = 10.0
FIRST_PAUSE: Final = 1.0
"""Between two attempts to kill, and twice as long each time: what waits for a disk dies when that answers."""
LONGEST_PAUSE: Final = 60.0

_PENDING_WAKES: Final = 1 << 12


def ignore_wake() -> None:
    """Not to be ended by the signal: it may come before there is a job to end, or when it has ended."""
    signal.signal(WAKE, _nothing)


class Ending:
    """The end of one job: by itself, or because it is wanted. `pid` is its process, and its group's; not reaped yet."""

    def __init__(self, who: Identity, pid: int, leaf: Leaf, *, is_cancelled: Callable[[], bool]) -> None:
        """Nothing happens before one of the waits."""
        self.reason: str | None = None
        """Why it had to be ended: CANCELLED, RUNTIME or SLOW."""
        self._who = who
        self._pid = pid
        self._leaf = leaf
        self._is_cancelled = is_cancelled
        self._pause = FIRST_PAUSE
        self._start_by: float | None = None

    def await_start(self, channel: int, hear: Callable[[], bool]) -> None:
        """Wait until `hear`, called whenever `channel` is readable, returns False: its program runs, or it has ended.

        It is killed when it is cancelled, or START_SECONDS after the first such wait.
        """
        if self._start_by is None:
            self._start_by = time.monotonic() + START_SECONDS
        goes_on = True

        def heard() -> bool:
            nonlocal goes_on
            goes_on = hear()
            return not goes_on

        self._wait(channel, heard, self._start_by, SLOW)

    def start_anew(self) -> None:
        """Give it START_SECONDS again: it has had to wait for something else than itself."""
        self._start_by = None

    def wait(self, until: float | None) -> None:
        """Wait until the job's process has ended; end it when it is cancelled, or after `until` (monotonic clock)."""
        pidfd = os.pidfd_open(self._pid)
        try:
            self._wait(pidfd, lambda: True, until, RUNTIME)
        finally:
            os.close(pidfd)

    def clear(self) -> None:
        """Kill whatever is left of it. Its process may have ended, but is not reaped: its group's number is its own."""
        self._leaf.kill()
        self._signal(signal.SIGKILL)

    def _wait(self, descriptor: int, is_over: Callable[[], bool], until: float | None, late: str) -> None:
        if self.reason is not None:  # it was ended while it was being started, and has got as far as this
            until = self._kill()
        with _wakes() as woken:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.register(woken, select.POLLIN)
            while True:
                if self.reason is None and self._is_wanted():  # after each wake, and after those before the first one
                    until = self._begin(CANCELLED, at_once=late == SLOW)
                left = None if until is None else max(0.0, until - time.monotonic()) * 1000
                ready = {number for number, _ in poll.poll(left)}
                if woken in ready:
                    os.read(woken, _PENDING_WAKES)
                if descriptor in ready:
                    if is_over():
                        return
                elif until is not None and time.monotonic() >= until:
                    until = self._begin(late, at_once=late == SLOW) if self.reason is None else self._kill()

    def _is_wanted(self) -> bool:
        try:
            return self._is_cancelled()
        except OSError:  # the mark cannot be looked for now: a later wake, or the job's end, comes all the same
            return False

    def _begin(self, reason: str, *, at_once: bool) -> float:
        """Begin to end it; return when to go on. A process that has not become the job yet has nothing to tidy up."""
        self.reason = reason
        if at_once:
            return self._kill()
        self._signal(signal.SIGTERM)
        return time.monotonic() + GRACE_SECONDS

    def _kill(self) -> float:
        """Kill all of it; return when to do so again."""
        self.clear()
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        return time.monotonic() + pause

    def _signal(self, number: signal.Signals) -> None:
        """Signal the process group: as the job, and as what its process is before it has become that."""
        for uid in (self._who.uid, os.getuid()) if self._who.changes else (os.getuid(),):
            with suppress(ProcessLookupError, PermissionError), _acting_as(uid):
                try:
                    os.killpg(self._pid, number)
                except ProcessLookupError:  # it has no group of its own yet
                    os.kill(self._pid, number)


@contextmanager
def _acting_as(uid: int) -> Iterator[None]:
    """Have another effective uid for a moment. Changing it may make a process readable for others: that is undone."""
    if uid == os.geteuid():
        yield
        return
    own = os.geteuid()
    os.setresuid(-1, uid, -1)
    try:
        yield
    finally:
        os.setresuid(-1, own, -1)
        prctl.set_dumpable(0)


@contextmanager
def _wakes() -> Iterator[int]:
    """Return a descriptor that becomes readable with each wake from now on, also just before it is waited for."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)


def _nothing(*_: object) -> None:
    pass
