"""Whom the helper serves, what it takes from them, and that no client can make it wait for another."""

from __future__ import annotations

import contextlib
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner import protocol
from basestation_runner.sandbox.installation import HELPER, WATCHER
from tests.host.helper_client import DEADLINE, Client, Gate, Station

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Sandbox
    from basestation_runner.sandbox.installation import Site

MOST_CONNECTIONS = 32


@pytest.fixture(scope="module")
def station(sandbox: Sandbox) -> Iterator[Station]:
    with sandbox.installation() as installation, Station(installation) as station:
        accounts = installation.accounts
        accounts.add_user("intruder", groups=[WATCHER])  # may reach the socket, and must get nothing there
        station.add_shell_site("one")
        station.add_shell_site("two", applications=["base"])
        station.start()
        yield station


@pytest.fixture
def site(station: Station) -> Site:
    return station.installation.sites["one"]


@pytest.fixture
def other(station: Station) -> Iterator[Client]:
    """A second connection of the watcher's account."""
    installation = station.installation
    with Client(installation.helper_socket, installation.accounts.user(WATCHER)) as client:
        yield client


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


# Who is served


def test_the_watcher_is_told_the_version_and_the_helpers_pid(station: Station) -> None:
    answer = station.client.hello()
    assert (answer["ok"], answer["version"], answer["pid"]) == (True, protocol.VERSION, station.daemon.pid)


@pytest.mark.parametrize("name", ["intruder", HELPER, "root"])
def test_nobody_but_the_watcher_is_served(station: Station, site: Site, name: str) -> None:
    accounts = station.installation.accounts
    account = None if name == "root" else accounts.user(name)
    mission = station.mission(site)
    order = station.order(site, mission, "do.sh", "echo ran")
    with Client(station.installation.helper_socket, account) as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.send(order)
        client.wait_until_closed()
        with pytest.raises((EOFError, ConnectionResetError)):
            client.next()
    uid = account.uid if account else 0
    line = station.daemon.wait_event(lambda event: event["event"] == "connection refused" and event["peer_uid"] == uid)
    assert line["level"] == "warning"
    assert station.inquire(order["job_id"])["event"] == "never_started"
    assert not (mission / "job.log").exists()


def test_who_is_refused_again_and_again_does_not_fill_the_log(station: Station, site: Site) -> None:
    for _ in range(200):
        with Client(station.installation.helper_socket, None) as client:
            client.wait_until_closed()
    assert station.output(site, "echo ran") == "ran\n"
    refused = [event for event in station.daemon.events if event["event"] == "connection refused"]
    assert 1 <= sum(event["peer_uid"] == 0 for event in refused) <= 10


def test_a_sites_account_cannot_even_reach_the_socket(station: Station, site: Site) -> None:
    with pytest.raises(PermissionError):
        Client(station.installation.helper_socket, site.account)


# What is taken


MALFORMED: dict[str, dict[str, Any]] = {
    "unknown": {"request": "run"},
    "no request": {},
    "a list as request": {"request": ["hello"]},
    "a field too few": {"request": "hello"},
    "a field too many": {"request": "hello", "version": 1, "uid": 0},
    "a boolean as number": {"request": "hello", "version": True},
    "a text as list": {"request": "inquire", "job_ids": "ab"},
    "a wrong id in a list": {"request": "settled", "job_ids": ["../ab"]},
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED)
def test_a_request_that_is_not_in_the_table_ends_the_connection(other: Client, message: dict[str, Any]) -> None:
    other.send(message)
    answer = other.next()
    assert answer["ok"] is False
    assert answer["error"]
    other.wait_until_closed()


WRONG_FIELDS: dict[str, dict[str, Any]] = {
    "a path as job id": {"job_id": "../../etc/passwd"},
    "dots as job id": {"job_id": ".."},
    "a slash in a job id": {"job_id": "ab/cd"},
    "a newline in a job id": {"job_id": "ab\n"},
    "a long job id": {"job_id": "a" * 65},
    "an empty job id": {"job_id": ""},
    "a NUL in an argument": {"args": ["a\0b"]},
    "a number as argument": {"args": [1]},
    "a NUL in a path": {"log_file": "/tmp/a\0b"},  # noqa: S108 - a request's text
    "a negative queue length": {"queue_length": -1},
    "a fraction": {"queue_length": 0.5},
    "an account": {"uid": 0},
    "a program": {"argv": ["/bin/sh"]},
    "an environment": {"env": {"LD_PRELOAD": "/x"}},
    "limits": {"limits": {"memory": 1}},
}


