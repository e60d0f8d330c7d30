"""Ends a job that is to be cancelled, in its keeper: SIGTERM, time to end, then SIGKILL for all of it.

The keeper has no CAP_KILL. What signals is a child of its own that becomes the job's identity first, so that it can do
nothing that the job could not; the job's cgroup, where there is one, is the helper's and can be killed as it is.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from basestation_runner.privexec import identity
from basestation_runner.privexec.identity import Identity

WAKE: Final = signal.SIGUSR1
"""What the helper sends to a keeper when it has marked a job; what counts is the mark of the keeper's present job."""
GRACE_SECONDS: Final = 10
AGAIN_SECONDS: Final = 1
"""Between two attempts to kill: a job may stop the child that is to signal it, but not each of them for ever."""


def ignore_wake() -> None:
    """Not to be ended by the signal: it may come before there is a job to end, or when it has ended."""
    signal.signal(WAKE, _nothing)


class Cancellation:
    """The end of one job, if it is wanted. `pid` is the job's process, and its group's; it must not be reaped yet."""

    def __init__(
        self, who: Identity, pid: int, *, is_wanted: Callable[[], bool], kill_cgroup: Callable[[], None]
    ) -> None:
        """Nothing happens before `watch`."""
        self.was_begun = False
        self._who = who._replace(cgroup_procs=None)
        self._pid = pid
        self._is_wanted = is_wanted
        self._kill_cgroup = kill_cgroup
        self._children: list[int] = []

    def watch(self) -> None:
        """Begin as soon as it is wanted, which it may be already."""
        signal.signal(signal.SIGALRM, lambda *_: self._kill())
        signal.signal(WAKE, lambda *_: self._look())
        self._look()

    def finish(self) -> None:
        """The job's process has ended: what it has left goes with it, if it was cancelled."""
        ignore_wake()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if self.was_begun:
            self._kill_cgroup()
            self._signal(signal.SIGKILL)
            for child in self._children:
                with suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)

    def _look(self) -> None:
        if not self.was_begun and self._is_wanted():
            self.was_begun = True
            signal.alarm(GRACE_SECONDS)
            self._signal(signal.SIGTERM)

    def _kill(self) -> None:
        signal.alarm(AGAIN_SECONDS)
        self._kill_cgroup()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Have a child signal the job's process group as the job. It is not waited for: the job may stop it."""
        with suppress(OSError):  # no process can be made: it is tried again
            child = os.fork()
            if child == 0:
                _signal_as(self._who, self._pid, number)
            self._children.append(child)


def _nothing(*_: object) -> None:
    pass


def _signal_as(who: Identity, group: int, number: signal.Signals) -> None:
    """Become the job and signal its process group, in a fresh fork. Never returns."""
    try:
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # nothing of the helper's comes along
        identity.prepare()
        identity.drop(who)
        os.killpg(group, number)
    finally:
        os._exit(0)
