"""The helper reads its configuration anew while it serves, under the rules of its start; both daemons at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.sandbox.installation import WATCHER
from basestation_runner.sandbox.process import Identity
from tests.host.helper_client import Gate, NameService, Station
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation


@pytest.fixture
def station(installation: Installation) -> Iterator[Station]:
    with Station(installation) as station:
        yield station


def reload(station: Station) -> list[str]:
    """Have the helper read its configuration anew; return the faults."""
    station.client.send({"request": "reload"})
    answer = station.client._take(lambda message: message.get("event") == "reloaded")
    return [str(fault) for fault in answer["faults"]]


def test_a_helper_goes_by_the_new_files_and_tells_the_watcher(station: Station) -> None:
    one = station.add_shell_site("one")
    station.start()
    before = station.client.hello()["config"]
    two = station.add_shell_site("two")
    station.installation.write_config({"one": {"env": {"CASE": "7"}}})
    assert reload(station) == []
    told = station.client._take(lambda message: message.get("event") == "configuration")
    assert told["config"] == station.client.hello()["config"] != before
    assert station.output(two, "echo ran") == "ran\n"
    assert station.output(one, "echo $CASE") == "7\n"
    event = station.daemon.wait_event(lambda line: line["event"] == "configuration reloaded")
    assert (event["added"], event["removed"], event["changed"]) == (["two"], [], ["one"])


def test_a_job_of_another_configuration_waits_until_the_helper_has_read_it(station: Station) -> None:
    site = station.add_shell_site("one")
    station.start()
    station.client.hello()
    station.installation.write_config({"one": {"max_running": 7}})
    order = station.order(site, station.mission(site), "do.sh", "echo ran")
    event = station.outcome(order)
    assert event["event"] == "temporary"
    assert "runner reload" in event["reason"]
    station.daemon.send_signal(signal.SIGHUP)
    station.client._take(lambda message: message.get("event") == "configuration")
    assert station.run(order)["exit_code"] == 0


def test_jobs_run_on_while_their_site_is_taken_away(station: Station) -> None:
    one = station.add_shell_site("one")
    station.add_shell_site("two")
    station.start()
    with Gate(station.installation.top / "gate") as gate:
        order = station.order(one, station.mission(one), "do.sh", gate.in_shell)
        station.start_job(order)
        del station.installation.sites["one"]
        station.installation.write_config()
        assert reload(station) == []
        assert station.outcome({**order, "job_id": "0"})["event"] == "temporary"
        gate.open()
        assert station.client.event(order["job_id"], "ended")["record"]["exit_code"] == 0


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("runner_user", "root", "sites.yaml"),
        ("runner_user", WATCHER, "which no job may have"),
        ("runner_user", "nobody-knows", "site two: account nobody-knows is not known"),
        ("groups", ["root"], "sites.yaml"),
        ("watch_dir", "relative", "sites.yaml"),
        ("colour", "red", "sites.yaml"),
    ],
)
def test_a_file_that_the_helper_would_not_start_with_changes_nothing(
    station: Station, field: str, value: object, fault: str
) -> None:
    one = station.add_shell_site("one")
    station.start()
    before = station.client.hello()["config"]
    station.add_shell_site("two")
    station.installation.write_config({"two": {field: value}})
    assert any(fault in each for each in reload(station))
    assert station.client.hello()["config"] == before
    refused = station.daemon.wait_event(lambda line: line["event"].startswith("configuration not reloaded"))
    assert refused["level"] == "error"
    del station.installation.sites["two"]
    station.installation.write_config()
    assert station.output(one, "echo ran") == "ran\n"


def test_a_file_that_others_could_write_is_not_read(station: Station) -> None:
    station.add_shell_site("one")
    station.start()
    station.installation.sites_config.chmod(0o666)
    assert any("sites.yaml" in fault for fault in reload(station))


def test_a_name_service_that_hangs_holds_no_job_up_while_the_configuration_is_read(station: Station) -> None:
    names = NameService(station.installation)
    one, two = station.add_shell_site("one"), station.add_shell_site("two")
    station.start(command=names.command)
    assert two.account is not None
    names.hang(two.account.name)
    station.client.send({"request": "reload"})
    assert station.output(one, "echo ran") == "ran\n"
    names.go_on(two.account.name)
    assert station.client._take(lambda message: message.get("event") == "reloaded")["faults"] == []


# Both daemons


class Desk:
    """Runs `runner reload` as any account."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation

    def run(self, account: Account | None, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self.installation.program.command, "reload"]
        command += ["--control-socket", str(self.installation.control_socket), *words]
        return subprocess.run(
            [*Identity(account).prefix(), *command], capture_output=True, text=True, check=False, cwd="/"
        )

    def json(self, account: Account | None = None) -> dict[str, Any]:
        done = self.run(account, "--json")
        assert done.stderr == ""
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture
def desk(installation: Installation) -> Desk:
    return Desk(installation)


