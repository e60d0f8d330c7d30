"""Ends a job that must end: SIGTERM, some time to tidy up, then SIGKILL for everything that is left of it.

Runs in the keeper, which is another account than the job and has no CAP_KILL: signals are sent by a child that becomes
what the job is, for as long as that takes.
"""

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from basestation_runner.privexec import identity
from basestation_runner.privexec.identity import Identity
from basestation_runner.privexec.leaf import Leaf

GRACE_SECONDS: Final = 10.0


def ends_within(pid: int, seconds: float | None) -> bool:
    """Wait for a child of this process to end, at most so long; tell whether it has. It is not reaped."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
    finally:
        os.close(pidfd)


def stop(pid: int, who: Identity, leaf: Leaf) -> None:
    """End the job whose first process is `pid`, a child of this process that has not been reaped.

    Afterwards nothing of its cgroup lives, or where there is none, nothing of its process group.
    """
    _signal(pid, who, signal.SIGTERM, leaf.pids())
    ends_within(pid, GRACE_SECONDS)
    kill_all(pid, who, leaf)


def kill_all(pid: int, who: Identity, leaf: Leaf) -> None:
    """Kill everything of a job, as `stop` does, at once."""
    leaf.kill()
    _signal(pid, who, signal.SIGKILL)


def _signal(group: int, who: Identity, number: signal.Signals, others: Iterable[int] = ()) -> None:
    """Send a signal to a process group of the job's and to other processes of it, as the job."""
    child = os.fork()
    if child == 0:
        try:
            identity.prepare()
            identity.drop(who._replace(cgroup_procs=None))
            with suppress(ProcessLookupError):
                os.killpg(group, number)
            for pid in others:
                with suppress(OSError):
                    os.kill(pid, number)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
