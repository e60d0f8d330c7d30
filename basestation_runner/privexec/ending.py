"""Ends a job that must end, in its keeper: SIGTERM, time to tidy up, then SIGKILL for all that is left of it.

The keeper has no CAP_KILL. What signals is a child of its own that becomes the job's identity first, so that it can do
nothing that the job could not; the job's cgroup, where there is one, is the helper's and can be killed as it is.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from basestation_runner.privexec import identity
from basestation_runner.privexec.identity import Identity
from basestation_runner.privexec.leaf import Leaf
from basestation_runner.privexec.limits import RUNTIME

WAKE: Final = signal.SIGUSR1
"""What the helper sends to a keeper when it has marked a job; what counts is the mark of the keeper's present job."""
CANCELLED: Final = "cancelled"
GRACE_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 1.0
"""Between two attempts to kill: a job may stop the child that is to signal it, but not each of them for ever."""

_SOON: Final = 0.001  # a timer of 0 would never ring


def ignore_wake() -> None:
    """Not to be ended by the signal: it may come before there is a job to end, or when it has ended."""
    signal.signal(WAKE, _nothing)


class Ending:
    """The end of one job: by itself, or because it is wanted. `pid` is its process, and its group's; not reaped yet."""

    def __init__(self, who: Identity, pid: int, leaf: Leaf, *, is_cancelled: Callable[[], bool]) -> None:
        """Nothing happens before `wait`."""
        self.reason: str | None = None
        """Why it had to be ended: CANCELLED or RUNTIME."""
        self._who = who._replace(cgroup_procs=None)
        self._pid = pid
        self._leaf = leaf
        self._is_cancelled = is_cancelled
        self._children: list[int] = []

    def wait(self, until: float | None) -> None:
        """Wait until the job's process has ended; end it when it is cancelled, or after `until` (monotonic clock)."""
        signal.signal(signal.SIGALRM, lambda *_: self._ring())
        signal.signal(WAKE, lambda *_: self._look())
        if until is not None:
            _ring_in(until - time.monotonic())
        self._look()  # it may have been cancelled before
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        ignore_wake()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def clear(self) -> None:
        """The job's process has ended: end what it has left."""
        self._leaf.kill()
        self._signal(signal.SIGKILL)
        for child in self._children:
            # Until it has signalled the process group, the number must not become another's: the job is reaped later.
            with suppress(ChildProcessError):
                _ends_within(child, AGAIN_SECONDS)
                os.waitpid(child, os.WNOHANG)

    def _look(self) -> None:
        if self._is_cancelled():
            self._begin(CANCELLED)

    def _ring(self) -> None:
        if self.reason is None:
            self._begin(RUNTIME)
        else:
            _ring_in(AGAIN_SECONDS)
            self._leaf.kill()
            self._signal(signal.SIGKILL)

    def _begin(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            _ring_in(GRACE_SECONDS)
            self._signal(signal.SIGTERM, self._leaf.pids())

    def _signal(self, number: signal.Signals, others: Iterable[int] = ()) -> None:
        """Have a child signal the job's process group, and other processes of it, as the job.

        It is not waited for: the job may stop it.
        """
        with suppress(OSError):  # no process can be made: it is tried again
            child = os.fork()
            if child == 0:
                _signal_as(self._who, self._pid, number, others)
            self._children.append(child)


def _nothing(*_: object) -> None:
    pass


def _ring_in(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, max(_SOON, seconds))


def _ends_within(pid: int, seconds: float) -> None:
    """Wait for a child of this process to end, at most so long."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(pidfd)


def _signal_as(who: Identity, group: int, number: signal.Signals, others: Iterable[int]) -> None:
    """Become the job and signal its processes, in a fresh fork. Never returns."""
    try:
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # nothing of the helper's comes along
        identity.prepare()
        identity.drop(who)
        with suppress(ProcessLookupError):
            os.killpg(group, number)
        for pid in others:
            with suppress(OSError):
                os.kill(pid, number)
    finally:
        os._exit(0)
