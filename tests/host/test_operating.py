"""The operators' commands under real accounts: who may see and do what, and that it is done as whoever asks."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.sandbox import HELPER, WATCHER
from basestation_runner.sandbox.process import Identity
from tests.patience import until

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon

DO = """\
import sys
exec(sys.argv[1].replace("~", " "))
"""


class Desk:
    """Runs commands as any account, in any directory."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation

    def run(
        self, account: Account | None, command: str, *words: str, cwd: Path | str = "/"
    ) -> subprocess.CompletedProcess[str]:
        socket = str(self.installation.control_socket)
        return subprocess.run(
            [
                *Identity(account).prefix(),
                *self.installation.program.command,
                command,
                "--control-socket",
                socket,
                *words,
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
        )

    def json(self, account: Account | None, command: str, *words: str, cwd: Path | str = "/") -> Any:  # noqa: ANN401 - JSON
        done = self.run(account, command, "--json", *words, cwd=cwd)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)


@pytest.fixture
def desk(installation: Installation) -> Desk:
    installation.write(installation.applications_config, "applications:\n  - name: do\n    scripts: [do.py]\n")
    installation.write(installation.scripts / "do.py", DO)
    return Desk(installation)


@pytest.fixture
def alpha(installation: Installation, desk: Desk) -> Site:  # noqa: ARG001 - the applications come first
    site = installation.add_site("alpha", "home", layout="wide", applications="all")
    installation.add_glider(site, "sg090", "m")
    return site


@pytest.fixture
def beta(installation: Installation, desk: Desk) -> Site:  # noqa: ARG001 - the applications come first
    site = installation.add_site("beta", "jail", layout="jailed", applications="all")
    installation.add_glider(site, "sg123", "m")
    return site


@pytest.fixture
def daemons(installation: Installation, alpha: Site, beta: Site) -> tuple[Daemon, Daemon]:  # noqa: ARG001 - the sites come first
    return installation.start_helper(), installation.start_watcher()


@pytest.fixture
def glider(installation: Installation, alpha: Site) -> Account | None:  # noqa: ARG001 - it makes the account
    return installation.account("sg090")


# Who may see and do what


@pytest.mark.usefixtures("daemons")
def test_operators_see_everything_and_a_sites_people_their_own_site(
    desk: Desk, installation: Installation, alpha: Site, beta: Site
) -> None:
    operator = installation.accounts.add_user("operator", groups=[WATCHER])
    for account, seen in (
        (None, ["alpha", "beta"]),
        (operator, ["alpha", "beta"]),
        (installation.account(WATCHER), ["alpha", "beta"]),
        (installation.account(HELPER), ["alpha", "beta"]),
        (alpha.account, ["alpha"]),
        (installation.account("sg090"), ["alpha"]),
        (beta.account, ["beta"]),
        (installation.account("sg123"), ["beta"]),
    ):
        assert [site["site"] for site in desk.json(account, "status")["sites"]] == seen


@pytest.mark.usefixtures("daemons")
def test_anybody_else_is_refused_in_one_line(desk: Desk, installation: Installation) -> None:
    stranger = installation.accounts.add_user("stranger")
    for command in ("status", "jobs"):
        done = desk.run(stranger, command)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == ("runner: account stranger is a member of no site's group and not of the watcher's\n")


@pytest.mark.usefixtures("daemons")
def test_a_sites_people_can_neither_see_nor_touch_another_sites_jobs(
    desk: Desk, installation: Installation, alpha: Site, beta: Site, glider: Account
) -> None:
    theirs = desk.json(
        installation.account("sg123"),
        "submit",
        "--wait",
        "--mission-dir",
        str(beta.homes / "sg123/m"),
        "beta",
        "do.py",
        "1",
    )["job"]["id"]
    assert [job["id"] for job in desk.json(None, "jobs")] == [theirs]
    assert desk.json(glider, "jobs") == []
    assert desk.json(glider, "jobs", "--site", "beta") == []
    unknown = "runner: there is no such job, or it is not of a site of yours\n"
    for command in ("show", "logs", "rerun"):
        done = desk.run(glider, command, theirs)
        assert (done.returncode, done.stderr) == (1, unknown)
    assert desk.run(glider, "cancel", theirs).stdout == f"{theirs}: {unknown.removeprefix('runner: ')}"
    done = desk.run(glider, "submit", "--mission-dir", str(alpha.homes / "sg090/m"), "beta", "do.py", "1")
    assert (done.returncode, done.stderr) == (1, "runner: there is no such site, or it is not yours\n")


