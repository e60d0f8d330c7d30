"""Real requests through both daemons under their real accounts: what clients, jobs and the glider's people see."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon

SAMPLES = Path(__file__).parents[1] / "samples/requests"
TIMING = (
    r"\d\d:\d\d:\d\d \d\d \w{3} \d{4} UTC: INFO: BaseRunner: %s \(job_id=%s\) started "
    r"\d\d:\d\d:\d\d \d\d \w{3} \d{4} UTC, completed in \d+\.\d\ds, returncode=0"
)


@pytest.fixture
def jailed(installation: Installation) -> Site:
    site = installation.add_site("seaglider", "home/seaglider", layout="jailed")
    installation.add_glider(site, "sg123", "mission1")
    return site


@pytest.fixture
def unjailed(installation: Installation) -> Site:
    site = installation.add_site("test", "home", layout="wide")
    installation.add_glider(site, "sg090")
    return site


@pytest.fixture
def watcher(installation: Installation, jailed: Site, unjailed: Site) -> Daemon:  # noqa: ARG001 - the sites come first
    installation.start_helper()
    return installation.start_watcher()


def run(installation: Installation, watcher: Daemon, site: Site, glider: str, text: str) -> tuple[str, dict[str, Any]]:
    """Drop a request as the glider does; return its job's id and what the job reported when it has ended."""
    script = text.split()[3]
    drop = installation.drop(site, text, by=installation.account(glider))
    ended = watcher.wait_event(
        lambda event: event["event"] == "job ended" and (event["site"], event["script"]) == (site.name, script)
    )
    assert ended["exit_code"] == 0
    assert not drop.path.exists()
    (report,) = site.homes.rglob(f"report-{script}-{ended['job_id']}.json")
    return ended["job_id"], json.loads(report.read_text())


def test_a_glider_in_a_jail_logs_in(installation: Installation, jailed: Site, watcher: Daemon) -> None:
    text = (SAMPLES / "261130113946.run").read_text()
    job_id, report = run(installation, watcher, jailed, "sg123", text)
    mission = jailed.homes / "sg123/mission1"
    assert report["argv"] == [
        str(installation.scripts / "GliderEarlyGPS.py"),
        *("--mission_dir", str(mission), "--verbose"),
        *("--base_log", str(mission / "glider_early_gps_261130113946")),
        *("--config", str(mission / "sg123.conf"), "--csh_pid", "28588", "--path_to_logout", "nologout"),
    ]
    said, timing = (mission / "glider_early_gps.log").read_text().splitlines()
    assert said.startswith("GliderEarlyGPS.py: uid ")
    assert re.fullmatch(TIMING % ("GliderEarlyGPS.py", job_id), timing)
    check_identity(jailed, report, mission / "glider_early_gps.log")


def test_a_glider_in_a_jail_logs_out(installation: Installation, jailed: Site, watcher: Daemon) -> None:
    text = (SAMPLES / "261130113955123.run").read_text()
    job_id, report = run(installation, watcher, jailed, "sg123", text)
    mission = jailed.homes / "sg123/mission1"
    assert report["argv"] == [
        str(installation.scripts / "Base.py"),
        *("--mission_dir", str(mission), "--verbose", "--nice", "10"),
        *("--base_log", str(mission / "baselog_261130113955"), "--config", str(mission / "sg123.conf")),
        *("--job_id", job_id, "--queue_length", "0"),
    ]
    assert (mission / "baselog.log").read_text().startswith("Base.py: uid ")
    check_identity(jailed, report, mission / "baselog.log")


def test_a_glider_without_a_jail_logs_in(installation: Installation, unjailed: Site, watcher: Daemon) -> None:
    text = (SAMPLES / "unjailed-login.run").read_text().replace("/home/", f"{unjailed.homes}/")
    job_id, report = run(installation, watcher, unjailed, "sg090", text)
    home = unjailed.homes / "sg090"
    assert report["argv"] == [
        str(installation.scripts / "BaseLogin.py"),
        *("--mission_dir", str(home), "--verbose"),
    ]
    assert re.search(TIMING % ("BaseLogin.py", job_id), (home / "baselog.log").read_text())
    check_identity(unjailed, report, home / "baselog.log")


def check_identity(site: Site, report: dict[str, Any], log: Path) -> None:
    """Check whom the job ran as and that the glider's people can use what it left."""
    assert site.account
    assert report["uids"] == [site.account.uid] * 3
    assert report["gids"] == [site.account.gid] * 3
    assert report["groups"] == [site.account.gid]
    assert {int(report["capabilities"][name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert report["no_new_privs"] == 1
    assert report["umask"] == 0o002
    assert report["cwd"] == str(log.parent)
    assert report["session"] == report["process_group"] == report["pid"]
    assert report["descriptors"] == {"0": "/dev/null", "1": str(log), "2": str(log)}
    facts = log.stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o777) == (site.account.uid, site.account.gid, 0o660)
