"""Visualiser notices, to real ZeroMQ sockets: what they say, and that no listener and no file can do any harm."""

from __future__ import annotations

import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from structlog.testing import capture_logs

from basestation_runner.watch import push, visualiser
from basestation_runner.watch.visualiser import Visualiser
from tests.process import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PATIENCE = 20.0
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="vis-") as path:
        yield Path(path)


@pytest.fixture
def notices(place: Path) -> Iterator[Visualiser]:
    made = Visualiser(place)
    yield made
    made.close()


class Listener:
    """What the visualiser is: a PULL socket with a name in the directory."""

    def __init__(self, end: zmq.Socket[bytes], path: Path) -> None:
        self.path = path
        self.end = end
        self.end.bind(f"ipc://{path}")

    def receive(self) -> tuple[bytes, bytes]:
        assert self.has_something(PATIENCE), f"nothing came to {self.path.name}"
        topic, content = self.end.recv_multipart()
        return topic, content

    def has_something(self, seconds: float = 0) -> bool:
        return bool(self.end.poll(int(seconds * 1000)))

    def close(self) -> None:
        self.end.close(linger=0)


Listen = Callable[[Path], Listener]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Make listeners that are closed in the end."""
    with zmq.Context() as context, ExitStack() as cleanup:

        def listener(path: Path) -> Listener:
            made = Listener(context.socket(zmq.PULL), path)
            cleanup.callback(made.close)
            return made

        yield listener


def tell(notices: Visualiser, job_id: str = "1", uuids: Iterable[str] = ("1",)) -> None:
    notices.notify(
        "queued",
        site="one",
        home="/home/sg007",
        mission_dir="/srv/one/home/sg007",
        script="Base.py",
        job_id=job_id,
        uuids=uuids,
    )


def hear(notices: Visualiser, listener: Listener) -> dict[str, Any]:
    """Tell until the listener has been found and has heard it."""
    deadline = time.monotonic() + PATIENCE
    for number in itertools.count():
        tell(notices, job_id=str(number))
        if listener.has_something(0.02):
            return dict(json.loads(listener.receive()[1]))
        assert time.monotonic() < deadline, f"nothing came to {listener.path.name}"
    raise AssertionError


def test_a_notice_says_what_the_visualiser_expects_to_the_letter(
    place: Path, notices: Visualiser, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1795000000.25)
    listener = listen(place / "sanic-8080-notify.ipc")
    facts: dict[str, Any] = {
        "site": "seaglider",
        "home": "/home/sg123",
        "mission_dir": "/home/seaglider/home/sg123/mission1",
        "script": "Base.py",
        "job_id": "b2",
        "uuids": ["a1", "b2"],
    }
    notices.notify("queued", **facts)
    notices.notify("start", **facts)
    notices.notify("complete", **facts, returncode=-9)
    common = (
        '{"glider": 123, "queue_id": "seaglider||/home/seaglider/home/sg123/mission1||Base.py", '
        '"time": 1795000000.25, "uuids": ["a1", "b2"], "action": '
    )
    assert [listener.receive() for _ in range(3)] == [
        (b"123-proc-queue", (common + '"queued", "target": "b2"}').encode()),
        (b"123-proc-queue", (common + '"start", "target": "b2"}').encode()),
        (b"123-proc-queue", (common + '"complete", "target": "b2", "returncode": -9}').encode()),
    ]


def test_a_glider_is_three_digits_in_the_topic_and_000_if_the_home_does_not_tell(
    place: Path, notices: Visualiser, listen: Listen
) -> None:
    listener = listen(place / "sanic-1-notify.ipc")
    tell(notices)
    topic, content = listener.receive()
    assert (topic, json.loads(content)["glider"]) == (b"007-proc-queue", 7)
    notices.notify("start", site="one", home="/home/pilot", mission_dir="/m", script="Base.py", job_id="2", uuids=[])
    topic, content = listener.receive()
    assert (topic, json.loads(content)["glider"]) == (b"000-proc-queue", 0)


def test_an_unknown_return_code_is_said_to_be_unknown(place: Path, notices: Visualiser, listen: Listen) -> None:
    listener = listen(place / "sanic-1-notify.ipc")
    notices.notify("complete", site="one", home="/h", mission_dir="/m", script="Base.py", job_id="2", uuids=[])
    assert listener.receive()[1].endswith(b'"target": "2", "returncode": null}')


def test_everybody_who_listens_hears_of_it_and_nobody_else(place: Path, notices: Visualiser, listen: Listen) -> None:
    listeners = [listen(place / f"sanic-{number}-notify.ipc") for number in range(3)]
    other = listen(place / "sanic-1-control.ipc")
    tell(notices)
    assert len({listener.receive() for listener in listeners}) == 1
    assert not other.has_something()


def test_a_listener_that_comes_later_hears_what_happens_from_then_on(
    place: Path, notices: Visualiser, listen: Listen
) -> None:
    hear(notices, listen(place / "sanic-first-notify.ipc"))
    hear(notices, listen(place / "sanic-later-notify.ipc"))


def test_a_listener_that_is_started_again_hears_again(place: Path, notices: Visualiser, listen: Listen) -> None:
    path = place / "sanic-1-notify.ipc"
    for _ in range(3):
        listener = listen(path)
        hear(notices, listener)
        listener.close()
        path.unlink(missing_ok=True)


def test_crashed_listeners_do_not_keep_the_others_from_hearing(
    place: Path, notices: Visualiser, listen: Listen
) -> None:
    for number in range(500):
        with socket.socket(socket.AF_UNIX) as crashed:
            crashed.bind(str(place / f"sanic-{number}-notify.ipc"))
    hear(notices, listen(place / "sanic-alive-notify.ipc"))


def test_a_listener_that_never_reads_keeps_nobody_else_from_hearing_and_holds_little_memory(
    place: Path, notices: Visualiser, listen: Listen
) -> None:
    uuids = [f"{number:036}" for number in range(visualiser.MOST_UUIDS)]
    full = listen(place / "sanic-full-notify.ipc")
    listener = listen(place / "sanic-1-notify.ipc")
    hear(notices, listener)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(4000):  # 32 MB
        tell(notices, f"flood-{number}", uuids)
        while json.loads(listener.receive()[1])["target"] != f"flood-{number}":
            pass
    assert full.has_something()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


def test_whoever_listens_but_does_not_speak_zeromq_gets_nothing_and_does_no_harm(
    place: Path, notices: Visualiser, listen: Listen
) -> None:
    said = {
        "silent": b"",
        "http": b"GET / HTTP/1.0\r\n\r\n",
        "ones": b"\xff" * 4096,
        "impossible": GREETING + b"\x06" + b"\xff" * 8,
        "flood": GREETING + READY + b"\0\x01x" * (1 << 18),
    }
    listener = listen(place / "sanic-1-notify.ipc")
    with ExitStack() as cleanup:
        for name, words in said.items():
            door = cleanup.enter_context(socket.socket(socket.AF_UNIX))
            door.bind(str(place / f"sanic-{name}-notify.ipc"))
            door.listen()
            thread = threading.Thread(target=serve, args=(door, words))
            thread.start()
            cleanup.callback(thread.join)
            cleanup.callback(door.shutdown, socket.SHUT_RDWR)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(50):
            hear(notices, listener)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("frame", [b"\x06", READY + b"\x02"], ids=["in the handshake", "after it"])
def test_a_listener_that_sends_an_endless_message_is_cut_off(place: Path, notices: Visualiser, frame: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(place / "sanic-1-notify.ipc"))
        door.listen()
        tell(notices)
        door.accept()[0].close()  # the first one only looks whether somebody listens
        guest, _ = door.accept()
        with guest, pytest.raises(BrokenPipeError):
            guest.sendall(GREETING + frame + (64 << 20).to_bytes(8, "big") + bytes(32 << 20))


def serve(door: socket.socket, words: bytes) -> None:
    """Say these words to everyone who comes, until the door is shut; read nothing."""
    with ExitStack() as cleanup:
        while True:
            try:
                guest = cleanup.enter_context(door.accept()[0])
            except OSError:
                return
            guest.setblocking(False)
            try:
                guest.send(words)
            except OSError:
                guest.close()


def test_only_real_sockets_are_connected_to(place: Path, notices: Visualiser, listen: Listen) -> None:
    private = place / "private"
    private.mkdir()
    victim = listen(private / "helper.sock")
    (place / "sanic-link-notify.ipc").symlink_to(victim.path)
    (place / "sanic-loop-notify.ipc").symlink_to(place / "sanic-loop-notify.ipc")
    (place / "sanic-file-notify.ipc").write_text("")
    (place / "sanic-folder-notify.ipc").mkdir()
    os.mkfifo(place / "sanic-fifo-notify.ipc")
    (place / b"sanic-\xff\n-notify.ipc".decode(errors="surrogateescape")).touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(place / "sanic-datagram-notify.ipc"))
        hear(notices, listen(place / "sanic-1-notify.ipc"))
    assert not victim.has_something()


def test_a_socket_that_becomes_a_link_to_another_leads_nowhere(place: Path, listen: Listen) -> None:
    victim = listen(place / "helper.sock")
    path = place / "sanic-1-notify.ipc"
    with socket.socket(socket.AF_UNIX) as bait:
        bait.bind(str(path))
        facts = path.stat()
    path.unlink()
    path.symlink_to(victim.path)
    links = push.Links()
    assert links.connect(os.fsencode(path), (facts.st_dev, facts.st_ino)) is None
    links.close()


def test_sockets_with_any_name_are_found(place: Path, notices: Visualiser, listen: Listen) -> None:
    listener = listen(place / "plain")
    listener.path.rename(place / (b"sanic-\xff\n@ " + b"x" * 200 + b"-notify.ipc").decode(errors="surrogateescape"))
    hear(notices, listener)


def test_no_more_than_a_few_listeners_are_served(
    place: Path, notices: Visualiser, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visualiser, "MOST_LISTENERS", 4)
    first = [listen(place / f"sanic-{number}-notify.ipc") for number in range(4)]
    for listener in first:
        hear(notices, listener)
    later = [listen(place / f"sanic-{number}-later-notify.ipc") for number in range(20)]
    for listener in first:
        hear(notices, listener)
    assert not any(listener.has_something() for listener in later)


def test_only_the_first_entries_of_a_crowded_directory_are_looked_at(
    place: Path, notices: Visualiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visualiser, "MOST_ENTRIES", 10)
    seen: list[str] = []
    notices._audience._is_wanted = seen.append  # type: ignore[assignment]
    for number in range(50):
        (place / f"file{number}").touch()
    notices._audience._search()
    assert len(seen) == 10


def test_a_long_queue_is_listed_in_part_and_not_even_counted(place: Path, notices: Visualiser, listen: Listen) -> None:
    listener = listen(place / "sanic-1-notify.ipc")
    tell(notices, uuids=map(str, itertools.count()))
    assert json.loads(listener.receive()[1])["uuids"] == [str(number) for number in range(visualiser.MOST_UUIDS)]


def test_a_job_is_listed_although_it_has_just_left_its_queue(place: Path, notices: Visualiser, listen: Listen) -> None:
    listener = listen(place / "sanic-1-notify.ipc")
    tell(notices, job_id="ended", uuids=["next", "last"])
    assert json.loads(listener.receive()[1])["uuids"] == ["next", "last", "ended"]


def test_a_caller_never_waits_for_a_thread_that_hangs(notices: Visualiser, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = threading.Event()
    monkeypatch.setattr(notices._audience, "_search", disk.wait)
    for number in range(visualiser.MOST_WAITING * 3):
        tell(notices, str(number))
    assert notices._waiting.full()
    disk.set()


def test_nothing_stays_open_after_the_end(place: Path, notices: Visualiser) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(place / "sanic-1-notify.ipc"))
        door.listen()
        before = open_descriptors()
        tell(notices)
        for _ in range(2):
            door.accept()[0].close()
        notices.close()
        assert notices._thread
        notices._thread.join(PATIENCE)
        assert not notices._thread.is_alive()  # it ends after ZeroMQ's own threads
        assert open_descriptors() == before


def test_without_pyzmq_it_is_said_once_and_nothing_is_sent(
    place: Path, notices: Visualiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, push.__name__)
    monkeypatch.setitem(sys.modules, "zmq", None)
    with socket.socket(socket.AF_UNIX) as anybody, capture_logs() as logs:
        anybody.bind(str(place / "sanic-1-notify.ipc"))
        tell(notices)
        assert notices._thread
        notices._thread.join(PATIENCE)
        for _ in range(5):
            tell(notices)
    assert [(entry["log_level"], entry["event"]) for entry in logs] == [("info", "visualiser notices are not sent")]
    assert "the extra vis" in logs[0]["reason"]


def test_what_goes_wrong_unforeseen_ends_the_notices_and_nothing_else(
    notices: Visualiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(notices._audience, "_search", fail)
    with capture_logs() as logs:
        tell(notices)
        assert notices._thread
        notices._thread.join(PATIENCE)
        tell(notices)
    assert [entry["reason"] for entry in logs] == ["ValueError: unforeseen"]


def test_a_host_without_listeners_does_not_load_zeromq_and_says_so_once(place: Path) -> None:
    code = f"""
import sys, threading
from pathlib import Path
from basestation_runner.watch.visualiser import Visualiser
idle = Visualiser(Path({str(place)!r}))
print(threading.active_count())
for directory in ({str(place)!r}, "/nonexistent"):
    notices = Visualiser(Path(directory))
    for _ in range(10):
        notices.notify("start", site="s", home="/h", mission_dir="/m", script="Base.py", job_id="1", uuids=[])
    notices.close()
print("zmq" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line in {"1", "False"}] == ["1", "False"]
    assert done.stdout.count("no visualiser listens") == 2