@pytest.mark.parametrize("change", WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_a_dispatch_with_a_wrong_or_additional_field_starts_nothing(
    station: Station, site: Site, other: Client, change: dict[str, Any]
) -> None:
    mission = station.mission(site)
    other.send({**station.order(site, mission, "do.sh", "echo ran"), **change})
    assert other.next()["ok"] is False
    other.wait_until_closed()
    station.client.hello()
    assert not (mission / "job.log").exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("../Base.py", "script ../Base.py is not listed in application base"),
        ("/bin/sh", "script /bin/sh is not listed in application base"),
        ("./Base.py", "script ./Base.py is not listed in application base"),
        ("Unknown.py", "script Unknown.py is not listed in application base"),
        ("BaseLogin.py", "script BaseLogin.py is not listed in application base"),
        ("", "script  is not listed in application base"),
    ],
)
def test_a_script_that_the_application_does_not_list_is_refused(
    station: Station, site: Site, script: str, reason: str
) -> None:
    assert station.refusal(station.order(site, station.mission(site), script, application="base")) == reason


def test_an_application_that_the_site_may_not_use_is_refused(station: Station) -> None:
    site = station.installation.sites["two"]
    reason = station.refusal(station.order(site, station.mission(site), "do.sh", "echo ran"))
    assert reason == "application do is not one that the site may use"


def test_an_application_that_is_not_defined_is_refused(station: Station, site: Site) -> None:
    reason = station.refusal(station.order(site, station.mission(site), application="nothing"))
    assert reason == "application nothing is not one that the site may use"


@pytest.mark.parametrize("change", [{"digest": "0" * 64}, {"site": "unknown"}, {"digest": ""}])
def test_a_watcher_with_another_config_is_told_to_come_back(
    station: Station, site: Site, change: dict[str, str]
) -> None:
    event = station.outcome(station.order(site, station.mission(site), "do.sh", "echo ran", **change))
    assert event["event"] == "temporary"
    assert event["absent"] is False
    assert "different configurations" in event["reason"]


def test_the_digest_of_another_site_is_not_enough(station: Station, site: Site) -> None:
    mission = station.mission(site)
    digest = station.order(station.installation.sites["two"], mission)["digest"]
    assert station.outcome(station.order(site, mission, digest=digest))["event"] == "temporary"


def test_requests_may_be_sent_without_waiting_for_answers(station: Station, site: Site, other: Client) -> None:
    orders = [station.order(site, station.mission(site), "do.sh", f"exit {code}") for code in range(8)]
    other.send_bytes(b"".join(protocol.encode(order) for order in orders))
    codes = [other.event(order["job_id"], "ended")["record"]["exit_code"] for order in orders]
    assert codes == list(range(8))


def test_many_jobs_at_once_end_each_with_its_own_code_and_leave_nothing_in_the_helper(
    station: Station, site: Site, other: Client
) -> None:
    def files() -> int:
        """Count the helper's open files once earlier clients are forgotten."""
        for client in (station.client, other, station.client):
            client.hello()
        return len(list(Path(f"/proc/{station.daemon.pid}/fd").iterdir()))

    before = files()
    mission = station.mission(site)
    orders = [station.order(site, mission, "do.sh", f"exit {number}") for number in range(60)]
    other.send_bytes(b"".join(map(protocol.encode, orders)))
    codes = [other.event(order["job_id"], "ended")["record"]["exit_code"] for order in orders]
    assert codes == list(range(60))
    deadline = time.monotonic() + DEADLINE
    while files() != before:  # the last keepers have said all and may not be done
        assert time.monotonic() < deadline


# One client and the others


