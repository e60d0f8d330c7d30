"""The helper's socket: who may connect, frames in, frames out. No client can make it wait for another.

What the requests mean is not decided here.
"""

import fcntl
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import structlog

from basestation_runner import protocol
from basestation_runner.errors import RunnerError
from basestation_runner.privexec import loop
from basestation_runner.privexec.loop import Loop
from basestation_runner.repeats import Repeats

_MOST_CONNECTIONS: Final = 32
_MOST_UNSENT: Final = 64 << 20
_PAUSE_UNSENT: Final = 1 << 20
_MOST_LINES: Final = 10
_ACCEPT_PAUSE: Final = 1.0  # seconds
_READ_BYTES: Final = 1 << 16
_PEER: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid

log = structlog.get_logger()


class Connection:
    """One client: the bytes that have not become a frame yet, and those that it has not taken yet."""

    def __init__(self, server: "Server", link: socket.socket, peer_uid: int) -> None:
        """Take over an accepted socket."""
        self.peer_uid = peer_uid
        self.is_open = True
        self._server = server
        self._link = link
        self._decoder = protocol.FrameDecoder()
        self._received: deque[protocol.Message] = deque()
        self._unsent = bytearray()
        self._watched = loop.READ

    def send(self, message: protocol.Message) -> None:
        """Send a message as far as the client takes it now, the rest later. Does nothing on a closed connection."""
        if not self.is_open:
            return
        self._unsent += protocol.encode(message)
        if len(self._unsent) > _MOST_UNSENT:
            self.close("it does not take its answers")
        else:
            self._flush()

    def close(self, reason: str | None = None) -> None:
        """Close the connection; with a reason, say so in the log."""
        if not self.is_open:
            return
        self.is_open = False
        if reason is not None:
            self._server.warn("connection closed", peer_uid=self.peer_uid, reason=reason)
        self._server.forget(self, self._link)
        self._link.close()

    def ready(self, events: int) -> None:
        """Go on after the loop found the socket readable or writable."""
        if events & loop.WRITE:
            self._flush()
            self._go_on()
        if events & loop.READ and self.is_open:
            self._read()

    def _read(self) -> None:
        try:
            data = self._link.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(str(error))
            return
        if not data:
            self.close()
            return
        try:
            self._received += self._decoder.feed(data)
        except protocol.ProtocolError as error:
            self._refuse(error)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Answer what has been received, as long as the client takes its answers: many are due to one inquiry."""
        try:
            while self._received and self.is_open and len(self._unsent) < _PAUSE_UNSENT:
                self._server.handle(self, self._received.popleft())
        except protocol.ProtocolError as error:
            self._refuse(error)
        self._watch()

    def _refuse(self, error: protocol.ProtocolError) -> None:
        self.send({"ok": False, "error": str(error)})
        self.close(str(error))

    def _flush(self) -> None:
        try:
            sent = self._link.send(self._unsent) if self._unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(str(error))
            return
        del self._unsent[:sent]
        self._watch()

    def _watch(self) -> None:
        """Wait for room while answers are unsent, and for requests unless some are still to be answered."""
        wanted = (0 if self._received else loop.READ) | (loop.WRITE if self._unsent else 0) or loop.READ
        if self.is_open and wanted != self._watched:
            self._watched = wanted
            self._server.watch(self, self._link, wanted)


class Server:
    """The listening socket and its connections, from one uid only."""

    def __init__(self, events: Loop, handle: Callable[[Connection, protocol.Message], None], allowed_uid: int) -> None:
        """Serve connections of `allowed_uid`: each message is passed to `handle`, which may raise ProtocolError."""
        self.handle = handle
        self._loop = events
        self._allowed_uid = allowed_uid
        self._repeats = Repeats(events.call_later, most=_MOST_LINES)
        self._connections: set[Connection] = set()
        self._listener: socket.socket | None = None
        self._path = ""

    def listen(self, path: str, group: int) -> None:
        """Bind and listen, mode 0660 with this group. Raises RunnerError if the address cannot be had.

        Whoever calls this must hold the address's lock: what is in the way is then known to be dead.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
            umask = os.umask(0o117)
            try:
                listener.bind(path)
            finally:
                os.umask(umask)
            if os.stat(path).st_gid != group:
                os.chown(path, -1, group)
            listener.listen(_MOST_CONNECTIONS)
        except OSError as error:
            listener.close()
            raise RunnerError(
                f"the socket cannot be made: {error.strerror}", where=path, hint="see --priv-exec-socket"
            ) from error
        self._listener, self._path = listener, path
        self._loop.watch(listener.fileno(), lambda _: self._accept(listener))

    def close(self) -> None:
        """Stop listening and close every connection."""
        if self._listener is not None:
            with suppress(KeyError):  # it is paused
                self._loop.forget(self._listener.fileno())
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._listener.close()
        for connection in list(self._connections):
            connection.close()

    def watch(self, connection: Connection, link: socket.socket, events: int) -> None:
        """Let the loop call the connection for these events."""
        self._loop.watch(link.fileno(), connection.ready, events)

    def forget(self, connection: Connection, link: socket.socket) -> None:
        """Drop a connection that is being closed."""
        self._connections.discard(connection)
        self._loop.forget(link.fileno())

    def warn(self, event: str, **facts: object) -> None:
        """Log what a client has caused: a few times, and then as a number, however often it tries."""
        log_it = log.bind(**facts)
        key = (event, *facts.values())
        self._repeats.say(key, lambda: log_it.warning(event), lambda times: log_it.warning(event, times=times))

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self._loop.watch(listener.fileno(), lambda _: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            link, _ = listener.accept()
        except OSError as error:  # out of descriptors, or the client is gone again: the others are still served
            self.warn("a connection could not be taken", reason=str(error))
            # It would be tried again at once, and for as long as descriptors are short.
            self._loop.forget(listener.fileno())
            self._loop.call_later(_ACCEPT_PAUSE, lambda: self._accept_again(listener))
            return
        _, uid, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid != self._allowed_uid:
            self.warn("connection refused", peer_uid=uid, reason="only the watcher's account may connect")
            link.close()
            return
        link.setblocking(False)
        if len(self._connections) >= _MOST_CONNECTIONS:
            link.close()
            self.warn("connection refused", peer_uid=uid, reason=f"there are {_MOST_CONNECTIONS} already")
            return
        connection = Connection(self, link, uid)
        self._connections.add(connection)
        self.watch(connection, link, loop.READ)


def hold(lock_paths: Iterable[str]) -> list[Any]:
    """Take the locks that make this the only helper on its socket and state directory. Raises RunnerError.

    Record locks belong to the process: a keeper that outlives the helper does not keep them.
    """
    held = []
    for path in lock_paths:
        try:
            file = open(path, "a", encoding="ascii")  # noqa: SIM115 - held for as long as the process lives
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunnerError("another helper is running", where=path, hint="stop it first") from error
        except OSError as error:
            raise RunnerError(f"the lock cannot be taken: {error.strerror}", where=path) from error
        held.append(file)
    return held