@pytest.mark.usefixtures("daemons")
def test_only_operators_hold_release_and_drain(desk: Desk, glider: Account) -> None:
    for words in (["hold", "alpha"], ["release", "alpha"], ["hold", "--all"], ["drain", "alpha"]):
        done = desk.run(glider, *words)
        assert done.returncode == 1
        assert done.stderr == "runner: only root and members of the watcher's group may do that\n"


# Submitting


@pytest.mark.usefixtures("daemons")
def test_a_member_submits_a_job_and_gets_its_exit_code(desk: Desk, alpha: Site, glider: Account) -> None:
    mission = alpha.homes / "sg090/m"
    done = desk.run(glider, "submit", "--wait", "alpha", "do.py", "sys.exit(7)", cwd=mission)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    (job,) = desk.json(glider, "jobs")
    assert (job["submitter"], job["submitter_name"]) == (glider.uid, "sg090")
    assert (job["home"], job["mission_dir"]) == (str(mission.parent), str(mission))
    shown = desk.json(glider, "show", job["id"][:12])
    assert (shown["log_file"], shown["args"]) == (str(mission / "do.log"), ["sys.exit(7)"])
    assert (
        desk.run(
            glider, "submit", "--wait", "alpha", "do.py", "os=__import__('os');os.kill(os.getpid(),9)", cwd=mission
        ).returncode
        == 137
    )


@pytest.mark.usefixtures("daemons")
def test_a_jailed_sites_paths_may_be_the_hosts_or_the_jails(desk: Desk, installation: Installation, beta: Site) -> None:
    diver = installation.account("sg123")
    mission = beta.homes / "sg123/m"
    for words, cwd in (
        (["--mission-dir", str(mission)], "/"),
        (["--mission-dir", "/home/sg123/m", "--home", "/home/sg123", "--log", "/home/sg123/m/do.log"], "/"),
        ([], mission),
    ):
        job = desk.json(diver, "submit", "--wait", *words, "beta", "do.py", "print(1)", cwd=cwd)["job"]
        assert (job["state"], job["home"], job["mission_dir"]) == ("succeeded", "/home/sg123", "/home/sg123/m")
    assert (mission / "do.log").read_text() == "1\n" * 3
    assert desk.run(diver, "logs", job["id"]).stdout == "1\n" * 3


@pytest.mark.usefixtures("daemons")
def test_what_cannot_be_submitted_is_one_line(
    desk: Desk, installation: Installation, alpha: Site, glider: Account
) -> None:
    mission = str(alpha.homes / "sg090/m")
    options = ["--mission-dir", mission]
    for words, line in (
        (["alpha", "do.py"], "/ is not in the tree of site alpha (name --mission-dir)"),
        (
            [*options, "alpha", "other.py"],
            "site alpha runs no other.py (its scripts: Base.py, BaseLogin.py, GliderEarlyGPS.py, do.py)",
        ),
        (
            [*options, "alpha", "do.py", "a b"],
            "this is no request: 'a b' is empty or contains white space, which a request cannot say",
        ),
        ([*options, "omega", "do.py"], "there is no such site, or it is not yours"),
    ):
        done = desk.run(glider, "submit", *words)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"runner: {line}\n")
    operator = installation.accounts.add_user("operator", groups=[WATCHER])
    done = desk.run(operator, "submit", *options, "alpha", "do.py")
    assert done.returncode == 1
    assert done.stderr == f"runner: {alpha.watch_dir}: the request cannot be written: Permission denied\n"
    assert desk.json(None, "jobs") == []


def test_a_request_goes_nowhere_but_into_the_directory_that_is_watched(
    desk: Desk, installation: Installation, alpha: Site, beta: Site, daemons: tuple[Daemon, Daemon]
) -> None:
    """The rundir's path may lead to another site's by the time that root submits something."""
    _, watcher = daemons
    desk.json(None, "hold", "--all")
    moved = alpha.watch_dir.with_name("moved")
    script = (
        "import os, sys\n"
        f"os.rename({str(alpha.watch_dir)!r}, {str(moved)!r})\n"
        f"os.symlink({str(beta.watch_dir)!r}, {str(alpha.watch_dir)!r})\n"
    )
    alpha.homes.chmod(0o777)
    installation.run_as(alpha.account, [installation.program.python, "-IS", "-c", script])
    done = desk.run(None, "submit", "--mission-dir", str(alpha.homes / "sg090/m"), "alpha", "do.py")
    assert done.returncode == 75
    assert done.stderr.startswith("runner: ")
    assert not list(beta.watch_dir.glob("*"))[1:]  # its lock file alone
    assert watcher.returncode is None


