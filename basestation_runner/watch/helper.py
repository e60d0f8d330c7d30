"""The connection to the helper: made, kept, made again. Passes on what the helper says; knows no job.

While there is none, nothing is lost: whoever sends must ask again once `on_up` was called.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from basestation_runner import protocol
from basestation_runner.watch import inotify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from basestation_runner.watch.inotify import Watches

FIRST_DELAY: Final = 0.2
LONGEST_DELAY: Final = 5.0
PATIENCE: Final = 5.0
"""Seconds for connecting and for the answer to the greeting."""
RELOAD_PATIENCE: Final = 75.0
"""Seconds for reading the configuration anew: the helper's own patience with that, and some more."""
PROBE_PATIENCE: Final = 50.0
"""Seconds for probing a site, likewise."""


class Helper:
    """The helper as the watcher sees it. Everything here runs on the loop."""

    def __init__(  # noqa: PLR0913 - what surrounds a connection
        self,
        socket: Path,
        *,
        loop: asyncio.AbstractEventLoop,
        watches: Watches,
        log: FilteringBoundLogger,
        on_up: Callable[[], None],
        on_event: Callable[[protocol.Message], None],
        on_reconfigured: Callable[[], None],
    ) -> None:
        """Nothing happens before `start`. `on_up`: the helper can be asked; `on_event`: it says something of a job.

        `on_reconfigured`: it goes by another configuration from now on.
        """
        self._socket = socket
        self._loop = loop
        self._watches = watches
        self._log = log
        self._on_up = on_up
        self._on_event = on_event
        self._on_reconfigured = on_reconfigured
        self._reloading: list[asyncio.Future[list[str] | None]] = []
        self._probing: dict[str, list[asyncio.Future[protocol.Message | None]]] = {}
        self._connection: _Connection | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._must_try_again = False
        self._timer: asyncio.TimerHandle | None = None
        self._delay = FIRST_DELAY
        self._watch: int | None = None
        self._expected = ""
        self._away_since: float | None = None
        self._has_warned = False
        self._is_up = False
        self._greeting: protocol.Message = {}

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of the helper, for whoever shows it; `config` is the fingerprint of what it has read.

        `missing` are the ways to run jobs that do not work on its host, with the reasons.
        """
        return {
            "reachable": self._is_up,
            "away_seconds": None if self._away_since is None else round(self._loop.time() - self._away_since, 1),
            "pid": self._greeting.get("pid"),
            "program": self._greeting.get("program"),
            "config": self._greeting.get("config"),
            "missing": self._greeting.get("missing"),
        }

    @property
    def is_up(self) -> bool:
        """Whether the helper can be asked."""
        return self._is_up

    def start(self) -> None:
        """Begin to connect."""
        self._away_since = self._loop.time()
        self._connect()

    def stop(self) -> None:
        """Close the connection and make no other."""
        self._is_up = False
        self._unwatch()
        for handle in (self._timer, self._attempt):
            if handle is not None:
                handle.cancel()
        if self._connection is not None:
            self._connection.abandon()

    def send(self, message: Mapping[str, object]) -> None:
        """Send one request, if there is a connection."""
        if self._is_up and self._connection is not None:
            self._connection.send(message)

    async def reload(self) -> list[str] | None:
        """Have the helper read its configuration anew; return what is wrong with that, None if the helper is away.

        Raises TimeoutError when it does not answer.
        """
        if not self._is_up:
            return None
        answer: asyncio.Future[list[str] | None] = self._loop.create_future()
        self._reloading.append(answer)
        self.send({"request": "reload"})
        try:
            async with asyncio.timeout(RELOAD_PATIENCE):
                return await answer
        finally:
            if answer in self._reloading:
                self._reloading.remove(answer)

    async def probe(self, site: str) -> protocol.Message | None:
        """Have the helper find out what a job of a site would be; return what it says, None if the helper is away.

        Raises TimeoutError when it does not answer.
        """
        if not self._is_up:
            return None
        answer: asyncio.Future[protocol.Message | None] = self._loop.create_future()
        self._probing.setdefault(site, []).append(answer)
        self.send({"request": "probe", "site": site})
        async with asyncio.timeout(PROBE_PATIENCE):
            return await answer

    def _heard(self, message: protocol.Message) -> None:
        match message.get("event"):
            case "configuration":
                self._greeting["config"] = message.get("config")
                self._on_reconfigured()
            case "reloaded":
                faults = message.get("faults")
                self._reloaded([str(fault) for fault in faults] if isinstance(faults, list) else [])
            case "probed":
                self._probed(str(message.get("site")), message)
            case _:
                self._on_event(message)

    def _probed(self, site: str, message: protocol.Message | None) -> None:
        for answer in self._probing.pop(site, []):
            if not answer.done():
                answer.set_result(message)

    def _reloaded(self, faults: list[str] | None) -> None:
        asking, self._reloading = self._reloading, []
        for answer in asking:
            if not answer.done():
                answer.set_result(faults)

    def _connect(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._must_try_again = self._attempt is not None  # what is being tried may have come too early
        if self._attempt is None and self._connection is None:
            self._attempt = self._loop.create_task(self._try_to_connect())

    async def _try_to_connect(self) -> None:
        self._await_socket()  # before trying: what appears between must not be missed
        try:
            async with asyncio.timeout(PATIENCE):
                _, self._connection = await self._loop.create_unix_connection(
                    lambda: _Connection(self._greeted, self._heard, self._lost), str(self._socket)
                )
        except OSError as error:  # TimeoutError is one
            self._attempt = None
            self._stay_away(error.strerror or "it does not answer")
            if self._must_try_again:
                self._connect()
            return
        self._attempt = None
        self._timer = self._loop.call_later(PATIENCE, self._connection.give_up, "it does not answer")
        self._connection.send({"request": "hello", "version": protocol.VERSION})

    def _greeted(self, answer: protocol.Message) -> None:
        """The helper has answered the greeting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if answer.get("version") != protocol.VERSION and self._connection is not None:
            self._connection.give_up(f"it speaks version {answer.get('version')!r}, not {protocol.VERSION}")
            return
        away = 0.0 if self._away_since is None else self._loop.time() - self._away_since
        self._is_up = True
        self._greeting = answer
        self._away_since = None
        self._has_warned = False
        self._delay = FIRST_DELAY
        self._unwatch()
        self._log.info(
            "helper reachable", pid=answer.get("pid"), program=answer.get("program"), away_seconds=round(away, 1)
        )
        self._on_up()

    def _lost(self, reason: str) -> None:
        """The connection is gone."""
        self._connection = None
        self._reloaded(None)
        for site in tuple(self._probing):
            self._probed(site, None)
        self._stay_away(reason)

    def _stay_away(self, reason: str) -> None:
        """Try again later, and at once when something happens where the socket is."""
        if not self._has_warned:
            self._has_warned = True
            self._log.warning("helper not reachable", reason=reason, socket=str(self._socket))
        if self._away_since is None:
            self._away_since = self._loop.time()
        self._is_up = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._delay, self._connect)
        self._delay = min(self._delay * 2, LONGEST_DELAY)

    # The socket's directory

    def _await_socket(self) -> None:
        """Watch the nearest directory in which the socket, or a directory above it, should appear."""
        with suppress(OSError):
            directory, expected = inotify.open_nearest(str(self._socket))
            try:
                watch = self._watches.add(directory, inotify.PARENT)
            finally:
                os.close(directory)
            self._expected = expected
            if watch != self._watch:
                self._unwatch()
                self._watch = watch
                self._watches.subscribe(watch, self._on_directory)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watches.unsubscribe(self._watch, self._on_directory)
            self._watch = None

    def _on_directory(self, mask: int, name: str) -> None:
        if mask & inotify.GONE:
            self._unwatch()
        elif name != self._expected:
            return
        self._delay = min(self._delay, 2 * FIRST_DELAY)  # it may be bound but not listening yet
        self._connect()


class _Connection(asyncio.Protocol):
    """One connection, from its greeting to its end; the end is told once."""

    def __init__(
        self,
        on_greeted: Callable[[protocol.Message], None],
        on_event: Callable[[protocol.Message], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._on_greeted = on_greeted
        self._on_event = on_event
        self._on_lost: Callable[[str], None] | None = on_lost
        self._decoder = protocol.FrameDecoder()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except protocol.ProtocolError as error:
            self.give_up(f"it sent {error}")
            return
        for message in messages:
            if self._on_lost is None:
                return
            if message.get("reply") == "hello":
                self._on_greeted(message)
            elif message.get("ok") is False:
                self.give_up(f"it says: {message.get('error')}")
            else:
                self._on_event(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.give_up("it closed the connection" if exc is None else str(exc))

    def send(self, message: Mapping[str, object]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(protocol.encode(message))

    def give_up(self, reason: str) -> None:
        """Close the connection and say why."""
        on_lost = self._on_lost
        self.abandon()
        if on_lost is not None:
            on_lost(reason)

    def abandon(self) -> None:
        """Close the connection and say nothing more."""
        self._on_lost = None
        if self._transport is not None:
            self._transport.abort()
