"""What systemd is told, over a real socket."""

from __future__ import annotations

import os
import select
import socket
from typing import TYPE_CHECKING

import pytest

from basestation_runner.systemd import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """The end of the socket that systemd reads."""
    address = str(tmp_path / "notify") if request.param == "path" else f"\0runner-test-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.setblocking(False)
        yield receiver


def environ(manager: socket.socket) -> dict[str, str]:
    name = manager.getsockname()
    return {"NOTIFY_SOCKET": f"@{name[1:].decode()}" if isinstance(name, bytes) else name}


def received(manager: socket.socket) -> str:
    return manager.recv(4096).decode()


def test_ready_tells_the_status_in_the_same_message(manager: socket.socket) -> None:
    Notifier(environ(manager)).ready("2 sites")
    assert received(manager) == "READY=1\nSTATUS=2 sites"


def test_each_message_is_what_systemd_expects(manager: socket.socket) -> None:
    notifier = Notifier(environ(manager))
    notifier.status("3 jobs")
    notifier.watchdog()
    notifier.stopping()
    assert [received(manager) for _ in range(3)] == ["STATUS=3 jobs", "WATCHDOG=1", "STOPPING=1\nSTATUS=stopping"]


def test_a_status_cannot_carry_another_assignment(manager: socket.socket) -> None:
    Notifier(environ(manager)).status("x\nMAINPID=1\udcff")
    assert received(manager) == "STATUS=x\\nMAINPID=1\\udcff"


def test_the_variables_are_gone_once_taken(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {**environ(manager), "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    for name, value in taken.items():
        monkeypatch.setenv(name, value)
    Notifier().watchdog()
    assert received(manager) == "WATCHDOG=1"
    assert not taken.keys() & os.environ.keys()


@pytest.mark.parametrize(
    ("timeout", "pid", "interval"),
    [
        pytest.param("3000000", str(os.getpid()), 1.5, id="own"),
        ("3000000", "", 1.5),
        ("3000000", "1", None),
        ("0", "", None),
        ("soon", "", None),
        ("", "", None),
    ],
)
def test_the_watchdog_interval_is_half_of_the_timeout(timeout: str, pid: str, interval: float | None) -> None:
    assert Notifier({"WATCHDOG_USEC": timeout, "WATCHDOG_PID": pid}).watchdog_interval == interval


@pytest.mark.parametrize("address", [None, "", "relative", "/nowhere/notify", "@nobody-listens-here", "vsock:2:1"])
def test_without_a_listener_nothing_happens(address: str | None) -> None:
    notifier = Notifier({} if address is None else {"NOTIFY_SOCKET": address})
    notifier.ready("up")
    notifier.watchdog()
    notifier.stopping()


def test_a_full_socket_does_not_block_and_ready_is_sent_later(manager: socket.socket) -> None:
    notifier = Notifier(environ(manager))
    for _ in range(2000):  # more than any queue's length
        notifier.watchdog()
    notifier.stopping()  # what is newer takes its place
    notifier.ready("2 sites")
    while select.select([manager], [], [], 0)[0]:
        assert received(manager) == "WATCHDOG=1"
    notifier.watchdog()
    assert received(manager) == "READY=1\nWATCHDOG=1"
    notifier.watchdog()
    assert received(manager) == "WATCHDOG=1"
