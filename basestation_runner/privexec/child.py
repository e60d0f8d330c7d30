"""A child of a keeper that becomes the job or one of its steps, from the keeper's side: started, told, heard.

The child is a program of its own (become/main.c): small, so that it costs little to start, and with nothing in its
memory that a site should not have.
"""

import errno
import fcntl
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from basestation_runner import program
from basestation_runner.errors import RunnerError, printable
from basestation_runner.privexec import bwrap, job
from basestation_runner.privexec.ending import Ending
from basestation_runner.privexec.identity import Identity
from basestation_runner.privexec.job import Execution, Plan, Wish
from basestation_runner.privexec.order import RefusedError

_PASSING: Final = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.EBUSY, errno.ETXTBSY}
    | {errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ETIMEDOUT}
)
"""Errors that say something about this moment, not about the request."""

_LINK: Final = 3
"""The descriptor on which the child finds its end of the link."""

_UNTOLD: Final = 1
"""The exit code of a child that was told nothing."""

_TAIL_BYTES: Final = 4096
_MESSAGE_BYTES: Final = 1 << 16
_IDENTITY: Final = "-1"
_PROGRAM: Final = "-2"
"""What a fault is about, instead of a wish's number."""


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


class Fault(NamedTuple):
    """Why a child executes nothing; `passes`: a later attempt may succeed."""

    reason: str
    passes: bool


class Child:
    """A child and what it has told so far."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.socket = link
        self.log: Log | None = None
        self.started_at = 0.0  # since when its program runs, by the wall clock, which may be stepped
        self.began = 0.0  # the same by the monotonic clock
        self.fault: Fault | None = None
        """What it has said of why it executes nothing."""
        self.warnings: list[str] = []
        self._ending: Ending | None = None
        self._address_space: int | None = None
        self._program = "its process"
        self._wishes: Sequence[Wish] = ()
        self._results: list[str] = []
        self._is_told = False

    @property
    def ending(self) -> Ending:
        """How it is ended, once it has been told whom to become."""
        assert self._ending is not None  # noqa: S101 - nothing else asks
        return self._ending

    @property
    def has_executed(self) -> bool:
        """Whether it was told to execute its program, and has not said that it could not: then that may have run."""
        return self._is_told and self.fault is None

    def become(self, who: Identity, ending: Ending, log: Log | None = None) -> None:
        """Have it drop to what it shall be; it then waits. `log` is where a step of the job writes to."""
        self._ending = ending
        self._address_space = who.address_space
        self._tell(["become", *who.words], [] if log is None else [log.descriptor])

    def open(self, plan: Plan) -> bool:
        """Have it open what it needs; return whether it could. It is ended if that is wanted."""
        found = self._fulfil(plan.opening())
        if found is None:
            return False
        try:
            plan.take(found)
        except RefusedError as error:
            self._forgo(Fault(str(error), passes=False))
        return self.fault is None

    def execute(self, plan: Plan) -> None:
        """Have it execute its program; wait until that runs or the child has ended. It is ended if that is wanted."""
        found = self._fulfil(plan.view())
        if found is None:
            return
        try:
            execution = plan.execution(found)
        except RefusedError as error:
            self._forgo(Fault(str(error), passes=False))
            return
        self._program = execution.what
        self._is_told = self._tell_to_execute(execution)
        self.ending.await_start(self.socket.fileno(), self._hear)
        self.started_at, self.began = time.time(), time.monotonic()

    def _forgo(self, fault: Fault) -> None:
        """Let it execute nothing, for a reason of ours."""
        self.fault = fault
        with suppress(OSError):  # it has ended already
            self.socket.shutdown(socket.SHUT_RDWR)
        self.ending.clear()  # its site may have stopped it

    def _fulfil(self, wishes: Sequence[Wish]) -> Mapping[Wish, str] | None:
        if not wishes:
            return {}
        self._wishes, self._results = wishes, []
        self._tell(["open", *(word for wish in wishes for word in wish.words)])
        self.ending.await_start(self.socket.fileno(), lambda: self._hear() and len(self._results) < len(wishes))
        has_all = self.fault is None and len(self._results) == len(wishes)
        return dict(zip(wishes, self._results, strict=True)) if has_all else None

    def _tell_to_execute(self, execution: Execution) -> bool:
        sandbox = execution.sandbox
        memory = self._address_space
        places = [] if sandbox is None else sandbox.places
        words = ["execute", "" if memory is None else str(memory)]
        for several in (places, execution.argv, [f"{name}={text}" for name, text in execution.environment.items()]):
            words += [str(len(several)), *map(str, several)]
        if sandbox is None:
            return self._tell(words)
        options = bwrap.options_file(sandbox)
        try:
            return self._tell(words, [options])
        finally:
            os.close(options)

    def _tell(self, words: Sequence[str], descriptors: Sequence[int] = ()) -> bool:
        """Say something to it; return whether that has reached it. What cannot be said now is its fault."""
        try:
            data = _packed(words)
            file = os.memfd_create(words[0])
            try:
                os.pwrite(file, data, 0)
                socket.send_fds(self.socket, [b"."], [file, *descriptors])
            finally:
                os.close(file)
        except (BrokenPipeError, ConnectionResetError):  # it has ended: seen as the end of file
            return False
        except ValueError as error:
            self._forgo(Fault(f"it cannot be started: {error}", passes=False))
            return False
        except OSError as error:
            self._forgo(Fault(f"its process cannot be told: {error.strerror}", passes=error.errno in _PASSING))
            return False
        return True

    def _hear(self) -> bool:
        """Take one message; return False at the end."""
        try:
            data, descriptors = receive(self.socket, _MESSAGE_BYTES, 1)
        except ConnectionResetError:  # it was killed with our word unread; what it has said before still follows
            return True
        if not data:
            return False
        kind, *words = map(os.fsdecode, data[:-1].split(b"\0"))
        if kind == "warning":
            self.warnings += words
        elif kind == "log":
            readable, start = words
            self.log = Log(descriptors[0], readable == "1", int(start))
        elif kind == "found":
            self._results += words
        else:
            self.fault = self._fault(*words)
        return True

    def _fault(self, number: str, kind: str, text: str) -> Fault:
        if number == _IDENTITY:
            what = "its identity could not be taken on"
        else:
            what = job.shown(self._program if number == _PROGRAM else self._wishes[int(number)].what)
        if kind == "failed":  # what fails before there is anything of the job's is the host's affair
            return Fault(f"{what}: {os.strerror(int(text))}", passes=number == _IDENTITY or int(text) in _PASSING)
        return Fault(f"{what}: {text}", passes=kind == "busy")

    def close(self) -> None:
        """Close what this process has of it."""
        self.socket.close()
        if self.log is not None:
            os.close(self.log.descriptor)

    def end(self) -> None:
        """Let it end, if it has not: it runs nothing without this process's word."""
        self.close()
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises when it was reaped
            if self._ending is None:
                os.kill(self.pid, signal.SIGKILL)  # somebody may have stopped it
            else:
                self._ending.clear()
            os.waitpid(self.pid, 0)


