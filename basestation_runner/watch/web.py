"""A small HTTP server for one or two pages that can only be read. GET alone, one request a connection.

On a port every process of the host can connect, jobs too: nobody can make it hold much, wait long, or do much work.
A UNIX socket is for the watcher's group, mode 0660.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from attrs import frozen

from basestation_runner.repeats import Repeats
from basestation_runner.watch import unixsocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

LONGEST_HEAD: Final = 8 << 10
MOST_CONNECTIONS: Final = 32
PATIENCE: Final = 10.0
"""Seconds in which a connection must bring its request and take the answer."""
PAUSE: Final = 0.05
"""Seconds before each answer: they leave others time."""
FRESH: Final = 1.0
"""Seconds in which a page is not made again, however many ask for it."""
MODE: Final = 0o660
_HEADERS: Final = {
    "Connection": "close",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@frozen
class Address:
    """Where to listen: a UNIX socket's path, or a port of a loopback address."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def is_private(self) -> bool:
        """Whether the file system says who may ask: anybody on the host can reach a port."""
        return self.path is not None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@frozen
class Page:
    """What one path shows. `make` returns it anew, or raises anything: then the answer is that it cannot be shown."""

    content_type: str
    make: Callable[[], Awaitable[bytes]]
    headers: Mapping[str, str] = {}


class Web:
    """One listening socket, and its pages by path."""

    def __init__(self, address: Address, pages: Mapping[str, Page], *, log: FilteringBoundLogger) -> None:
        """Nothing happens before `start`."""
        self._address = address
        self._pages = pages
        self._log = log.bind(address=str(address))
        self._loop = asyncio.get_running_loop()
        self._repeats = Repeats(self._loop.call_later)
        self._server: asyncio.Server | None = None
        self._inode: int | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._made: dict[str, tuple[float, asyncio.Task[bytes]]] = {}

    async def start(self) -> None:
        """Listen. That this cannot be done stops no job: it is logged, and the watcher goes on without."""
        try:
            if self._address.path is None:
                self._server = await asyncio.start_server(
                    self._connected, self._address.host, self._address.port, limit=LONGEST_HEAD
                )
            else:
                listener, self._inode = unixsocket.listener(self._address.path, MODE)
                self._server = await asyncio.start_unix_server(self._connected, sock=listener, limit=LONGEST_HEAD)
        except OSError as error:
            self._log.error("page cannot be served", reason=error.strerror or str(error))

    @property
    def port(self) -> int:
        """The port that is listened on; 0 if there is none."""
        if self._server is None or self._address.path is not None:
            return 0
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Close every connection, and take the socket away unless it is another's by now."""
        if self._server is not None:
            self._server.close()
        for task, writer in tuple(self._serving.items()):
            writer.transport.abort()
            task.cancel()
        for _, making in self._made.values():
            making.cancel()
        if self._address.path is not None:
            unixsocket.remove(self._address.path, self._inode)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = self._loop.create_task(self._serve(reader, writer))
        self._serving[task] = writer
        task.add_done_callback(lambda done: self._serving.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, or let go of whoever does not bring one or take the answer."""
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(PAUSE)
                writer.write(await self._answer(head))
                writer.close()
                await writer.wait_closed()
        except asyncio.LimitOverrunError:
            writer.write(_answer(400, b"the request is too long\n"))
            writer.close()
        except (OSError, EOFError):  # it has gone, or its time is over
            writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, target, version
            return _answer(400, b"not a request\n")
        method, target, _ = words
        if method not in {"GET", "HEAD"}:
            return _answer(405, b"this can only be read\n", {"Allow": "GET, HEAD"})
        if not self._address.is_private and not _is_of_loopback(lines[1:]):
            return _answer(403, b"the Host of the request is not this host's own address\n")
        path = target.partition("?")[0]
        page = self._pages.get(path)
        if page is None:
            return _answer(404, b"there is no such page\n")
        try:
            body = await self._content(path, page)
        except Exception as error:  # noqa: BLE001 - whatever it is, jobs go on
            reason = f"{type(error).__name__}: {error}"
            self._repeats.say(
                (path, reason),
                lambda: self._log.warning("page cannot be shown", page=path, reason=reason),
                lambda times: self._log.warning("page cannot be shown", page=path, reason=reason, times=times),
            )
            return _answer(503, b"this cannot be shown now\n")
        return _answer(200, body, page.headers, page.content_type, with_body=method == "GET")

    async def _content(self, path: str, page: Page) -> bytes:
        """Return a page that is not older than FRESH, and make it but once for all who wait for it."""
        made_at, making = self._made.get(path, (0.0, None))
        if making is None or (making.done() and self._loop.time() - made_at > FRESH):
            making = self._loop.create_task(_made(page))
            self._made[path] = self._loop.time(), making
        return await asyncio.shield(making)


async def _made(page: Page) -> bytes:
    return await page.make()


def _is_of_loopback(headers: list[str]) -> bool:
    """Tell whether a request is meant for this host itself: a browser may have been led here by a foreign name."""
    hosts = [value.strip() for name, _, value in (line.partition(":") for line in headers) if name.lower() == "host"]
    if len(hosts) != 1:
        return False
    name = hosts[0] if hosts[0].endswith("]") else hosts[0].rpartition(":")[0] or hosts[0]
    return name in {"localhost", "[::1]"} or name.startswith("127.")


def _answer(
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    content_type: str = "text/plain; charset=utf-8",
    *,
    with_body: bool = True,
) -> bytes:
    fields = {**_HEADERS, "Content-Type": content_type, "Content-Length": str(len(body)), **(headers or {})}
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body if with_body else b"")
