"""An existing BaseRunnerMulti as the helper's watcher: its two requests, one exchange a connection."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.sandbox.installation import WATCHER
from tests.host.helper_client import DEADLINE, Client, Gate, NameService, Station, parent_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from basestation_runner.sandbox import Sandbox
    from basestation_runner.sandbox.installation import Site

LOST_CODE = 255


@pytest.fixture(scope="module")
def names(sandbox: Sandbox) -> Iterator[tuple[Station, NameService]]:
    with sandbox.installation() as installation, Station(installation) as station:
        os.chown(installation.cgroup_root, 0, 0)  # without cgroups: a plain directory's are never seen empty
        station.add_shell_site("one")
        station.add_site("jailed", layout="jailed")
        service = NameService(installation)
        station.start(command=service.command)
        yield station, service


@pytest.fixture
def station(names: tuple[Station, NameService]) -> Station:
    return names[0]


@pytest.fixture
def site(station: Station) -> Site:
    return station.installation.sites["one"]


def exchange(station: Station, message: dict[str, Any]) -> dict[str, Any] | None:
    """Send one message on a connection of its own and return the answer, None if it was closed without one."""
    installation = station.installation
    with Client(installation.helper_socket, installation.accounts.user(WATCHER)) as client:
        client.send(message)
        client.wait_until_closed()
        try:
            return client.next()
        except EOFError:
            return None


def order(station: Station, site: Site, mission: Path, *args: str, **changes: object) -> dict[str, Any]:
    script = "do.sh" if site.name == "one" else "do.py"
    argv = [str(site.entry["python_version"]), f"{station.installation.scripts}/{script}", *args]
    return {"site": site.name, "argv": argv, "log_file": str(mission / "job.log"), **changes}


def returncode(station: Station, pid: int) -> int:
    """Ask again and again, as the legacy watcher does, until the job is done."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        answer = exchange(station, {"query": "status", "pid": pid})
        assert answer is not None
        assert answer["ok"] is True
        if answer["done"]:
            return int(answer["returncode"])
        assert answer["returncode"] is None
    pytest.fail("the job is never done")


def test_a_job_is_started_and_its_exit_code_told(station: Station, site: Site) -> None:
    mission = station.mission(site)
    answer = exchange(station, order(station, site, mission, "pwd; exit 3"))
    assert answer is not None
    assert answer["ok"] is True
    assert returncode(station, answer["pid"]) == 3
    assert (mission / "job.log").read_text() == f"{mission}\n"


def test_the_pid_is_the_jobs_and_a_signal_is_told_as_a_negative_number(station: Station, site: Site) -> None:
    with Gate(station.installation.top / "gate") as gate:
        answer = exchange(station, order(station, site, station.mission(site), gate.in_shell, job_id="abc"))
        assert answer is not None
        status = exchange(station, {"query": "status", "pid": answer["pid"]})
        assert status == {"ok": True, "done": False, "returncode": None}
        os.kill(answer["pid"], signal.SIGTERM)
        assert returncode(station, answer["pid"]) == -signal.SIGTERM


def test_a_repeated_job_id_starts_no_second_job(station: Station, site: Site) -> None:
    mission = station.mission(site)
    message = order(station, site, mission, "echo ran", job_id="abc-1")
    answers = [exchange(station, message) for _ in range(2)]
    assert answers[0] == answers[1] is not None
    returncode(station, answers[0]["pid"])  # type: ignore[index]
    assert exchange(station, message) == answers[0]
    assert (mission / "job.log").read_text() == "ran\n"


def test_its_paths_are_the_hosts_and_its_arguments_stay_as_they_are(station: Station) -> None:
    site = station.installation.sites["jailed"]
    mission = station.mission(site)
    code = "import json, os, sys; print(os.getcwd(), *sys.argv[2:])"
    message = order(station, site, mission, code, "--mission_dir", str(mission), "--daemon")
    answer = exchange(station, {**message, "log_file": str(mission.parent / "job.log")})
    assert answer is not None
    assert returncode(station, answer["pid"]) == 0
    assert (mission.parent / "job.log").read_text() == f"{mission} --mission_dir {mission} --daemon\n"


REFUSED = {
    "another program": (["/bin/bash", "{scripts}/do.sh"], "its program is not the site's interpreter"),
    "another directory": (["/bin/sh", "/tmp/do.sh"], "its program is not the site's interpreter"),  # noqa: S108
    "a way round": (["/bin/sh", "{scripts}/../basestation3/do.sh"], "its program is not the site's interpreter"),
    "an option": (["/bin/sh", "-c", "{scripts}/do.sh"], "its program is not the site's interpreter"),
    "an unlisted script": (["/bin/sh", "{scripts}/x.sh"], "script x.sh is not listed in any application of the site"),
    "no script": (["/bin/sh"], "its program is not the site's interpreter"),
    "nothing": ([], "its program is not the site's interpreter"),
}


@pytest.mark.parametrize(("argv", "reason"), REFUSED.values(), ids=REFUSED)
def test_anything_but_a_listed_script_is_refused(station: Station, site: Site, argv: list[str], reason: str) -> None:
    mission = station.mission(site)
    words = [word.format(scripts=station.installation.scripts) for word in argv]
    answer = exchange(station, {**order(station, site, mission), "argv": words})
    assert answer is not None
    assert answer["ok"] is False
    assert answer["error"].startswith(reason)
    assert not (mission / "job.log").exists()


@pytest.mark.parametrize("change", [{"site": "unknown"}, {"log_file": "/etc/x"}])
def test_what_must_never_run_is_a_final_answer(station: Station, site: Site, change: dict[str, str]) -> None:
    answer = exchange(station, {**order(station, site, station.mission(site)), **change})
    assert answer is not None
    assert answer["ok"] is False


def test_what_may_pass_is_no_answer(names: tuple[Station, NameService], site: Site) -> None:
    station, service = names
    service.fail("runner-one")
    message = order(station, site, station.mission(site), "exit 4", job_id="abc-2")
    assert exchange(station, message) is None
    service.recover("runner-one")
    answer = exchange(station, message)
    assert answer is not None
    assert returncode(station, answer["pid"]) == 4


def test_an_unknown_pid_is_done_with_a_code_that_is_no_success(station: Station) -> None:
    answer = exchange(station, {"query": "status", "pid": 1})
    assert answer == {"ok": True, "done": True, "returncode": LOST_CODE}


def test_a_job_whose_keeper_was_killed_is_no_success(station: Station, site: Site) -> None:
    with Gate(station.installation.top / "gate-2") as gate:
        answer = exchange(station, order(station, site, station.mission(site), gate.in_shell))
        assert answer is not None
        os.kill(parent_of(answer["pid"]), signal.SIGKILL)
        station.daemon.wait_event(lambda event: event["event"] == "job without a keeper")
        assert exchange(station, {"query": "status", "pid": answer["pid"]})["done"] is False  # type: ignore[index]
        gate.open()
        assert returncode(station, answer["pid"]) == LOST_CODE
