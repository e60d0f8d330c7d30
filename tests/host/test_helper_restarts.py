"""Jobs, helpers and keepers that end in every order: nothing runs twice, nothing is lost that can be known."""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from basestation_runner import protocol
from basestation_runner.sandbox.installation import HELPER, WATCHER
from tests.host.helper_client import DEADLINE, Client, Gate, NameService, Station, launcher, parent_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from tests.host.helper_client import Message

SIGKILL = signal.SIGKILL


@pytest.fixture
def station(installation: Installation) -> Iterator[Station]:
    with Station(installation) as station:
        station.add_shell_site("one")
        # Without cgroups: nothing but a job's process tells whether it lives.
        os.chown(installation.cgroup_root, 0, 0)
        station.start()
        yield station


@pytest.fixture
def site(station: Station) -> Site:
    return station.installation.sites["one"]


@pytest.fixture
def gate(station: Station) -> Iterator[Gate]:
    with Gate(station.installation.top / "gate") as gate:
        yield gate


@pytest.fixture
def order(station: Station, site: Site, gate: Gate) -> Message:
    """A job that says that it runs, waits at the gate, and exits with 3."""
    return station.order(site, station.mission(site), "do.sh", f"echo ran; {gate.in_shell}; exit 3")


def log_of(order: Message) -> str:
    """What the order's job has said: one line for each time that it ran."""
    return Path(order["log_file"]).read_text()


def marks(station: Station) -> dict[str, list[str]]:
    state = station.installation.helper_state
    return {kind: sorted(path.name for path in (state / kind).iterdir()) for kind in ("claims", "exits")}


def claim_of(station: Station, order: Message) -> Message:
    return dict(json.loads((station.installation.helper_state / "claims" / order["job_id"]).read_text()))