def open_program() -> int:
    """Return a descriptor of the child's program, as it is now: an upgrade may replace the file.

    Raises RunnerError when it cannot be executed: a child of it has been started and has ended as it should.
    """
    try:
        descriptor = os.open(program.BECOME, os.O_RDONLY | os.O_CLOEXEC)
        try:
            become = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LINK + 1)  # a child has something else at _LINK
        finally:
            os.close(descriptor)
        tried = spawn(become)
    except OSError as error:
        raise _unusable(str(error.strerror)) from error
    tried.close()
    _, status = os.waitpid(tried.pid, 0)
    if os.waitstatus_to_exitcode(status) != _UNTOLD:
        raise _unusable(f"wait status {status}")
    return become


def _unusable(why: str) -> RunnerError:
    what = f"the program that becomes each job cannot be executed: {why}"
    hint = "install the whole package; in a checkout: make setup"
    return RunnerError(what, where=program.BECOME, hint=hint)


def spawn(become: int) -> Child:
    """Start a child, of the program `become`, that waits to be told what it is. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            pid = os.posix_spawn(
                f"/proc/self/fd/{become}",
                ["runner-become"],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _LINK)],
            )
        except OSError:
            ours.close()
            raise
    return Child(pid, ours)


def _packed(words: Sequence[str]) -> bytes:
    """Return words as the child reads them. Raises ValueError when one cannot be said."""
    if any("\0" in word for word in words):
        raise ValueError("a NUL is in an argument or a variable")
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def receive(channel: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Take one message of at most so many bytes, and the descriptors that come with it, closed by any execve."""
    data, descriptors, _, _ = socket.recv_fds(channel, size, most)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors


def clock(when: float) -> str:
    """Return a time in the legacy daemon's form. Nothing here sets a locale, so the month is English."""
    return time.strftime("%H:%M:%S %d %b %Y UTC", time.gmtime(when))
