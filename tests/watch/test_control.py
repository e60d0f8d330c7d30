"""Whatever anybody sends to the control socket, or does not take from it, the watcher goes on and answers others."""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from basestation_runner import nss, protocol
from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.operate.client import Client
from basestation_runner.watch import control, history, requests
from basestation_runner.watch.ledger import Ledger
from basestation_runner.watch.requests import REQUESTS
from tests.process import as_nobody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.watch.conftest import Bench

    Run = Callable[..., tuple[int, str, str]]

NAMES = st.one_of(st.text(max_size=300), st.sampled_from(["alpha", "", "abc", "0" * 64, "../x", "a\0b", "\udc80"]))
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    NAMES,
    st.lists(NAMES, max_size=3),
)
MESSAGES = st.one_of(
    st.dictionaries(st.text(max_size=10), VALUES, max_size=4),
    *(
        st.fixed_dictionaries({"request": st.just(name), **dict.fromkeys(form.fields, VALUES)})
        for name, form in REQUESTS.items()
        if name not in {"hold", "return"}  # of these, the right ones change what other examples find
    ),
)


@pytest.fixture
def directory(anyones: Path) -> Path:
    """Where the bench is: other accounts must reach the control socket."""
    return anyones


@pytest.fixture
def site(bench: Bench) -> Bench:
    bench.site("alpha")
    bench.start()
    return bench


