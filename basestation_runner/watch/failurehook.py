"""The program that is told of jobs that ended badly. It runs as the watcher, and nothing waits for it.

It gets one JSON object on stdin and nothing else of ours: no shell, no descriptor, an environment made from nothing.
"""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from basestation_runner.repeats import Repeats

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from basestation_runner.watch.lanes import Lanes

MOST_ALIVE: Final = 4
MOST_IN_A_WHILE: Final = 20
WHILE: Final = 60.0
"""Seconds in which no more than MOST_IN_A_WHILE are started: what ends badly often comes in hundreds."""
PATIENCE: Final = 60.0
"""Seconds after which one that still runs is killed with its process group."""
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_STDIN, _STDOUT = 0, 1


class FailureHook:
    """Starts the program for one job after the other. On the loop; the starting itself is done beside it."""

    def __init__(
        self, program: Path, *, loop: asyncio.AbstractEventLoop, lanes: Lanes, log: FilteringBoundLogger
    ) -> None:
        self._program = str(program)
        self._loop = loop
        self._lanes = lanes
        self._log = log.bind(program=self._program)
        self._repeats = Repeats(loop.call_later)
        self._alive = 0  # started, or being started
        self._began: deque[float] = deque(maxlen=MOST_IN_A_WHILE)
        self._pidfds: set[int] = set()

    def tell(self, job: Mapping[str, Any]) -> None:
        """Start the program for a job, unless too many run or were started lately: then that is logged."""
        now = self._loop.time()
        if self._alive >= MOST_ALIVE:
            self._leave_out(job, f"{MOST_ALIVE} of it run already")
        elif len(self._began) == MOST_IN_A_WHILE and now - self._began[0] < WHILE:
            self._leave_out(job, f"it was started {MOST_IN_A_WHILE} times in {WHILE:g} s")
        else:
            self._began.append(now)
            self._alive += 1
            text = json.dumps(job).encode()
            lane = self._lanes.lane(
                on_hung=lambda _: self._failed("it cannot be started: no answer"), on_late=self._reap
            )
            lane.submit(lambda: _start(self._program, text), self._started, self._not_started)

    def close(self) -> None:
        """Wait for none of them any more; they are left to themselves."""
        for pidfd in self._pidfds:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._pidfds.clear()

    def _leave_out(self, job: Mapping[str, Any], reason: str) -> None:
        log = self._log.bind(reason=reason)
        self._repeats.say(
            reason,
            lambda: log.warning("on-failure program not run", job_id=job["id"], site=job["site"]),
            lambda times: log.warning("on-failure program not run", times=times),
        )

    def _started(self, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        self._pidfds.add(pidfd)
        timer = self._loop.call_later(PATIENCE, self._kill, pid)

        def ended() -> None:
            timer.cancel()
            self._loop.remove_reader(pidfd)
            self._pidfds.remove(pidfd)
            os.close(pidfd)
            self._alive -= 1
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if code != 0:
                self._failed(f"it ended with {code}" if code > 0 else f"it was killed by signal {-code}")

        self._loop.add_reader(pidfd, ended)

    def _kill(self, pid: int) -> None:
        self._failed(f"it has run for {PATIENCE:g} s and is killed")
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def _not_started(self, error: Exception) -> None:
        self._alive -= 1
        self._failed(f"it cannot be started: {getattr(error, 'strerror', None) or error}")

    def _failed(self, reason: str) -> None:
        log = self._log.bind(reason=reason)
        self._repeats.say(
            reason,
            lambda: log.warning("on-failure program failed"),
            lambda times: log.warning("on-failure program failed", times=times),
        )

    def _reap(self, pid: object) -> None:
        """What took very long to be started has been, or not: it counts as running until it has ended."""
        if isinstance(pid, int):
            self._started(pid)
        else:
            self._alive -= 1


def _start(program: str, text: bytes) -> int:
    """Start it and return its pid. May wait for the file system. Raises OSError."""
    stdin = os.memfd_create("job")
    try:
        os.write(stdin, text)
        os.lseek(stdin, 0, os.SEEK_SET)
        actions = [(os.POSIX_SPAWN_DUP2, stdin, _STDIN), (os.POSIX_SPAWN_OPEN, _STDOUT, os.devnull, os.O_WRONLY, 0)]
        return os.posix_spawn(
            program, [program], _ENVIRONMENT, file_actions=actions, setpgroup=0, setsigdef=[signal.SIGPIPE]
        )
    finally:
        os.close(stdin)
