"""The server of pages: what it answers, and that nobody who connects can hold it up."""

from __future__ import annotations

import asyncio
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import LogCapture

from basestation_runner.watch import web
from basestation_runner.watch.web import Address, Page, Web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

HOST = "Host: localhost:9464\r\n"


class Site:
    """A server with one page, on a loop of its own for each test."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.made = 0
        self.capture = LogCapture()
        self.fault: Exception | None = None
        self.body = b"page"
        self.writers: list[asyncio.StreamWriter] = []

    async def make(self) -> bytes:
        self.made += 1
        if self.fault is not None:
            raise self.fault
        return self.body

    def run(self, visit: Callable[[Site], Awaitable[Any]]) -> Any:  # noqa: ANN401 - what the visit returns
        async def serve() -> Any:  # noqa: ANN401
            log = structlog.wrap_logger(structlog.PrintLogger(), processors=[self.capture])
            self.web = Web(self.address, {"/": Page("text/html; charset=utf-8", self.make)}, log=log)
            await self.web.start()
            try:
                return await visit(self)
            finally:
                self.web.stop()
                for writer in self.writers:
                    writer.transport.abort()
                await asyncio.sleep(0)  # in which they are closed

        return asyncio.run(serve())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.address.path is not None:
            reader, writer = await asyncio.open_unix_connection(str(self.address.path))
        else:
            reader, writer = await asyncio.open_connection(self.address.host, self.web.port)
        self.writers.append(writer)
        return reader, writer

    async def ask(self, request: str | bytes) -> bytes:
        reader, writer = await self.connect()
        writer.write(request.encode() if isinstance(request, str) else request)
        try:
            return await asyncio.wait_for(reader.read(), 20)
        except ConnectionError:
            return b""


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.01)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(web, "PAUSE", 0.0)
    return Site(Address(host="127.0.0.1"))


def test_a_page_is_shown(port: Site) -> None:
    answer = port.run(lambda site: site.ask(f"GET /?x=1 HTTP/1.1\r\n{HOST}\r\n"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/html; charset=utf-8" in head
    assert b"Content-Length: 4" in head
    assert b"X-Content-Type-Options: nosniff" in head
    assert body == b"page"


def test_the_head_alone_has_the_length_of_the_page(port: Site) -> None:
    answer = port.run(lambda site: site.ask(f"HEAD / HTTP/1.1\r\n{HOST}\r\n"))
    assert b"Content-Length: 4" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (f"POST / HTTP/1.1\r\n{HOST}\r\n", b"405"),
        (f"GET /nothing HTTP/1.1\r\n{HOST}\r\n", b"404"),
        (f"GET /../etc/passwd HTTP/1.1\r\n{HOST}\r\n", b"404"),
        ("GET / HTTP/1.1\r\n\r\n", b"403"),
        ("GET / HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n", b"403"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"403"),
        ("GET /\r\n\r\n", b"400"),
        ("nonsense\r\n\r\n", b"400"),
        ("GET / HTTP/1.1\r\nX: " + "x" * 20_000 + "\r\n\r\n", b"400"),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1:9464\r\n\r\n", b"200"),
        ("GET / HTTP/1.0\r\nHost: [::1]\r\n\r\n", b"200"),
    ],
)
def test_everything_else_is_refused(port: Site, request_: str, status: bytes) -> None:
    answer = port.run(lambda site: site.ask(request_))
    assert answer.split(b" ")[1:2] == [status]


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_get_an_answer_or_none_and_the_next_one_is_served(port: Site, data: bytes) -> None:
    async def visit(site: Site) -> bytes:
        await site.ask(data + b"\r\n\r\n")
        return await site.ask(f"GET / HTTP/1.1\r\n{HOST}\r\n")

    assert port.run(visit).startswith(b"HTTP/1.1 200 OK")


def test_a_silent_client_is_let_go(port: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "PATIENCE", 0.05)

    async def visit(site: Site) -> bytes:
        reader, _ = await site.connect()
        return await asyncio.wait_for(reader.read(), 20)

    assert port.run(visit) == b""


def test_who_does_not_take_the_answer_is_let_go(port: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "PATIENCE", 0.2)
    port.body = bytes(50 << 20)

    async def visit(site: Site) -> None:
        _, writer = await site.connect()
        writer.write(f"GET / HTTP/1.1\r\n{HOST}\r\n".encode())
        await until(lambda: site.web._serving)
        await until(lambda: not site.web._serving)
        writer.close()

    port.run(visit)


def test_no_more_connections_are_held_than_may_be(port: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MOST_CONNECTIONS", 3)

    async def visit(site: Site) -> list[bytes]:
        silent = [await site.connect() for _ in range(3)]
        refused = await site.ask(f"GET / HTTP/1.1\r\n{HOST}\r\n")
        silent[0][1].close()
        await until(lambda: len(site.web._serving) < 3)
        return [refused, await site.ask(f"GET / HTTP/1.1\r\n{HOST}\r\n")]

    refused, served = port.run(visit)
    assert refused == b""
    assert served.startswith(b"HTTP/1.1 200")


def test_a_page_is_made_once_for_all_who_ask_at_the_same_time(port: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "FRESH", 3600.0)

    async def visit(site: Site) -> list[bytes]:
        return await asyncio.gather(*(site.ask(f"GET / HTTP/1.1\r\n{HOST}\r\n") for _ in range(10)))

    assert all(answer.endswith(b"page") for answer in port.run(visit))
    assert port.made == 1


def test_a_page_that_cannot_be_made_is_said_and_tried_again(port: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "FRESH", -1.0)

    async def visit(site: Site) -> list[bytes]:
        site.fault = RuntimeError("secret")
        first = await site.ask(f"GET / HTTP/1.1\r\n{HOST}\r\n")
        site.fault = None
        return [first, await site.ask(f"GET / HTTP/1.1\r\n{HOST}\r\n")]

    first, second = port.run(visit)
    assert first.startswith(b"HTTP/1.1 503")
    assert b"secret" not in first
    assert second.endswith(b"page")
    assert [entry["event"] for entry in port.capture.entries] == ["page cannot be shown"]


def test_a_unix_socket_is_the_groups_alone_and_taken_away_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    site = Site(Address(path=path))

    async def visit(site: Site) -> tuple[int, bytes]:
        return stat.S_IMODE(path.stat().st_mode), await site.ask("GET / HTTP/1.1\r\nHost: any.example\r\n\r\n")

    mode, answer = site.run(visit)
    assert mode == 0o660
    assert answer.endswith(b"page")
    assert not path.exists()


def test_a_dead_process_socket_is_replaced_and_a_live_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    first, second = Site(Address(path=path)), Site(Address(path=path))

    async def visit(site: Site) -> bytes:
        log = structlog.wrap_logger(structlog.PrintLogger(), processors=[second.capture])
        other = Web(site.address, {}, log=log)
        await other.start()
        other.stop()
        return await site.ask("GET / HTTP/1.1\r\n\r\n")

    assert first.run(visit).endswith(b"page")
    assert [entry["reason"] for entry in second.capture.entries] == ["Address already in use"]
    path.touch()
    assert os.path.exists(path)  # noqa: PTH110 - plain
    assert first.run(lambda site: site.ask("GET / HTTP/1.1\r\n\r\n")).endswith(b"page")
