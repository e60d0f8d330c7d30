"""A child of a keeper that becomes the job or one of its steps, from the keeper's side: forked, told, heard.

What the child does itself is in job.py.
"""

import json
import os
import socket
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from basestation_runner import nss, processes
from basestation_runner.errors import printable
from basestation_runner.privexec import job
from basestation_runner.privexec.ending import Ending
from basestation_runner.privexec.identity import Identity

_TAIL_BYTES: Final = 4096
_MESSAGE_BYTES: Final = 1 << 16


class Log(NamedTuple):
    """The job's log, opened and verified by the job itself."""

    descriptor: int
    readable: bool
    start: int

    def write_line(self, level: str, text: str) -> None:
        """Append one line in the legacy daemon's form. A log that cannot be written must not lose the exit record."""
        with suppress(OSError):
            os.write(self.descriptor, f"{clock(time.time())}: {level}: {printable(text)}\n".encode())

    def tail(self) -> str:
        """Return the last part of what was written since the job began."""
        if not self.readable:
            return ""
        with suppress(OSError):
            size = os.fstat(self.descriptor).st_size
            begin = max(min(self.start, size), size - _TAIL_BYTES)
            return os.pread(self.descriptor, size - begin, begin).decode(errors="replace")
        return ""


class Child:
    """A child and what it has told so far."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.socket = link
        self.log: Log | None = None
        self.started_at = 0.0  # since when its program runs, by the wall clock, which may be stepped
        self.began = 0.0  # the same by the monotonic clock
        self.outcome: dict[str, Any] | None = None
        self._ending: Ending | None = None
        self.warnings: list[str] = []

    @property
    def is_ready(self) -> bool:
        """Whether nothing has kept it from executing its program so far."""
        return self.outcome is not None and self.outcome["outcome"] == "ready"

    @property
    def why_not(self) -> str | None:
        """What it has said of why it executes nothing; None if it has not said so."""
        return None if self.outcome is None or self.is_ready else str(self.outcome["reason"])

    @property
    def ending(self) -> Ending:
        """How it is ended, once it has been ordered."""
        assert self._ending is not None  # noqa: S101 - nothing else asks
        return self._ending

    def order(
        self, account: nss.Account, who: Identity, files: Collection[int], ending: Ending, step: int | None = None
    ) -> None:
        """Tell it what it becomes: a step of the job, or the job itself."""
        self._ending = ending
        with suppress(BrokenPipeError, ConnectionResetError):  # it has been killed: seen later, as the end of file
            socket.send_fds(self.socket, [job.ordered(account, who, step)], files)

    def go(self) -> None:
        """Let it go on."""
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended already: seen later, as the end of file
            self.socket.send(job.GO)

    def await_ready(self) -> None:
        """Take its messages until it waits to be let go on, or has ended; it is ended if that is wanted."""
        self.ending.await_start(self.socket.fileno(), lambda: self._hear() and self.outcome is None)

    def await_exec(self) -> None:
        """Take its messages until its end of the socket closes: by execve, or because it ended before.

        It is ended if that is wanted.
        """
        self.ending.await_start(self.socket.fileno(), self._hear)
        self.started_at, self.began = time.time(), time.monotonic()

    def _hear(self) -> bool:
        """Take one message; return False at the end."""
        try:
            data, descriptors = receive(self.socket, _MESSAGE_BYTES, 1)
        except ConnectionResetError:  # it was killed with our word unread; what it has said before still follows
            return True
        if not data:
            return False
        message = json.loads(data)
        if descriptors:
            self.log = Log(descriptors[0], message["readable"], message["start"])
        elif "warnings" in message:
            self.warnings += message["warnings"]
        else:
            self.outcome = message
        return True

    def close(self) -> None:
        """Close what this process has of it."""
        self.socket.close()
        if self.log is not None:
            os.close(self.log.descriptor)

    def end(self) -> None:
        """Let it end, if it has not: it runs nothing without this process's word."""
        self.close()
        with suppress(ChildProcessError):
            if self._ending is not None:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises when it was reaped
                self._ending.clear()  # its site may have stopped it
            os.waitpid(self.pid, 0)


def fork(cache_dir: str, *, close: Iterable[int] | None = None) -> Child:
    """Fork a child that waits for its order. It closes the descriptors `close`, or all but the standard ones."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        if close is None:
            processes.close_all_but({0, 1, 2, theirs.fileno()})
        else:
            for descriptor in (ours.fileno(), *close):
                os.close(descriptor)
        job.run(theirs, cache_dir)
    theirs.close()
    return Child(pid, ours)


def receive(channel: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Take one message of at most so many bytes, and the descriptors that come with it, closed by any execve."""
    data, descriptors, _, _ = socket.recv_fds(channel, size, most)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors


def clock(when: float) -> str:
    """Return a time in the legacy daemon's form. Nothing here sets a locale, so the month is English."""
    return time.strftime("%H:%M:%S %d %b %Y UTC", time.gmtime(when))
