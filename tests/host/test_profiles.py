"""Real requests that add to their applications' profiles, through both daemons under their real accounts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.host.helper_client import launcher

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.accounts import Accounts
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon

PROFILE = "applications: [{name: base, scripts: [Base.py], env: {LEVEL: '3'}, job_env: [PYTHONPATH]%s}]\n"


@pytest.fixture
def site(installation: Installation, accounts: Accounts) -> Site:
    for group in ("science", "ops"):
        accounts.add_group(group)
    account = accounts.add_user("runner-one", groups=["science", "ops"])
    return installation.add_site(
        "one", "one", account=account, groups=["runner-one", "science", "ops"], env={"SITE_VAR": "s"}
    )


@pytest.fixture
def mission(installation: Installation, site: Site) -> Path:
    return installation.make_directory(site.homes / "sg001", site.account, site.group, mode=0o2770)


def start(installation: Installation, fields: str = "") -> tuple[Daemon, Daemon]:
    installation.write(installation.applications_config, PROFILE % fields)
    return installation.start_helper(), installation.start_watcher()


def drop(installation: Installation, site: Site, mission: Path, lines: str) -> Path:
    text = f"{mission} {mission} {mission}/job.log Base.py\n{lines}"
    return installation.drop(site, text, by=site.account).path


def report(watcher: Daemon, mission: Path) -> dict[str, Any]:
    ended = watcher.wait_event(lambda event: event["event"] == "job ended")
    made: dict[str, Any] = json.loads((mission / f"report-Base.py-{ended['job_id']}.json").read_text())
    return made


def test_a_jobs_own_environment_and_fewer_groups_take_effect(
    installation: Installation, site: Site, mission: Path, accounts: Accounts
) -> None:
    _, watcher = start(installation)
    lines = "env: {CASE: '7 ä', PYTHONPATH: /nowhere}\ngroups: [runner-one, ops]\n"
    drop(installation, site, mission, lines)
    made = report(watcher, mission)
    environment = made["environment"]
    assert {name: environment[name] for name in ("CASE", "PYTHONPATH", "LEVEL", "SITE_VAR", "RUNNER_SITE")} == {
        "CASE": "7 ä",
        "PYTHONPATH": "/nowhere",
        "LEVEL": "3",
        "SITE_VAR": "s",
        "RUNNER_SITE": "one",
    }
    assert site.account
    assert made["gids"] == [site.account.gid] * 3
    assert sorted(made["groups"]) == sorted([site.account.gid, accounts.gid("ops")])


def test_a_request_that_would_change_its_profile_is_set_aside_with_all_reasons(
    installation: Installation, site: Site, mission: Path
) -> None:
    _, watcher = start(installation)
    path = drop(installation, site, mission, "env: {LEVEL: '9', LD_PRELOAD: /x}\ngroups: [ops]\n")
    rejected = watcher.wait_event(lambda event: event["event"] == "request rejected")
    assert rejected["reason"] == (
        "env.LD_PRELOAD: it can make other code run, and application base allows of those: PYTHONPATH; "
        "env.LEVEL: application base sets it to '3'; "
        "groups: the first must be runner-one, the effective group of site one"
    )
    assert not path.exists()
    assert list(mission.glob("report-*")) == []


def test_a_job_waits_while_its_profile_cannot_be_done_and_runs_when_it_has_changed(
    installation: Installation, site: Site, mission: Path
) -> None:
    prelude = "from basestation_runner import tools\ntools.BWRAP = '/nowhere/bwrap'\n"
    installation.write(installation.applications_config, PROFILE % ", mode: sandbox")
    helper = installation.start_helper(command=[str(launcher(installation, prelude))])
    watcher = installation.start_watcher()
    drop(installation, site, mission, "env: {CASE: '7'}\n")
    postponed = watcher.wait_event(lambda event: event["event"] == "job postponed")
    assert postponed["reason"] == "mode sandbox does not work on this host: /nowhere/bwrap is not installed"
    watcher.stop()
    helper.stop()
    _, watcher = start(installation)
    assert report(watcher, mission)["environment"]["CASE"] == "7"