@pytest.mark.usefixtures("daemons")
def test_a_request_that_would_be_too_large_is_not_written(desk: Desk, alpha: Site, glider: Account) -> None:
    done = desk.run(None, "submit", "--mission-dir", str(alpha.homes / "sg090/m"), "alpha", "do.py", "x" * 70000)
    assert (done.returncode, done.stderr) == (1, "runner: this is no request: it is larger than 64 KiB\n")
    assert desk.json(glider, "jobs") == []


# Running jobs


@pytest.mark.usefixtures("daemons")
def test_a_members_running_job_is_followed_and_cancelled(desk: Desk, alpha: Site, glider: Account) -> None:
    mission = alpha.homes / "sg090/m"
    code = "import~os;print('begun',flush=True);os.read(os.open('gate',os.O_RDONLY),1)"
    gate = mission / "gate"
    os.mkfifo(gate)
    gate.chmod(0o666)
    job = desk.json(glider, "submit", "alpha", "do.py", code, cwd=mission)["job"]["id"]
    until(lambda: desk.json(glider, "show", job)["state"] == "running")
    until(lambda: desk.run(glider, "logs", job).stdout == "begun\n")
    assert desk.json(glider, "cancel", job)[0]["outcome"] == "asked"
    followed = desk.run(glider, "logs", "-f", job)
    assert (followed.returncode, followed.stdout) == (0, "begun\n")
    shown = desk.json(glider, "show", job)
    assert (shown["state"], shown["signal"], shown["cancelled_by_name"]) == ("cancelled", 15, "sg090")


def test_a_cancellation_is_carried_out_when_the_helper_is_back(
    desk: Desk, installation: Installation, alpha: Site, glider: Account, daemons: tuple[Daemon, Daemon]
) -> None:
    helper, _ = daemons
    mission = alpha.homes / "sg090/m"
    job = desk.json(glider, "submit", "alpha", "do.py", "__import__('signal').pause()", cwd=mission)["job"]["id"]
    until(lambda: desk.json(glider, "show", job)["state"] == "running")
    helper.kill()
    until(lambda: not desk.json(None, "status")["helper"]["reachable"])
    assert desk.json(glider, "cancel", job)[0]["outcome"] == "asked"
    assert desk.json(glider, "show", job)["state"] == "running"
    installation.start_helper()
    until(lambda: desk.json(glider, "show", job)["state"] == "cancelled")


@pytest.mark.usefixtures("daemons")
def test_a_log_is_opened_as_whoever_asks_and_leads_nowhere_else(
    desk: Desk, installation: Installation, alpha: Site, glider: Account
) -> None:
    mission = alpha.homes / "sg090/m"
    job = desk.json(glider, "submit", "--wait", "alpha", "do.py", "print(1)", cwd=mission)["job"]["id"]
    log = mission / "do.log"
    log.chmod(0o600)
    done = desk.run(glider, "logs", job)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"runner: {log}: the log cannot be read: Permission denied\n"
    secret = installation.top / "secret"
    secret.write_text("secret\n")
    log.unlink()
    log.symlink_to(secret)
    done = desk.run(None, "logs", job)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"runner: {log}: the log cannot be read: it is outside the site's tree\n"


def test_both_daemons_say_whether_they_have_read_the_same(
    desk: Desk, installation: Installation, alpha: Site, daemons: tuple[Daemon, Daemon]
) -> None:
    helper, _ = daemons
    assert desk.json(None, "status")["helper"]["same_config"] is True
    assert desk.run(None, "status", "--check").returncode == 0
    helper.stop()
    installation.write_config({alpha.name: {"tasks_max": 77}})
    installation.start_helper()
    until(lambda: desk.json(None, "status")["helper"]["reachable"])
    done = desk.run(None, "status", "--check")
    assert (done.returncode, done.stdout) == (
        1, "watcher and helper have read different configurations: restart both\n",
    )  # fmt: skip
