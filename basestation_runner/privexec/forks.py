"""The helper's end of its fork server: has it started, has keepers forked, hears how each of them ended."""

import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from basestation_runner import program
from basestation_runner.errors import RunnerError
from basestation_runner.privexec import forkserver, loop
from basestation_runner.privexec.keeper import Post
from basestation_runner.privexec.loop import Loop
from basestation_runner.privexec.order import Order

_LINK: Final = 3
"""The descriptor on which the fork server finds its end of the link."""

_PATIENCE_MS: Final = 30_000
_SEND_PAUSE: Final = 0.1  # seconds
_WORDS_AT_ONCE: Final = 64
_NOT_FOR_IT: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"})
"""What systemd tells the helper alone."""

Ended = Callable[[int, int], None]
"""Called with why the keeper could not be forked (errno, else 0) and how it ended (wait status)."""


class Forks:
    """The fork server, from its start to its end."""

    def __init__(self) -> None:
        """Start it. It inherits this process's capabilities through execve: before they are trimmed. Raises OSError."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT}
        command = program.command(program.FORK_SERVER, str(_LINK))
        with theirs:
            self._pid = os.posix_spawn(
                command[0],
                command,
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _LINK)],
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        self._loop: Loop | None = None
        self._on_lost: Callable[[], object] = lambda: None
        self._next = 1
        self._ended: dict[int, Ended] = {}
        self._unsent: deque[tuple[int, int, int]] = deque()

    def begin(self, events: Loop, post: Post, on_lost: Callable[[], object]) -> None:
        """Let it serve; `on_lost` is called should it end. Raises RunnerError when it has not started."""
        if not self._is_ready(post):
            raise RunnerError("the fork server has not started", hint="what it has written to stderr says why")
        self._link.setblocking(False)
        self._loop = events
        self._on_lost = on_lost
        events.watch(self._link.fileno(), self._ready)

    def _is_ready(self, post: Post) -> bool:
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        try:
            socket.send_fds(self._link, [forkserver.settings(post)], post.claims.descriptors)
            return bool(poll.poll(_PATIENCE_MS)) and self._link.recv(len(forkserver.READY)) == forkserver.READY
        except OSError:  # it has ended
            return False

    def close(self) -> None:
        """Have it end, once it has forked what it was asked for."""
        self._link.close()

    def fork(self, order: Order, report: int, ended: Ended) -> None:
        """Have a keeper forked that says on the pipe `report` what becomes of the job. Raises OSError."""
        file = os.memfd_create(order.job_id)
        try:
            os.pwrite(file, order.to_bytes(), 0)
            report = os.dup(report)
        except OSError:
            os.close(file)
            raise
        self._ended[self._next] = ended
        self._unsent.append((self._next, file, report))
        self._next += 1
        self._send()

    def _send(self) -> None:
        """Send what the link takes now, the rest when it takes more."""
        while self._unsent:
            number, file, report = self._unsent[0]
            try:
                socket.send_fds(self._link, [forkserver.NUMBER.pack(number)], [file, report])
            except BlockingIOError:
                break
            except (BrokenPipeError, ConnectionResetError):
                return  # it has ended, of which the loop will tell
            except OSError:  # the kernel has no memory for it now, which gives no event to wait for
                if self._loop is not None:
                    self._loop.call_later(_SEND_PAUSE, self._send)
                return
            self._unsent.popleft()
            os.close(file)
            os.close(report)
        if self._loop is not None:
            events = loop.READ | (loop.WRITE if self._unsent else 0)
            self._loop.watch(self._link.fileno(), self._ready, events)

    def _ready(self, events: int) -> None:
        if events & loop.WRITE:
            self._send()
        if events & loop.READ:
            self._hear()

    def _hear(self) -> None:
        for _ in range(_WORDS_AT_ONCE):
            try:
                word = self._link.recv(forkserver.WORD.size)
            except BlockingIOError:
                return
            except OSError:
                word = b""
            if not word:
                if self._loop is not None:
                    self._loop.forget(self._link.fileno())
                self._on_lost()
                return
            number, fault, status = forkserver.WORD.unpack(word)
            self._ended.pop(number)(fault, status)