def test_half_a_frame_delays_nobody(station: Station, site: Site, other: Client) -> None:
    whole = protocol.encode(station.order(site, station.mission(site), "do.sh", "exit 3"))
    for part in (whole[:2], whole[2:4], whole[4:9]):
        other.send_bytes(part)
        assert station.output(site, "echo ran") == "ran\n"
    other.send_bytes(whole[9:])
    assert other.next()["event"] == "started"


def test_a_silent_client_delays_nobody(station: Station, site: Site, other: Client) -> None:
    assert station.output(site, "echo ran") == "ran\n"
    assert other.hello()["ok"]


def test_a_slow_client_is_served_byte_by_byte_while_others_are_served(station: Station, other: Client) -> None:
    for byte in protocol.encode({"request": "hello", "version": 1}):
        other.send_bytes(bytes([byte]))
        station.client.hello()
    assert other.next()["reply"] == "hello"


GARBAGE = {
    "a huge length": struct.pack(">I", (1 << 20) + 1),
    "the largest length": b"\xff\xff\xff\xff",
    "a legacy line": b"GET / HTTP/1.1\r\n\r\n",
    "no JSON": frame(b"{"),
    "no object": frame(b"[1]"),
    "no text": frame(b"\xff\xfe"),
    "deep nesting": frame(b"[" * 100_000),
    "a long number": frame(b'{"request": ' + b"1" * 100_000 + b"}"),
    "nothing": frame(b""),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_a_malformed_or_oversized_frame_ends_its_own_connection_only(
    station: Station, site: Site, other: Client, data: bytes
) -> None:
    other.send_bytes(data)
    answer = other.next()
    assert answer["ok"] is False
    other.wait_until_closed()
    assert station.output(site, "echo ran") == "ran\n"


def test_a_client_that_goes_away_in_the_middle_of_a_frame_is_forgotten(station: Station, other: Client) -> None:
    other.send_bytes(protocol.encode({"request": "hello", "version": 1})[:-1])
    other.close()
    assert station.client.hello()["ok"]


def test_a_job_of_a_client_that_went_away_goes_on_and_its_end_is_told_to_whoever_asks(
    station: Station, site: Site, other: Client
) -> None:
    with Gate(station.installation.top / "gate") as gate:
        order = station.order(site, station.mission(site), "do.sh", f"{gate.in_shell}; exit 5")
        other.send(order)
        other.event(order["job_id"], "started")
        other.close()
        assert station.inquire(order["job_id"])["event"] == "started"
        gate.open()
        assert station.client.event(order["job_id"], "ended")["record"]["exit_code"] == 5


def test_a_client_that_does_not_take_its_answers_is_not_read_on_and_gets_them_all_when_it_does(
    station: Station, site: Site
) -> None:
    """Its questions wait in its own socket meanwhile: they cost the helper no memory, and nobody else anything."""
    installation = station.installation
    order = station.order(site, station.mission(site), "do.sh", "head -c 4096 /dev/zero | tr '\\0' x")
    assert len(station.run(order)["log_tail"]) == 4096
    question = protocol.encode({"request": "inquire", "job_ids": [order["job_id"]] * 200})
    questions = question * 10_000
    with Client(installation.helper_socket, installation.accounts.user(WATCHER)) as deaf:
        sent = deaf.send_until_full(questions)
        assert sent < len(questions)
        assert station.output(site, "echo ran") == "ran\n"
        for _ in range(sent // len(question) * 200):
            assert deaf.next()["event"] == "ended"
        deaf.send_bytes(question[sent % len(question) :])
        for _ in range(200):
            assert deaf.next()["event"] == "ended"


def test_more_clients_than_there_is_room_for_are_turned_away_and_the_first_ones_kept(
    station: Station, site: Site
) -> None:
    installation = station.installation
    watcher = installation.accounts.user(WATCHER)
    clients = [Client(installation.helper_socket, watcher) for _ in range(MOST_CONNECTIONS - 1)]
    try:
        for client in clients:
            client.hello()
        with Client(installation.helper_socket, watcher) as late:
            late.wait_until_closed()
        assert station.output(site, "echo ran") == "ran\n"
    finally:
        for client in clients:
            client.close()
    station.client.hello()
    with Client(installation.helper_socket, watcher) as again:
        assert again.hello()["ok"]
