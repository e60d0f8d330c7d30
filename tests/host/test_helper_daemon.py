"""The helper as a daemon: what it tells systemd, how it ends, where it logs, and what its keepers leave alone."""

from __future__ import annotations

import json
import signal
import time

import pytest

from basestation_runner.sandbox.installation import HELPER, WATCHER
from tests.host.helper_client import DEADLINE, Client, Gate, Station, launcher
from tests.patience import until

WATCH_FILES = """
import json, os, sys
helper, busy = os.getpid(), []
def note(event, arguments):
    # A process that has been forked from the helper, and not a job yet.
    if os.getpid() == helper or event not in {{"import", "open"}} or busy:
        return
    busy.append(event)
    if event == "import" or str(arguments[0]).startswith({roots!r}):
        with open({path!r}, "a") as file:
            file.write(event + " " + str(arguments[0]) + "\\n")
    busy.clear()
if sys.argv[1] == 'fork-server':  # the helper's other child parses the configuration
    sys.addaudithook(note)
"""


def test_a_helper_says_that_it_is_ready_when_it_can_be_asked(station: Station) -> None:
    station.add_shell_site("one")
    daemon = station.installation.start_helper(wait=False)
    daemon.wait_ready()
    with Client(station.installation.helper_socket, station.installation.accounts.user(WATCHER)) as client:
        assert client.hello()["pid"] == daemon.pid
    assert daemon.wait_notification(lambda line: line.startswith("STATUS=")) == "STATUS=1 sites, 0 jobs running"


def test_a_helper_that_is_watched_says_that_it_lives_from_its_loop(station: Station) -> None:
    site = station.add_shell_site("one")
    station.start(environment={"WATCHDOG_USEC": "100000"})
    with Gate(station.installation.top / "gate") as gate:
        order = station.order(site, station.mission(site), "do.sh", gate.in_shell)
        station.start_job(order)
        station.daemon.wait_notification(lambda line: line == "STATUS=1 sites, 1 jobs running")
        gate.open()
        station.client.event(order["job_id"], "ended")
    assert station.daemon.notifications.count("WATCHDOG=1") > 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_helper_ends_cleanly_when_it_is_told_to(station: Station, number: signal.Signals) -> None:
    station.add_shell_site("one")
    daemon = station.start()
    daemon.send_signal(number)
    assert daemon.wait(DEADLINE) == 0
    assert "STOPPING=1" in daemon.notifications
    assert not station.installation.helper_socket.exists()
    assert [event["event"] for event in daemon.events] == ["helper ready", "helper stopped"]
    station.client.wait_until_closed()


def test_a_helper_whose_log_was_rotated_goes_on_in_the_new_file(station: Station) -> None:
    installation = station.installation
    site = station.add_shell_site("one")
    directory = installation.make_directory(installation.top / "helper-log", installation.accounts.user(HELPER))
    log = directory / "helper.log"
    station.start("--base-log", str(log))
    log.rename(directory / "helper.log.1")
    station.daemon.send_signal(signal.SIGHUP)
    order = station.order(site, station.mission(site), "do.sh", "echo ran")
    deadline = time.monotonic() + DEADLINE
    while not log.exists():
        station.client.hello()
        assert time.monotonic() < deadline
    station.run(order)
    until(lambda: "job ended" in log.read_text(), "the end to be logged")  # which is told first
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines if line.get("job_id") == order["job_id"]] == ["job started", "job ended"]
    assert "helper ready" in (directory / "helper.log.1").read_text()


def test_a_socket_that_cannot_be_made_is_one_line_and_no_traceback(station: Station) -> None:
    station.add_shell_site("one")
    daemon = station.installation.start_helper("--priv-exec-socket", "/nowhere/socket", wait=False)
    assert daemon.wait(DEADLINE) == 1
    (line,) = daemon.log.read_text().splitlines()
    assert line.startswith("runner: /nowhere/socket")


def test_a_dead_helpers_socket_is_replaced(station: Station) -> None:
    site = station.add_shell_site("one")
    station.start().kill()
    assert station.installation.helper_socket.exists()
    station.start()
    assert station.output(site, "echo ran") == "ran\n"


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_a_helper_that_is_started_with_standard_files_closed_runs_jobs(station: Station, closed: str) -> None:
    site = station.add_shell_site("one")
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *station.installation.program.command]
    station.start(command=command)
    assert station.output(site, "echo ran") == "ran\n"


def test_keepers_import_nothing_and_open_no_program_file(station: Station) -> None:
    """An upgrade may be replacing the files."""
    installation = station.installation
    seen = installation.top / "seen"
    seen.touch()
    seen.chmod(0o666)
    roots = (str(installation.top.parent / "program"), "/usr/lib", "/usr/local/lib")
    site = station.add_site("one", layout="jailed")
    station.start(command=[str(launcher(installation, WATCH_FILES.format(roots=roots, path=str(seen))))])
    mission = station.mission(site)
    station.run(station.order(site, mission, "do.py", "import os; os._exit(3)", "--x"))
    station.run(station.order(site, mission, "BaseLogin.py", site.seen(mission), "ünïcode"))
    station.refusal(station.order(site, mission, "Base.py", mission_dir="/nothing"))
    station.refusal(station.order(site, mission, "Base.py", log_file="/nothing/ü.log"))
    station.refusal(station.order(site, mission, "do.py", "x" * 200_000))
    installation.accounts.join("runner-one", HELPER)
    station.refusal(station.order(site, mission, "Base.py"))
    installation.accounts.remove_user("runner-one")
    assert station.outcome(station.order(site, mission, "Base.py"))["event"] == "temporary"
    assert seen.read_text() == ""