def has_report(mission: Any) -> bool:  # noqa: ANN401 - a path
    return any(path.name.startswith("report-") for path in mission.iterdir())


def test_one_command_has_both_daemons_serve_a_new_site_whose_group_the_watcher_has(
    station: Station, installation: Installation, desk: Desk
) -> None:
    station.add_site("one")
    two = station.add_site("two")
    kept = installation.sites.pop("two")
    installation.write_config()
    installation.start_helper()
    installation.start_watcher()
    installation.sites["two"] = kept
    installation.write_config()
    answer = desk.json()
    assert (answer["added"], answer["helper"], answer["needs_restart"]) == (["two"], "reloaded", [])
    home = installation.add_glider(two, "sg002", "m")
    line = f"{two.seen(home)} {two.seen(home / 'm')} {two.seen(home / 'm' / 'job.log')} Base.py\n"
    installation.drop(two, line, by=two.account)
    until(lambda: has_report(home / "m"), "the new site's job has run")


def test_a_group_that_the_watcher_was_started_without_is_said(
    station: Station, installation: Installation, desk: Desk
) -> None:
    station.add_site("one")
    installation.start_helper()
    installation.start_watcher()
    two = station.add_site("two", tree="closed")
    assert two.account is not None
    installation.make_directory(two.watch_dir, two.account, two.group, mode=0o2770)
    assert desk.json()["needs_restart"] == [{"site": "two", "reason": f"needs restart: group {two.group}"}]


@pytest.mark.parametrize("number", ["SIGHUP", "reload"])
def test_a_faulty_file_is_shown_and_both_daemons_go_on_as_before(
    station: Station, installation: Installation, desk: Desk, number: str
) -> None:
    one = station.add_site("one")
    home = installation.add_glider(one, "sg001", "m")
    installation.start_helper()
    watcher = installation.start_watcher()
    installation.write(installation.sites_config, "one:\n  watch_dir: relative\n  colour: red\n")
    if number == "SIGHUP":
        watcher.send_signal(signal.SIGHUP)
        event = watcher.wait_event(lambda line: line["event"].startswith("configuration not reloaded"))
        assert len(event["faults"]) == 3
    else:
        done = desk.run(None)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 4
        assert "sites.yaml:2:" in done.stderr
    line = f"{one.seen(home)} {one.seen(home / 'm')} {one.seen(home / 'm' / 'job.log')} Base.py\n"
    installation.drop(one, line, by=one.account)
    until(lambda: has_report(home / "m"), "the site's job has run")


def test_only_operators_may_reload(station: Station, installation: Installation, desk: Desk) -> None:
    one = station.add_site("one")
    installation.start_helper()
    installation.start_watcher()
    done = desk.run(one.account)
    assert done.returncode == 1
    assert "only root and members of the watcher's group" in done.stderr
    assert desk.run(installation.account(WATCHER)).returncode == 0


def test_many_reloads_at_once_all_get_an_answer(station: Station, installation: Installation, desk: Desk) -> None:
    station.add_site("one")
    installation.start_helper()
    installation.start_watcher()
    answers: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: answers.append(desk.json())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(answer["helper"], answer["faults"]) for answer in answers] == [("reloaded", [])] * 4
    assert os.listdir(installation.helper_state / "claims") == []  # noqa: PTH208 - names are enough
