"""ZeroMQ connections to socket files of others. The only module that imports pyzmq, which hosts may lack.

Nothing here blocks but `await_ready`, and what a peer does or fails to do costs bounded memory. All of it belongs to
one thread; ZeroMQ has threads of its own besides, so the process must not fork.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import zmq
from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

MOST_UNSENT: Final = 200
"""Messages that wait for a peer which takes them slower than they come."""

_FIRST_RETRY_MS: Final = 100
_LONGEST_RETRY_MS: Final = 5000
_MOST_RECEIVED: Final = 1024  # bytes of one message: a peer has nothing to say but ZeroMQ's own greeting

Identity = tuple[int, int]
"""Device and inode: what tells a socket file from another that has, or gets, its name."""


@frozen(eq=False)
class Link:
    """A connection to one socket file. It is made, and made again, in the background."""

    end: zmq.Socket[bytes]
    file: int  # held open: no other file can get its identity

    @property
    def takes_more(self) -> bool:
        """Whether the peer is there, speaks ZeroMQ and is not too far behind."""
        return bool(int(self.end.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)

    def send(self, parts: Sequence[bytes]) -> None:
        """Send a message if the peer takes it at once; nobody keeps it for later."""
        try:
            self.end.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        self.end.close(linger=0)
        os.close(self.file)


class Links:
    """Makes links."""

    def __init__(self) -> None:
        """Start ZeroMQ's threads."""
        self._context: Final = zmq.Context()

    def connect(self, path: bytes, identity: Identity) -> Link | None:
        """Given a socket file, return a link to it; None if nobody listens there.

        The link leads to this very file or nowhere: by its name it could become a link of the filesystem to a socket
        that this process may use and whoever planted it may not.
        """
        try:
            file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        facts = os.fstat(file)
        address = f"/proc/self/fd/{file}"
        if stat.S_ISSOCK(facts.st_mode) and (facts.st_dev, facts.st_ino) == identity and _has_listener(address):
            with suppress(zmq.ZMQError):  # too few descriptors are left: the watcher needs them more
                return Link(self._socket(f"ipc://{address}"), file)
        os.close(file)
        return None

    def await_ready(self, links: Collection[Link], seconds: float) -> None:
        """Wait until all these links are ready to send, but no longer than this."""
        deadline = time.monotonic() + seconds
        poller = zmq.Poller()
        for link in links:
            poller.register(link.end, zmq.POLLOUT)
        while poller.sockets and (rest := deadline - time.monotonic()) > 0:
            for ready, _ in poller.poll(max(1, int(rest * 1000))):
                poller.unregister(ready)

    def close(self) -> None:
        """End ZeroMQ's threads. All links must have been closed."""
        self._context.term()

    def _socket(self, address: str) -> zmq.Socket[bytes]:
        made = self._context.socket(zmq.PUSH)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),  # nothing is kept for a peer that is away: old news are worse than none
            (zmq.SNDHWM, MOST_UNSENT),
            (zmq.RCVHWM, 1),
            (zmq.MAXMSGSIZE, _MOST_RECEIVED),
            (zmq.RECONNECT_IVL, _FIRST_RETRY_MS),
            (zmq.RECONNECT_IVL_MAX, _LONGEST_RETRY_MS),
        ):
            made.setsockopt(option, value)
        made.connect(address)
        return made


def _has_listener(address: str) -> bool:
    """Find out at once what ZeroMQ would try for ever: crashed listeners leave their files behind."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            probe.connect(address)
    except OSError:
        return False
    return True