def connect(bench: Bench) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(20)
    link.connect(str(bench.options.control_socket))
    return link


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def answers(link: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield what comes until the other side closes."""
    decoder = protocol.FrameDecoder()
    with suppress(ConnectionResetError):
        while data := link.recv(1 << 16):
            yield from decoder.feed(data)


def is_answered(bench: Bench) -> bool:
    with Client(bench.options.control_socket) as client:
        return bool(client.ask("status", since=0)["ok"])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(struct.pack(">I", 0xFFFFFFFF), id="the longest frame there can be"),
        pytest.param(struct.pack(">I", control.LONGEST_REQUEST + 1), id="one byte too many"),
        pytest.param(frame(b""), id="an empty frame"),
        pytest.param(frame(b"{"), id="cut JSON"),
        pytest.param(frame(b"[" * 60_000), id="deep nesting"),
        pytest.param(frame(b'{"request": "status"}'), id="without its fields"),
        pytest.param(frame(b'{"request": "status", "since": 0, "more": 1}'), id="with a field more"),
        pytest.param(frame(b'{"request": "status", "since": true}'), id="a wrong type"),
        pytest.param(frame(b'{"request": "status", "since": 1e400}'), id="an endless number"),
        pytest.param(frame(b'{"request": "dispatch"}'), id="a request of the helper's"),
        pytest.param(frame(b'{"request": ["status"]}'), id="a name that is none"),
        pytest.param(frame(b'{"request": "job", "job": "\\u0000"}'), id="a NUL in an id"),
        pytest.param(frame(b'{"request": "site", "site": "a\\nb"}'), id="a line break in a name"),
    ],
)
def test_what_is_no_request_is_told_so_and_the_connection_closed(site: Bench, data: bytes) -> None:
    with connect(site) as link:
        link.sendall(data)
        (answer,) = answers(link)
    assert (answer["ok"], answer["kind"]) == (False, "refused")
    assert is_answered(site)
    assert not site.events("internal error in a control request")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(MESSAGES.map(lambda message: json.dumps(message).encode()), st.binary(max_size=200)), max_size=4
    ),
    st.data(),
)
@example([b'{"request": "site", "site": "\\ud800"}'], None)
def test_any_frames_in_any_pieces_are_answered_or_refused_and_nothing_else_happens(
    site: Bench, bodies: list[bytes], data: st.DataObject | None
) -> None:
    stream = b"".join(map(frame, bodies))
    cuts = [] if data is None else sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    with connect(site) as link:
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have had enough already
            for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                link.sendall(stream[begin:end])
            link.shutdown(socket.SHUT_WR)
        assert all(answer["ok"] in {True, False} for answer in answers(link))
    assert is_answered(site)
    assert not site.events("internal error in a control request")
    assert not site.events("internal error")


def test_requests_in_one_piece_are_answered_in_their_order(site: Bench) -> None:
    with connect(site) as link:
        names = ["alpha", "omega"] * 20
        link.sendall(b"".join(protocol.encode({"request": "site", "site": name}) for name in names))
        found = [answer for _, answer in zip(names, answers(link), strict=False)]
    assert [answer["ok"] for answer in found] == [True, False] * 20


def test_a_silent_client_is_let_go_and_disturbs_nobody_meanwhile(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PATIENCE", 0.3)
    rundir = bench.site("alpha")
    bench.start()
    with connect(bench) as silent, connect(bench) as half:
        half.sendall(struct.pack(">I", 100) + b"{")
        bench.drop(rundir, "1.run")
        bench.until(lambda: bench.states() == {"1.run": "succeeded"})
        assert is_answered(bench)
        assert list(answers(silent)) == list(answers(half)) == []


def test_a_client_that_takes_no_answers_is_let_go_and_gathers_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PATIENCE", 1.0)
    unsent: list[int] = []
    real = control._Connection._send

    def send(self: control._Connection, message: protocol.Message) -> None:
        real(self, message)
        if self._transport is not None:
            unsent.append(self._transport.get_write_buffer_size())

    monkeypatch.setattr(control._Connection, "_send", send)
    bench.site("alpha")
    watcher = bench.start()
    ask = protocol.encode({"request": "site", "site": "alpha"})
    with connect(bench) as link:
        with suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
            link.settimeout(0.3)
            for _ in range(100):
                link.sendall(ask * 100)
        bench.until(lambda: not bench.on_loop(lambda: watcher.control._connections), "it to be let go")
    assert unsent
    assert max(unsent) < 10_000
    assert is_answered(bench)


def test_more_connections_than_there_may_be_are_refused_and_the_others_served(
    site: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MOST_OF_ONE", 5)
    with ExitStack() as stack:
        links = [stack.enter_context(connect(site)) for _ in range(5)]
        site.until(lambda: site.on_loop(lambda: len(site.watcher.control._connections)) == 5)  # type: ignore[union-attr]
        (refusal,) = answers(stack.enter_context(connect(site)))
        assert refusal["error"] == "there are too many connections"
        links[0].sendall(protocol.encode({"request": "status", "since": 0}))
        assert next(answers(links[0]))["ok"]
    site.until(lambda: is_possible(site))


def is_possible(bench: Bench) -> bool:
    try:
        return is_answered(bench)
    except RunnerError:
        return False


@pytest.mark.usefixtures("privileged")
def test_strangers_cannot_take_roots_place(site: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MOST_CONNECTIONS", 3)
    with ExitStack() as stack:
        with as_nobody():
            for _ in range(3):
                stack.enter_context(connect(site))
        site.until(lambda: site.on_loop(lambda: len(site.watcher.control._connections)) == 3)  # type: ignore[union-attr]
        with as_nobody():
            late = stack.enter_context(connect(site))
        assert [answer["ok"] for answer in answers(late)] == [False]
        assert is_answered(site)


@pytest.mark.usefixtures("privileged")
def test_a_caller_of_whom_nothing_is_known_gets_one_clear_refusal(site: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nss, "account_by_uid", lambda _: None)
    with as_nobody():
        client = Client(site.options.control_socket)
    with client, pytest.raises(RunnerError, match="there is no account with uid 65534"):
        client.ask("status", since=0)


@pytest.mark.usefixtures("privileged")
def test_a_name_service_that_hangs_keeps_nobody_else_waiting(site: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate_read, gate = os.pipe()
    monkeypatch.setattr(nss, "account_by_uid", lambda _: os.read(gate_read, 1))
    try:
        with ExitStack() as stack:
            with as_nobody():
                clients = [stack.enter_context(Client(site.options.control_socket)) for _ in range(8)]
            for client in clients:
                client._socket.sendall(protocol.encode({"request": "status", "since": 0}))
            assert is_answered(site)  # root is not looked up
            with pytest.raises(TemporaryError, match="the name service does not answer"):
                clients[0].ask("status", since=0)
    finally:
        os.write(gate, b"x" * 64)
        os.close(gate)


def test_a_question_that_takes_too_long_is_given_up(site: Bench, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SECONDS", -1.0)
    monkeypatch.setattr(history, "_STEPS_BETWEEN_LOOKS", 1)
    assert run("jobs") == (1, "", "runner: it would take too long: ask for less\n")
    assert not site.events("internal error in a control request")


def test_an_internal_error_ends_one_connection_only(site: Bench, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> dict[str, Any]:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(requests.Requests, "_caller", fail)
        code, _, err = run("status")
    assert code == 1
    assert "an internal error" in err
    assert site.events("internal error in a control request")
    assert is_answered(site)


def test_whoever_floods_the_socket_does_not_keep_jobs_from_running(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    ask = protocol.encode({"request": "jobs", "sites": None, "states": None, "script": None, "since": None,
                           "before": None, "limit": 200})  # fmt: skip
    with ExitStack() as stack:
        links = [stack.enter_context(connect(bench)) for _ in range(8)]
        for link in links:
            link.setblocking(False)
        for number in range(50):
            for link in links:
                with suppress(BlockingIOError):
                    link.send(ask * 50)
            bench.drop(rundir, f"{number}.run", n=number)
        bench.until(lambda: list(bench.states().values()).count("succeeded") == 50)


def test_an_idle_watcher_is_not_woken_by_its_control_socket(bench: Bench) -> None:
    bench.site("alpha")
    watcher = bench.start()
    assert is_answered(bench)
    bench.until(lambda: not bench.on_loop(lambda: watcher.control._connections))
    scheduled = bench.on_loop(lambda: list(getattr(bench.loop, "_scheduled")))  # noqa: B009 - not in its stubs
    assert [timer for timer in scheduled if "control" in repr(timer) and not timer.cancelled()] == []


def test_fifty_thousand_jobs_that_wait_are_told_of_in_portions(bench: Bench, run: Run) -> None:
    bench.site("alpha")
    bench.helper.kill()
    ledger = Ledger(bench.directory / "state")
    ledger._database.execute("BEGIN")
    ledger._database.executemany(
        "INSERT INTO jobs (id, site, application, script, home, mission_dir, log_file, args, submitter, request,"
        " state, accepted_at) VALUES (?, 'alpha', 'base', 'Base.py', '/h', '/h/m', '/h/l', '[]', 0, '', 'queued', 1.0)",
        [(f"{number:032x}",) for number in range(50_000)],
    )
    ledger._database.execute("COMMIT")
    ledger.close()
    bench.start()
    facts = json.loads(run("status", "--json")[1])
    assert (facts["queued"], facts["sites"][0]["queued"]) == (50_000, 50_000)
    assert facts["oldest_waiting"]["id"] == f"{0:032x}"
    with Client(bench.options.control_socket) as client:
        whole = client.ask("jobs", sites=None, states=None, script=None, since=None, before=None, limit=50_000)
        assert len(whole["jobs"]) == history.MOST_ROWS
        assert sum(1 for _ in client.jobs(1000, sites=None, states=None, script=None, since=None)) == 1000
