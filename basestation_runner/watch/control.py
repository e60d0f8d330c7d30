"""The control socket: everybody on the host may connect, and nobody can make it wait.

Frames in, frames out, one request of a connection at a time. Who may ask what is decided in callers.py; what the
requests do, in requests.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from basestation_runner import protocol
from basestation_runner.repeats import Repeats
from basestation_runner.watch import unixsocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

MODE: Final = 0o666
LONGEST_REQUEST: Final = 64 << 10
MOST_CONNECTIONS: Final = 128
MOST_OF_ONE: Final = 16
"""Connections of one account; root and the watcher's own account come in although all others are taken."""
PATIENCE: Final = 60.0
"""Seconds in which a connection must bring a request, or take its answer."""
PAUSE: Final = 0.02
"""Seconds between two requests of one connection, root's and the watcher's own excepted: they leave others time."""
BACKLOG: Final = 16
"""Connections that are taken in one turn of the loop."""
MOST_LINES: Final = 10
_PEER: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid


class Control:
    """The listening socket and its connections."""

    def __init__(
        self,
        path: Path,
        handle: Callable[[int, protocol.Message], Awaitable[protocol.Message]],
        *,
        loop: asyncio.AbstractEventLoop,
        log: FilteringBoundLogger,
    ) -> None:
        """Nothing happens before `start`. `handle` gets each message and its sender's uid, and returns the answer.

        What `handle` raises as ProtocolError closes the connection, after an answer that says why.
        """
        self.handle = handle
        self.loop = loop
        self._path = path
        self._log = log
        self._repeats = Repeats(loop.call_later, most=MOST_LINES)
        self._connections: set[_Connection] = set()
        self._of_one: Counter[int] = Counter()
        self._server: asyncio.Server | None = None
        self._inode: int | None = None

    async def start(self) -> None:
        """Listen. That this cannot be done stops no job: it is logged, and the watcher goes on without."""
        try:
            if unixsocket.is_served(self._path):
                self._log.error("another watcher listens on the control socket", socket=str(self._path))
                return
            listener, self._inode = unixsocket.listener(self._path, MODE)
        except OSError as error:
            self._log.error(
                "control socket cannot be made: nobody can ask this watcher anything",
                socket=str(self._path),
                reason=error.strerror or str(error),
            )
            return
        self._server = await self.loop.create_unix_server(lambda: _Connection(self), sock=listener, backlog=BACKLOG)

    def stop(self) -> None:
        """Close every connection, and take the socket away unless it is another's by now."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.close()
        unixsocket.remove(self._path, self._inode)

    def admits(self, connection: _Connection) -> bool:
        """Count a new connection in, if there is room for it."""
        uid = connection.uid
        is_full = len(self._connections) >= MOST_CONNECTIONS and not connection.is_ours
        if self._of_one[uid] >= MOST_OF_ONE or is_full:
            self.warn("control connection refused: there are too many", uid=uid)
            return False
        self._connections.add(connection)
        self._of_one[uid] += 1
        return True

    def forget(self, connection: _Connection) -> None:
        """A connection is over."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._of_one[connection.uid] -= 1
            if not self._of_one[connection.uid]:
                del self._of_one[connection.uid]

    def warn(self, event: str, **facts: object) -> None:
        """Log what a client has caused: a few times, and then as a number."""
        log = self._log.bind(**facts)
        self._repeats.say(
            (event, *facts.values()), lambda: log.warning(event), lambda times: log.warning(event, times=times)
        )

    def internal_error(self, error: Exception) -> None:
        """Log what no request should be able to cause."""
        self._log.error("internal error in a control request", exc_info=error)


class _Connection(asyncio.Protocol):
    """One client, from its coming to its going. Further requests are not read while one is being answered."""

    def __init__(self, control: Control) -> None:
        self.uid = -1
        self._control = control
        self._decoder = protocol.FrameDecoder(longest=LONGEST_REQUEST)
        self._requests: deque[protocol.Message] = deque()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._is_over = False  # nothing more is read: it is closed as soon as what was sent is taken

    @property
    def is_ours(self) -> bool:
        """Whether it is root's or the watcher's own account's."""
        return self.uid in {0, os.getuid()}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a socket's transport is expected")
        self._transport = transport
        self._may_write.set()
        transport.set_write_buffer_limits(0)
        link = transport.get_extra_info("socket")
        _, self.uid, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if self._control.admits(self):
            self._wait()
        else:
            self._refuse("there are too many connections")

    def data_received(self, data: bytes) -> None:
        if self._is_over or self._transport is None:
            return
        try:
            self._requests += self._decoder.feed(data)
        except protocol.ProtocolError as error:
            self._refuse(str(error))
            return
        if self._requests and self._answering is None:
            self._transport.pause_reading()
            self._answering = self._control.loop.create_task(self._answer_all())

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._is_over = True
        self._control.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()

    def close(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()

    async def _answer_all(self) -> None:
        """Answer what has been received, each when the last answer was taken."""
        try:
            while self._requests and not self._is_over:
                self._wait()
                await self._may_write.wait()
                self._send(await self._control.handle(self.uid, self._requests.popleft()))
                if not self.is_ours:
                    await asyncio.sleep(PAUSE)
        except protocol.ProtocolError as error:
            self._refuse(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, only this connection ends
            self._control.internal_error(error)
            self._refuse("an internal error: the watcher's log says more")
        finally:
            self._answering = None
            if not self._is_over and self._transport is not None:
                self._wait()
                self._transport.resume_reading()

    def _send(self, message: protocol.Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(protocol.encode(message))

    def _refuse(self, reason: str) -> None:
        """Say why, and close once that is taken."""
        self._send({"ok": False, "kind": "refused", "error": reason})
        self._is_over = True
        self._wait()
        if self._transport is not None:
            self._transport.close()

    def _wait(self) -> None:
        """Give the client its time anew."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._control.loop.call_later(PATIENCE, self.close)
