"""A job that cannot be started is an answer with a reason, in the job's own log too, and never an exit code."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.host.helper_client import Station

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from basestation_runner.sandbox import Installation, Sandbox
    from basestation_runner.sandbox.installation import Site


@pytest.fixture(scope="module")
def station(sandbox: Sandbox) -> Iterator[Station]:
    with sandbox.installation() as installation, Station(installation) as station:
        top = installation.top
        for name in ("plain", "data", "loop"):
            (top / name).write_text("#!/nowhere/interpreter\n" if name == "loop" else "data\n")
        (top / "plain").chmod(0o644)
        (top / "data").chmod(0o755)
        (top / "loop").chmod(0o755)
        station.add_shell_site("shell")
        station.add_shell_site("other")
        station.add_site("missing", python_version=str(top / "nothing"))
        station.add_site("not-executable", python_version=str(top / "plain"))
        station.add_site("directory", python_version=str(top))
        station.add_site("no-program", python_version=str(top / "data"))
        station.add_site("no-interpreter", python_version=str(top / "loop"))
        scripts = installation.make_directory(top / "scripts")
        (scripts / "Base.py").mkdir()
        installation.write(scripts / "do.sh", "echo ran")
        (scripts / "do.sh").chmod(0o600)
        station.add_shell_site("scripts", basestation_dir=str(scripts))
        station.start()
        yield station


@pytest.fixture
def shell(station: Station) -> Site:
    return station.installation.sites["shell"]


def refused_in_its_log(station: Station, site: Site, script: str = "do.sh", **changes: object) -> str:
    """Send an order that must be refused after its log was opened; return the reason, which is in that log too."""
    mission = station.mission(site)
    order = station.order(site, mission, script, "echo ran", **changes)
    reason = station.refusal(order)
    (line,) = (mission / "job.log").read_text().splitlines()
    wanted = f"UTC: ERROR: runner: {script} (job_id={order['job_id']}) was not started: {reason}"
    assert line.endswith(wanted)
    assert station.inquire(order["job_id"])["event"] == "never_started"
    return reason


# The program


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "No such file or directory"),
        ("not-executable", "Permission denied"),
        ("directory", "it is not a regular file"),
        ("no-program", "Exec format error"),
        ("no-interpreter", "No such file or directory"),
    ],
)
def test_an_interpreter_that_cannot_be_executed_is_named(station: Station, name: str, why: str) -> None:
    site = station.installation.sites[name]
    assert refused_in_its_log(station, site, "Base.py") == f"the interpreter {site.entry['python_version']}: {why}"


def test_a_script_that_is_missing_is_named(station: Station, shell: Site) -> None:
    script = station.installation.scripts / "GliderEarlyGPS.py"
    script.rename(script.with_suffix(".away"))
    reason = refused_in_its_log(station, shell, "GliderEarlyGPS.py")
    script.with_suffix(".away").rename(script)
    assert reason == f"the script {script}: No such file or directory"


@pytest.mark.parametrize(("script", "why"), [("Base.py", "it is not a regular file"), ("do.sh", "Permission denied")])
def test_a_script_that_cannot_be_read_is_named(station: Station, script: str, why: str) -> None:
    site = station.installation.sites["scripts"]
    assert refused_in_its_log(station, site, script) == f"the script {site.entry['basestation_dir']}/{script}: {why}"


def test_arguments_that_are_too_long_for_linux_are_refused(station: Station, shell: Site) -> None:
    assert refused_in_its_log(station, shell, args=["x" * 200_000]) == (
        "the interpreter /bin/sh: Argument list too long"
    )


# The places


def test_a_mission_directory_outside_the_tree_is_refused(station: Station, shell: Site) -> None:
    reason = refused_in_its_log(station, shell, mission_dir="/etc")
    assert reason == "the mission directory /etc: it is outside the site's tree"


def test_a_mission_directory_of_another_site_is_refused(station: Station, shell: Site) -> None:
    other = station.mission(station.installation.sites["other"], mode=0o777)
    reason = refused_in_its_log(station, shell, mission_dir=str(other))
    assert reason == f"the mission directory {other}: it is outside the site's tree"


def test_a_home_outside_the_tree_is_refused(station: Station, shell: Site) -> None:
    assert refused_in_its_log(station, shell, home="/root") == "the home directory /root: it is outside the site's tree"


@pytest.mark.parametrize(("field", "name"), [("mission_dir", "the mission directory"), ("home", "the home directory")])
def test_a_directory_that_is_missing_or_is_none_is_refused(
    station: Station, shell: Site, field: str, name: str
) -> None:
    home = station.home(shell)
    (home / "file").touch()
    for path, why in ((home / "nothing", "No such file or directory"), (home / "file", "Not a directory")):
        assert refused_in_its_log(station, shell, **{field: str(path)}) == f"{name} {path}: {why}"


@pytest.mark.parametrize("path", ["", "mission", "../mission"])
def test_a_path_that_is_not_absolute_is_refused(station: Station, shell: Site, path: str) -> None:
    reason = refused_in_its_log(station, shell, mission_dir=path)
    assert reason == f"the mission directory {path}: it is not an absolute path"


def test_a_directory_that_the_sites_account_may_not_enter_is_refused(station: Station, shell: Site) -> None:
    closed = station.home(shell) / "closed"
    closed.mkdir(mode=0o700)
    assert refused_in_its_log(station, shell, mission_dir=str(closed)) == (
        f"the mission directory {closed}: Permission denied"
    )


# The log


def make_fifo(path: Path) -> None:
    os.mkfifo(path)
    path.chmod(0o666)


def make_write_only_fifo(path: Path) -> None:
    os.mkfifo(path)
    path.chmod(0o222)


def link_by_climbing(path: Path) -> None:
    path.symlink_to(os.path.relpath("/etc/hostname", path.parent))


LOGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a FIFO": (make_fifo, "it is not a regular file"),
    "a FIFO that cannot be read": (make_write_only_fifo, "No such device or address"),
    "a directory": (Path.mkdir, "Is a directory"),
    "a link to outside": (lambda path: path.symlink_to("/etc/hostname"), "it is outside the site's tree"),
    "a link up and out": (link_by_climbing, "it is outside the site's tree"),
    "a link to nothing outside": (lambda path: path.symlink_to("/etc/nothing"), "it is a link that leads nowhere"),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), "it is a link that leads nowhere"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "root's own": (lambda path: path.touch(mode=0o600), "Permission denied"),
}


@pytest.mark.parametrize(("make", "why"), LOGS.values(), ids=LOGS)
def test_a_log_that_is_no_regular_file_of_the_sites_is_refused_at_once(
    station: Station, shell: Site, make: Callable[[Path], object], why: str
) -> None:
    mission = station.mission(shell)
    log = mission / "job.log"
    make(log)
    assert station.refusal(station.order(shell, mission, "do.sh", "echo ran")) == f"the log {log}: {why}"
    assert not (mission / "nothing").exists()


def test_a_log_in_a_directory_that_is_missing_is_refused(station: Station, shell: Site) -> None:
    mission = station.mission(shell)
    log = mission / "nothing/job.log"
    order = station.order(shell, mission, "do.sh", "echo ran", log_file=str(log))
    assert station.refusal(order) == f"the log {log}: No such file or directory"


def test_a_log_outside_the_tree_is_refused_and_not_made(station: Station, shell: Site) -> None:
    mission = station.mission(shell)
    other = station.mission(station.installation.sites["other"], mode=0o777)
    order = station.order(shell, mission, "do.sh", "echo ran", log_file=str(other / "job.log"))
    assert station.refusal(order) == f"the log {other / 'job.log'}: it is outside the site's tree"
    assert not (other / "job.log").exists()


def test_a_log_that_can_be_written_but_not_read_is_used(station: Station, shell: Site) -> None:
    mission = station.mission(shell)
    log = mission / "job.log"
    log.touch()
    log.chmod(0o622)
    record = station.run(station.order(shell, mission, "do.sh", "echo ran"))
    assert (log.read_text(), record["log_tail"]) == ("ran\n", "")


def test_a_request_cannot_forge_a_line_in_the_log_of_its_refusal(station: Station, shell: Site) -> None:
    reason = station.refusal(
        station.order(shell, station.mission(shell), "do.sh", "echo ran", mission_dir="/etc\n12:00:00 forged\x1b[2J")
    )
    assert "\n" in reason, "the answer is JSON and holds what was asked for"
    mission = station.mission(shell)
    station.refusal(station.order(shell, mission, "do.sh", mission_dir="/etc\n12:00:00 forged\x1b[2J"))
    text = (mission / "job.log").read_text()
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_a_long_path_is_cut_in_reasons(station: Station, shell: Site) -> None:
    reason = refused_in_its_log(station, shell, mission_dir="/" + "x" * 100_000)
    assert len(reason) < 1000


# Afterwards


def test_nothing_is_left_of_a_job_that_was_not_started(station: Station, shell: Site) -> None:
    refused_in_its_log(station, shell, mission_dir="/etc")
    state = station.installation.helper_state
    claims = [path.name for path in (state / "claims").iterdir()]
    assert len(claims) == len([path.name for path in (state / "exits").iterdir()]), "each of a job that ran"


def test_what_was_refused_may_be_ordered_again_when_it_has_been_mended(station: Station, shell: Site) -> None:
    mission = station.mission(shell)
    order = station.order(shell, mission, "do.sh", "echo ran", mission_dir=str(mission / "later"))
    station.refusal(order)
    station.installation.make_directory(mission / "later", shell.account, shell.group)
    assert station.run(order)["log_tail"] == "ran\n"


def test_an_exit_code_of_127_is_the_jobs_own(station: Station, shell: Site) -> None:
    record = station.run(station.order(shell, station.mission(shell), "do.sh", "/nowhere/program"))
    assert record["exit_code"] == 127
    assert "not found" in record["log_tail"]


def test_the_helpers_log_tells_each_refusal(station: Station, shell: Site) -> None:
    order = station.order(shell, station.mission(shell), "do.sh", mission_dir="/etc")
    reason = station.refusal(order)
    line = station.daemon.wait_event(
        lambda event: event["event"] == "job refused" and event["job_id"] == order["job_id"]
    )
    assert (line["level"], line["site"], line["reason"]) == ("warning", "shell", reason)


# Errors that pass


def test_a_passing_error_puts_the_job_back(installation: Installation) -> None:
    """An interpreter that is just being replaced says nothing about the request."""
    shell = installation.top / "shell"
    shutil.copy("/bin/sh", shell)
    with Station(installation) as station:
        site = station.add_site("one", python_version=str(shell))
        station.start()
        order = station.order(site, station.mission(site), "do.sh", "echo ran")
        with shell.open("r+b"):
            event = station.outcome(order)
        assert (event["event"], event["absent"]) == ("temporary", False)
        assert event["reason"] == f"the interpreter {shell}: Text file busy"
        assert station.run(order)["log_tail"] == "ran\n"


def test_a_claim_that_cannot_be_written_puts_the_job_back(installation: Installation) -> None:
    with Station(installation) as station:
        site = station.add_shell_site("one")
        station.start()
        claims = installation.helper_state / "claims"
        os.chown(claims, 0, 0)
        order = station.order(site, station.mission(site), "do.sh", "echo ran")
        event = station.outcome(order)
        assert event["event"] == "temporary"
        assert event["reason"] == "the claim cannot be written: Permission denied"
        assert not Path(order["log_file"]).exists()
        helper = installation.accounts.user("baserunner-exec")
        os.chown(claims, helper.uid, helper.gid)
        assert station.run(order)["log_tail"] == "ran\n"