def kill_and_wait(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    signal.pidfd_send_signal(descriptor, SIGKILL)
    assert select.select([descriptor], [], [], DEADLINE)[0]
    os.close(descriptor)


def restart(station: Station) -> None:
    """Kill the helper with SIGKILL and start a successor."""
    station.daemon.kill()
    station.start()


# Repeats


def test_an_order_that_is_repeated_while_its_job_runs_is_answered_and_starts_nothing(
    station: Station, order: Message, gate: Gate
) -> None:
    first = station.start_job(order)
    again = station.start_job(order)
    assert (first["pid"], first["started_at"]) == (again["pid"], again["started_at"])
    gate.open()
    assert station.client.event(order["job_id"], "ended")["record"]["exit_code"] == 3
    assert log_of(order) == "ran\n"


def test_an_order_that_is_repeated_after_its_job_ended_is_answered_with_the_record(
    station: Station, order: Message, gate: Gate
) -> None:
    gate.open()
    record = station.run(order)
    assert station.run(order) == record
    assert log_of(order) == "ran\n"


def test_one_order_from_several_connections_at_once_starts_one_job(
    station: Station, order: Message, gate: Gate
) -> None:
    installation = station.installation
    with Client(installation.helper_socket, installation.accounts.user(WATCHER)) as other:
        frame = protocol.encode(order)
        station.client.send_bytes(frame * 5)
        other.send_bytes(frame * 5)
        pid = other.event(order["job_id"], "started")["pid"]
        gate.open()
        assert other.event(order["job_id"], "ended")["record"]["pid"] == pid
    assert log_of(order) == "ran\n"


def test_a_settled_job_is_forgotten_with_its_marks_and_its_cgroup(station: Station, order: Message, gate: Gate) -> None:
    gate.open()
    station.run(order)
    assert marks(station) == {"claims": [order["job_id"]], "exits": [order["job_id"]]}
    station.settle(order["job_id"])
    assert marks(station) == {"claims": [], "exits": []}
    assert station.inquire(order["job_id"])["event"] == "never_started"


def test_a_running_job_cannot_be_settled(station: Station, order: Message, gate: Gate) -> None:
    station.start_job(order)
    station.settle(order["job_id"])
    assert marks(station)["claims"] == [order["job_id"]]
    assert station.inquire(order["job_id"])["event"] == "started"
    gate.open()
    station.client.event(order["job_id"], "ended")


def test_marks_are_the_helpers_own_and_nobody_elses(station: Station, order: Message, gate: Gate) -> None:
    station.start_job(order)
    helper = station.installation.accounts.user(HELPER)
    for path in (station.installation.helper_state / "claims", station.installation.helper_state / "exits"):
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (helper.uid, 0o700)
    claim = station.installation.helper_state / "claims" / order["job_id"]
    assert (claim.stat().st_uid, claim.stat().st_mode & 0o777) == (helper.uid, 0o600)
    gate.open()
    station.client.event(order["job_id"], "ended")


def test_a_claim_names_keeper_and_job_before_the_job_runs(station: Station, order: Message, gate: Gate) -> None:
    pid = station.start_job(order)["pid"]
    claim = claim_of(station, order)
    assert claim["child"]["pid"] == pid
    assert claim["keeper"]["pid"] == parent_of(pid)
    gate.open()
    station.client.event(order["job_id"], "ended")


# Two helpers


@pytest.mark.parametrize("shared", ["socket", "state", "both"])
def test_a_second_helper_refuses_to_start_and_leaves_the_first_working(
    station: Station, site: Site, shared: str
) -> None:
    top = station.installation.top
    helper = station.installation.accounts.user(HELPER)
    own = station.installation.make_directory(top / "second", helper)
    arguments = {
        "socket": ["--state-dir", str(own)],
        "state": ["--priv-exec-socket", str(own / "socket")],
        "both": [],
    }[shared]
    second = station.installation.start_helper(*arguments, wait=False)
    assert second.wait(DEADLINE) == 1
    assert "another helper is running" in second.log.read_text()
    assert station.output(site, "echo ran") == "ran\n"
    assert station.connect(station.installation.accounts.user(WATCHER)).hello()["pid"] == station.daemon.pid


def test_helpers_with_sockets_and_states_of_their_own_run_side_by_side(station: Station, site: Site) -> None:
    top = station.installation.top
    own = station.installation.make_directory(top / "second", station.installation.accounts.user(HELPER), WATCHER)
    second = station.installation.start_helper(
        "--priv-exec-socket", str(own / "socket"), "--state-dir", str(own), wait=False
    )
    second.wait_ready()
    with Client(own / "socket", station.installation.accounts.user(WATCHER)) as client:
        assert client.hello()["pid"] == second.pid
    assert station.output(site, "echo ran") == "ran\n"


# Successors


def test_a_successor_of_a_killed_helper_serves_at_once_although_jobs_live_on(
    station: Station, site: Site, order: Message, gate: Gate
) -> None:
    pid = station.start_job(order)["pid"]
    restart(station)
    assert station.output(site, "echo ran") == "ran\n"
    assert station.inquire(order["job_id"])["pid"] == pid
    gate.open()
    record = station.client.event(order["job_id"], "ended")["record"]
    assert (record["exit_code"], record["pid"]) == (3, pid)


def test_a_helper_that_is_stopped_leaves_its_jobs_running(station: Station, order: Message, gate: Gate) -> None:
    pid = station.start_job(order)["pid"]
    assert station.daemon.stop() == 0
    assert not station.installation.helper_socket.exists()
    os.kill(pid, 0)
    station.start()
    assert station.inquire(order["job_id"])["event"] == "started"
    gate.open()
    assert station.client.event(order["job_id"], "ended")["record"]["exit_code"] == 3


def test_an_exit_while_there_is_no_helper_is_told_by_the_next(station: Station, order: Message, gate: Gate) -> None:
    pid = station.start_job(order)["pid"]
    keeper = os.pidfd_open(claim_of(station, order)["keeper"]["pid"])
    station.daemon.kill()
    gate.open()
    assert select.select([keeper], [], [], DEADLINE)[0]
    os.close(keeper)
    station.start()
    event = station.inquire(order["job_id"])
    assert event["event"] == "ended"
    assert (event["record"]["exit_code"], event["record"]["pid"]) == (3, pid)


def test_an_order_that_is_repeated_to_a_successor_starts_nothing(station: Station, order: Message, gate: Gate) -> None:
    pid = station.start_job(order)["pid"]
    restart(station)
    assert station.start_job(order)["pid"] == pid
    gate.open()
    station.client.event(order["job_id"], "ended")
    restart(station)
    assert station.run(order)["exit_code"] == 3
    assert log_of(order) == "ran\n"


def test_what_was_settled_stays_forgotten(station: Station, order: Message, gate: Gate) -> None:
    gate.open()
    station.run(order)
    station.settle(order["job_id"])
    restart(station)
    assert station.inquire(order["job_id"])["event"] == "never_started"


def test_a_keeper_that_comes_to_claim_when_there_is_a_successor_runs_nothing(
    station: Station, order: Message, gate: Gate
) -> None:
    """Its helper died while it looked names up; the successor has run the job, and forgotten it, when it wakes up."""
    names = NameService(station.installation)
    station.daemon.stop()
    station.start(command=names.command)
    names.hang("runner-one")
    station.client.send(order)
    station.client.hello()
    (keeper,) = Path(f"/proc/{station.daemon.pid}/task/{station.daemon.pid}/children").read_text().split()
    late = os.pidfd_open(int(keeper))
    restart(station)
    assert station.inquire(order["job_id"])["event"] == "never_started"
    gate.open()
    assert station.run(order)["exit_code"] == 3
    station.settle(order["job_id"])
    names.go_on("runner-one")
    assert select.select([late], [], [], DEADLINE)[0]
    os.close(late)
    assert marks(station) == {"claims": [], "exits": []}
    assert log_of(order) == "ran\n"


def test_a_claim_that_the_helper_has_not_seen_keeps_its_job_from_being_started(
    station: Station, site: Site, order: Message, gate: Gate
) -> None:
    """As one that a backup brought back: what it says is believed."""
    pid = station.start_job(order)["pid"]
    claims = station.installation.helper_state / "claims"
    again = station.order(site, station.mission(site), "do.sh", "echo ran")
    (claims / again["job_id"]).write_bytes((claims / order["job_id"]).read_bytes())
    assert station.start_job(again)["pid"] == pid
    gate.open()
    assert station.client.event(again["job_id"], "ended", "lost")["event"] == "lost"
    assert not Path(again["log_file"]).exists()


def test_what_ended_a_month_ago_and_was_never_settled_is_forgotten_and_nothing_that_runs(
    station: Station, site: Site, order: Message
) -> None:
    ended = station.order(site, station.mission(site), "do.sh", "true")
    station.run(ended)
    pid = station.start_job(order)["pid"]
    state = station.installation.helper_state
    for mark in (*(state / "claims").iterdir(), *(state / "exits").iterdir()):
        os.utime(mark, (1, 1))
    station.daemon.stop()
    prelude = "from basestation_runner.privexec import daemon\ndaemon._PRUNING_AFTER = 0"
    station.start(command=[str(launcher(station.installation, prelude))])
    station.client.hello()
    assert station.inquire(ended["job_id"])["event"] == "never_started"
    assert station.inquire(order["job_id"])["pid"] == pid


@pytest.mark.parametrize("whose", ["its own", "an earlier helper's"])
def test_a_helper_recalls_the_requests_of_all_jobs_that_are_not_settled(
    station: Station, site: Site, order: Message, whose: str
) -> None:
    ended = station.order(site, station.mission(site), "do.sh", "true")
    settled = station.order(site, station.mission(site), "do.sh", "true")
    for quick in (ended, settled):
        station.run(quick)
    station.settle(settled["job_id"])
    station.start_job(order)
    if whose != "its own":
        restart(station)
    station.client.send({"request": "recall"})
    fields = ("site", "application", "home", "mission_dir", "log_file", "script", "args", "additions")
    recalled = {}
    while (event := station.client.next())["event"] != "recalled all":
        if event["event"] == "recalled":
            recalled[event["job_id"]] = event["request"]
    assert recalled == {each["job_id"]: {name: each[name] for name in fields} for each in (ended, order)}


# Ends that nobody can know


def test_a_job_whose_keeper_fails_after_the_start_is_lost_and_not_put_back(station: Station, order: Message) -> None:
    station.daemon.stop()
    fails = "from basestation_runner.privexec import keeper\nkeeper._record = None"
    station.start(command=[str(launcher(station.installation, fails))])
    pid = station.start_job(order)["pid"]
    os.kill(pid, SIGKILL)
    assert station.client.event(order["job_id"], "temporary", "lost", "ended")["event"] == "lost"


def test_a_job_without_a_keeper_is_lost_when_its_process_is_gone_and_not_before(
    station: Station, order: Message, gate: Gate
) -> None:
    station.start_job(order)
    kill_and_wait(claim_of(station, order)["keeper"]["pid"])
    station.daemon.wait_event(lambda event: event["event"] == "job without a keeper")
    assert station.inquire(order["job_id"])["event"] == "started"
    gate.open()
    event = station.client.event(order["job_id"], "lost", "ended")
    assert (event["event"], event["reason"]) == ("lost", "its keeper ended without a record")


def test_a_job_without_a_keeper_is_found_by_a_successor(station: Station, order: Message, gate: Gate) -> None:
    pid = station.start_job(order)["pid"]
    station.daemon.kill()
    kill_and_wait(claim_of(station, order)["keeper"]["pid"])
    station.start()
    assert station.inquire(order["job_id"]) == {
        "event": "started",
        "job_id": order["job_id"],
        "pid": pid,
        "started_at": pytest.approx(claim_of(station, order)["claimed_at"]),
        "dispatch": claim_of(station, order)["dispatch"],
    }
    gate.open()
    assert station.client.event(order["job_id"], "lost", "ended")["event"] == "lost"


def test_a_job_that_ended_without_a_keeper_and_a_helper_is_lost(station: Station, order: Message) -> None:
    pid = station.start_job(order)["pid"]
    station.daemon.kill()
    kill_and_wait(claim_of(station, order)["keeper"]["pid"])
    kill_and_wait(pid)
    station.start()
    assert station.inquire(order["job_id"])["event"] == "lost"
    assert station.outcome(order)["event"] == "lost", "a repeat does not run it either"
    assert log_of(order) == "ran\n"


def test_a_lost_job_stays_lost_until_it_is_settled(station: Station, order: Message) -> None:
    pid = station.start_job(order)["pid"]
    kill_and_wait(claim_of(station, order)["keeper"]["pid"])
    kill_and_wait(pid)
    assert station.client.event(order["job_id"], "lost", "ended")["event"] == "lost"
    restart(station)
    assert station.inquire(order["job_id"])["event"] == "lost"
    station.settle(order["job_id"])
    assert station.inquire(order["job_id"])["event"] == "never_started"


@pytest.mark.parametrize("damage", ["another boot", "empty", "half written", "no mapping"])
def test_a_job_of_another_boot_or_with_a_damaged_claim_is_lost(
    station: Station, order: Message, gate: Gate, damage: str
) -> None:
    gate.open()
    station.run(order)
    station.daemon.stop()
    state = station.installation.helper_state
    claim = state / "claims" / order["job_id"]
    text = claim.read_text()
    damaged = {
        "another boot": json.dumps({**json.loads(text), "boot_id": "another"}),
        "empty": "",
        "half written": text[: len(text) // 2],
        "no mapping": "[]",
    }
    (state / "exits" / order["job_id"]).unlink()
    claim.write_text(damaged[damage])
    station.start()
    assert station.inquire(order["job_id"])["event"] == "lost"
    assert station.outcome(order)["event"] == "lost"


def test_a_job_whose_exit_record_is_damaged_is_lost(station: Station, order: Message, gate: Gate) -> None:
    gate.open()
    station.run(order)
    station.daemon.stop()
    (station.installation.helper_state / "exits" / order["job_id"]).write_text("")
    station.start()
    assert station.inquire(order["job_id"])["event"] == "lost"


def test_another_process_with_a_dead_jobs_pid_is_not_taken_for_it(station: Station, order: Message, gate: Gate) -> None:
    gate.open()
    station.run(order)
    station.daemon.stop()
    state = station.installation.helper_state
    (state / "exits" / order["job_id"]).unlink()
    claim = claim_of(station, order)
    for who in ("keeper", "child"):
        claim[who] = {"pid": os.getpid(), "start": 1}
    (state / "claims" / order["job_id"]).write_text(json.dumps(claim))
    station.start()
    assert station.inquire(order["job_id"])["event"] == "lost"


# Records


def test_a_record_tells_how_a_job_ended_and_what_it_used(station: Station, site: Site) -> None:
    order = station.order(site, station.mission(site), "do.sh", "echo last words; kill -TERM $$")
    started = station.start_job(order)
    record = station.client.event(order["job_id"], "ended")["record"]
    assert (record["exit_code"], record["signal"]) == (None, signal.SIGTERM)
    assert record["started_at"] == started["started_at"] <= record["ended_at"]
    assert (record["pid"], record["site"], record["application"]) == (started["pid"], "one", "do")
    assert (record["script"], record["job_id"], record["log_tail"]) == ("do.sh", order["job_id"], "last words\n")
    assert record["max_rss_kib"] > 0
    assert record["user_seconds"] + record["system_seconds"] >= 0


def test_the_kept_end_of_a_log_is_the_jobs_own_and_bounded(station: Station, site: Site) -> None:
    mission = station.mission(site)
    with (mission / "job.log").open("w") as log:
        log.write("somebody else's\n")
    (mission / "job.log").chmod(0o666)
    assert station.run(station.order(site, mission, "do.sh", "echo mine"))["log_tail"] == "mine\n"
    tail = station.run(station.order(site, mission, "do.sh", "head -c 9000 /dev/zero | tr '\\0' x; echo end"))[
        "log_tail"
    ]
    assert tail == "x" * 4092 + "end\n"
