"""The fork server and its keepers: used again, killed, replaced; a job finds nothing of another one."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM
from typing import TYPE_CHECKING

import pytest

from tests.host.helper_client import DEADLINE, Gate, Station, launcher, parent_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from tests.host.helper_client import Message

WHO = (
    "grep -E '^(Uid|Gid|Groups|CapPrm|NoNewPrivs)' /proc/self/status; umask; ls /proc/$$/fd; env | sort; ps -o sid= $$"
)


@pytest.fixture
def station(installation: Installation) -> Iterator[Station]:
    with Station(installation) as station:
        for name in ("one", "two"):
            station.add_shell_site(name)
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
    return station.order(site, station.mission(site), "do.sh", f"echo ran; {gate.in_shell}; exit 3")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def fork_server(station: Station) -> int:
    (pid,) = children(station.daemon.pid)
    return pid


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0")


def kill(pid: int) -> None:
    """Kill a process and wait for its end."""
    pidfd = os.pidfd_open(pid)
    os.kill(pid, SIGKILL)
    assert select.select([pidfd], [], [], DEADLINE)[0]
    os.close(pidfd)


def test_the_helpers_one_child_forks_the_keepers(station: Station, order: Message, gate: Gate) -> None:
    keeper = parent_of(station.start_job(order)["pid"])
    assert parent_of(keeper) == fork_server(station)
    assert (title(fork_server(station)), title(keeper)) == ("runner-forkserver", "runner-keeper:one")
    gate.open()
    assert station.client.event(order["job_id"], "ended")["record"]["exit_code"] == 3


def test_a_keeper_is_used_again_and_its_next_job_finds_nothing_of_the_one_before(station: Station) -> None:
    sites = [station.installation.sites[name] for name in ("one", "two")]
    first = {site.name: station.output(site, WHO) for site in sites}
    keepers = set()
    for _ in range(4):
        for site in sites:
            order = station.order(site, station.mission(site), "do.sh", "echo $PPID")
            keepers.add(station.run(order)["log_tail"])
    assert len(keepers) < 8
    again = {site.name: station.output(site, WHO) for site in sites}

    def lasting(text: str) -> list[str]:
        """What a job is, without what differs from one to the next."""
        passing = ("RUNNER_JOB_ID", "PWD", "OLDPWD", "_=")
        return [line for line in text.splitlines() if not line.startswith(passing) and not line.strip().isdigit()]

    for site in sites:
        assert lasting(first[site.name]) == lasting(again[site.name])
    assert first["one"] != first["two"]


def test_a_session_and_a_keyring_are_never_those_of_an_earlier_job(station: Station, site: Site) -> None:
    sessions = {station.output(site, "ps -o sid= $$; echo") for _ in range(5)}
    assert len(sessions) == 5


def test_a_refused_or_postponed_job_leaves_its_keeper_fit_for_the_next(station: Station, site: Site) -> None:
    mission = station.mission(site)
    for _ in range(3):
        assert "log" in station.refusal(station.order(site, mission, "do.sh", "true", log_file="/nowhere/log"))
        assert station.output(site, "echo ran") == "ran\n"
    deadline = time.monotonic() + DEADLINE
    while len(children(fork_server(station))) > 4:
        assert time.monotonic() < deadline


def test_a_keeper_that_was_killed_without_a_job_is_replaced(station: Station, site: Site) -> None:
    for _ in range(3):
        assert station.output(site, "echo ran") == "ran\n"
        for keeper in children(fork_server(station)):
            kill(keeper)
    assert station.output(site, "echo ran") == "ran\n"


def test_a_child_that_was_killed_while_it_waited_for_a_job_puts_that_back(station: Station, site: Site) -> None:
    deadline = time.monotonic() + DEADLINE
    event: Message = {"event": "ended"}
    while event["event"] == "ended":  # a keeper that was not ready yet has been passed over
        assert time.monotonic() < deadline
        for child in [child for keeper in children(fork_server(station)) for child in children(keeper)]:
            kill(child)
        order = station.order(site, station.mission(site), "do.sh", "echo ran")
        event = station.outcome(order)
    assert event["event"] == "temporary"
    assert "before the program was started" in event["reason"]
    assert station.run(order)["log_tail"] == "ran\n"


def test_a_helper_whose_fork_server_ends_ends_too_and_the_next_one_has_the_jobs(
    station: Station, order: Message, gate: Gate
) -> None:
    pid = station.start_job(order)["pid"]
    kill(fork_server(station))
    assert station.daemon.wait(DEADLINE) == 1
    assert any("the fork server has ended" in str(line) for line in station.daemon.events)
    station.start()
    assert station.inquire(order["job_id"])["pid"] == pid
    gate.open()
    assert station.client.event(order["job_id"], "ended")["record"]["exit_code"] == 3


def test_signals_that_are_meant_for_the_helper_do_not_end_the_fork_server(station: Station, site: Site) -> None:
    for number in (SIGTERM, SIGINT):
        os.kill(fork_server(station), number)
    assert station.output(site, "echo ran") == "ran\n"


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_nothing_without_a_job_outlives_the_helper(station: Station, site: Site, how: str) -> None:
    station.output(site, "echo ran")
    server = fork_server(station)
    family = [server, *children(server)]
    family += [child for keeper in family[1:] for child in children(keeper)]
    pidfds = [os.pidfd_open(pid) for pid in family]
    if how == "stopped":
        station.daemon.stop()
    else:
        station.daemon.kill()
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], DEADLINE)[0]
        os.close(pidfd)


def test_a_helper_whose_fork_server_cannot_start_says_so(station: Station) -> None:
    station.daemon.stop()
    fails = "import sys\nif sys.argv[1:2] == ['fork-server']: sys.exit('no room')"
    daemon = station.installation.start_helper(command=[str(launcher(station.installation, fails))], wait=False)
    assert daemon.wait(DEADLINE) == 1
    text = daemon.log.read_text()
    assert "no room" in text
    assert "the fork server has not started" in text


def test_the_fork_server_holds_what_the_helper_holds_and_is_as_closed(station: Station) -> None:
    fields = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{fork_server(station)}/status").read_text().splitlines()
    )
    two = f"{1 << 6 | 1 << 7:016x}"
    # The last two are for what its keepers execute; the helper itself has given them up.
    assert [fields[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")] == [two] * 4
    assert "CapInh:\t0000000000000000\n" in Path(f"/proc/{station.daemon.pid}/status").read_text()
    assert Path(f"/proc/{fork_server(station)}/environ").stat().st_uid == 0  # as of whatever is not dumpable
