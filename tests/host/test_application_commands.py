"""Profiles from an operator's place: jobs that add to them, what they were started with, and moves between them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.sandbox import WATCHER
from tests.host.test_operating import DO, Desk
from tests.patience import until

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site

LIMITS = {"runtime": "1h"}


@pytest.fixture
def desk(installation: Installation) -> Desk:
    installation.write(installation.scripts / "do.py", DO)
    return Desk(installation)


@pytest.fixture
def site(installation: Installation, desk: Desk) -> Site:
    profile(desk, name="do")
    site = installation.add_site("alpha", "home", layout="wide", applications="all", env={"SITE_VAR": "s"})
    installation.add_glider(site, "sg090", "m")
    return site


@pytest.fixture
def operator(installation: Installation) -> Account:
    return installation.accounts.add_user("operator", groups=[WATCHER])


def profile(desk: Desk, **fields: Any) -> None:  # noqa: ANN401 - as a file has them
    entry = {"scripts": ["do.py"], "env": {"LEVEL": "3"}, "limits": LIMITS, **fields}
    desk.installation.write(desk.installation.applications_config, json.dumps({"applications": [entry]}))


def start(desk: Desk) -> None:
    for daemon in desk.installation.daemons:
        daemon.stop()
    desk.installation.start_helper()
    desk.installation.start_watcher()


def mission(site: Site) -> Path:
    return site.homes / "sg090" / "m"


def test_a_dry_run_tells_every_value_with_its_origin_and_runs_nothing(desk: Desk, site: Site) -> None:
    start(desk)
    words = ("--application", "do", "--env", "CASE=7", "--limit", "runtime=10m", "--dry-run", "alpha", "do.py", "x")
    done = desk.run(None, "submit", *words, cwd=mission(site))
    assert (done.returncode, done.stderr) == (0, "")
    title, *lines = done.stdout.splitlines()
    assert title == "alpha would run do.py with application do:"
    shown = dict(line.strip().split("  ", 1) for line in lines)
    assert shown["env"].strip() == "CASE=7 (job), LEVEL=3 (profile), SITE_VAR=s (site)"
    assert shown["limits"].strip() == "runtime=10m (job)"
    told = desk.json(None, "submit", *words, cwd=mission(site))
    assert told["effective"]["limits"] == {"runtime": {"value": "10m", "from": "job"}}
    assert desk.json(None, "jobs") == []
    assert list(site.watch_dir.glob("*.run")) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--env", "LEVEL=4"), "env.LEVEL: application do sets it to '3'"),
        (("--limit", "runtime=2h"), "limits.runtime: 2h is above the 1h of application do"),
        (("--application", "base"), "application base does not run do.py: that is for application do"),
        (("--tasks", "2"), "tasks: application do runs with 1"),
        (("--limit", "runtime=2"), "limits.runtime"),
        (("--application", "a b"), "application: "),
    ],
)
def test_what_the_profile_does_not_allow_is_told_before_anything_is_written(
    desk: Desk, site: Site, words: tuple[str, ...], reason: str
) -> None:
    start(desk)
    done = desk.run(None, "submit", *words, "--dry-run", "alpha", "do.py", "x", cwd=mission(site))
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_a_job_was_started_with_is_kept_whatever_becomes_of_its_profile(desk: Desk, site: Site) -> None:
    start(desk)
    code = "import~os;print(os.environ['CASE'])"
    words = ("--wait", "--env", "CASE=7", "alpha", "do.py", code)
    job = desk.json(None, "submit", *words, cwd=mission(site))["job"]
    assert (job["exit_code"], job["record"]["log_tail"]) == (0, "7\n")
    kept = job["dispatch"]
    assert site.account
    assert (kept["account"], kept["uid"], kept["groups"][0]) == (
        site.account.name,
        site.account.uid,
        site.account.gid,
    )
    assert kept["argv"][-1] == code
    assert {"CASE", "LEVEL", "SITE_VAR", "PATH", "RUNNER_JOB_ID"} <= set(kept["env"])
    assert kept["effective"]["env"]["CASE"] == {"value": "7", "from": "job"}
    assert kept["effective"]["limits"]["runtime"] == {"value": "1h", "from": "profile"}
    assert job["profile_changed"] is False
    shown = desk.run(None, "show", job["id"]).stdout
    assert "It was started with:" in shown
    assert "profile changed" not in shown
    profile(desk, name="do", limits={"runtime": "2h"})
    start(desk)
    changed = desk.json(None, "show", job["id"])
    assert (changed["profile_changed"], changed["dispatch"]) == (True, kept)
    assert "; profile changed since dispatch" in desk.run(None, "show", job["id"]).stdout


def test_a_job_that_waits_can_be_moved_to_the_profile_that_runs_its_script_now(
    desk: Desk, site: Site, operator: Account
) -> None:
    start(desk)
    assert desk.run(None, "hold", "alpha").returncode == 0
    job_id = desk.run(None, "submit", "--env", "CASE=7", "alpha", "do.py", "print(1)", cwd=mission(site)).stdout.strip()
    profile(desk, name="other")
    start(desk)
    assert desk.run(None, "release", "alpha").returncode == 0
    until(lambda: "do is not defined" in str(desk.json(None, "show", job_id)["reason"]), "the job to wait")
    refused = desk.run(operator, "modify", job_id, "--application", "base")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "application base does not run do.py: that is for application other" in refused.stderr
    moved = desk.run(operator, "modify", job_id[:8], "--application", "other")
    assert (moved.returncode, moved.stdout) == (0, f"{job_id} waits to be run with application other\n")
    until(lambda: desk.json(None, "show", job_id)["state"] == "succeeded", "the job to end")
    shown = desk.json(None, "show", job_id)
    assert (shown["application"], shown["dispatch"]["effective"]["env"]["CASE"]["value"]) == ("other", "7")
    late = desk.run(operator, "modify", job_id, "--application", "other")
    assert (late.returncode, late.stderr) == (1, f"runner: job {job_id} has ended\n")


def test_a_move_is_durable_and_nobody_elses_to_make(desk: Desk, site: Site, installation: Installation) -> None:
    start(desk)
    assert desk.run(None, "hold", "alpha").returncode == 0
    job_id = desk.run(None, "submit", "alpha", "do.py", "print(1)", cwd=mission(site)).stdout.strip()
    profile(desk, name="other")
    start(desk)
    stranger = installation.accounts.add_user("stranger")
    assert desk.run(stranger, "modify", job_id, "--application", "other").returncode == 1
    assert desk.run(None, "modify", job_id, "--application", "other").returncode == 0
    installation.daemons[-1].kill()
    installation.start_watcher()
    assert desk.json(None, "show", job_id)["application"] == "other"
    assert desk.run(None, "release", "alpha").returncode == 0
    until(lambda: desk.json(None, "show", job_id)["state"] == "succeeded", "the job to end")


def test_a_job_that_runs_is_not_moved(desk: Desk, site: Site) -> None:
    start(desk)
    job_id = desk.run(
        None, "submit", "alpha", "do.py", "import~time;time.sleep(1000)", cwd=mission(site)
    ).stdout.strip()
    until(lambda: desk.json(None, "show", job_id)["state"] == "running", "the job to run")
    done = desk.run(None, "modify", job_id, "--application", "do")
    assert (done.returncode, done.stderr) == (
        1,
        f"runner: job {job_id} is running: only one that waits can be moved\n",
    )


def test_a_job_whose_first_step_failed_is_refused_with_the_reason_and_its_steps_are_shown(
    desk: Desk, site: Site
) -> None:
    step = desk.installation.top / "step"
    desk.installation.write(step, "#!/bin/sh\nexit 3\n")
    step.chmod(0o755)
    profile(desk, name="do", pre_exec=[str(step)])
    start(desk)
    done = desk.run(None, "submit", "--wait", "alpha", "do.py", "print(1)", cwd=mission(site))
    assert done.returncode == 1
    reason = f"the application's pre_exec {step} ended with exit code 3"
    assert reason in done.stderr
    (job,) = desk.json(None, "jobs")
    assert (job["state"], job["reason"]) == ("refused", reason)
    shown = desk.run(None, "show", job["id"]).stdout
    assert f"Its steps:\n  {reason} (" in shown
