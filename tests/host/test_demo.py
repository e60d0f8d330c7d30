"""`runner demo` as a user runs it, as root and as an ordinary account."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import basestation_runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from basestation_runner.sandbox import Installation

DEMO = [sys.executable, "-m", "basestation_runner", "demo"]


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.usefixtures("privileged")
def test_root_sees_every_job_run_as_its_sites_account_without_a_capability() -> None:
    done = run([*DEMO, "--json"])
    assert done.stderr == ""
    jobs: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
    assert [(job["site"], job["script"], job["account"]) for job in jobs] == [
        ("seaglider", "GliderEarlyGPS.py", "runner-seaglider"),
        ("seaglider", "Base.py", "runner-seaglider"),
        ("test", "BaseLogin.py", "runner-test"),
        ("ioptest", "Base.py", "runner-ioptest"),
    ]
    for job in jobs:
        assert job["uid"] > 1_000
        assert job["egid"] in job["groups"]
        assert job["caps"] == {"CapInh": "0", "CapPrm": "0", "CapEff": "0", "CapAmb": "0"}
        assert job["exit_code"] == 0
        assert 0 < job["ms"] < 10_000
        assert job["faults"] == []
    assert len(jobs[-1]["groups"]) == 2
    assert jobs[-1]["egid"] != jobs[-1]["uid"]  # not its primary group, which has the account's number


@pytest.mark.usefixtures("privileged")
def test_a_clone_that_only_an_ordinary_account_can_read_will_do(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(Path(basestation_runner.__file__).parent, clone / "basestation_runner")
    for path in (*clone.rglob("*"), clone):
        os.chown(path, 4_000_000_000, 4_000_000_000)
        path.chmod(0o700 if path.is_dir() else 0o600)
    code = f"""
import sys
sys.path.insert(0, {str(clone)!r})
import basestation_runner
from basestation_runner.cli import main
assert basestation_runner.__file__.startswith({str(clone)!r})
sys.exit(main(["demo", "--json"]))
"""
    done = subprocess.run([sys.executable, "-c", code], umask=0o077, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("privileged")
def test_it_works_below_a_program_that_uses_posix_spawn() -> None:
    # As make does: the C library leaves two signals of its own ignored in what is spawned, and in all below it.
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(sys.executable, [*DEMO, "--json"], os.environ, file_actions=quiet)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.usefixtures("privileged")
def test_the_table_has_a_line_for_each_job() -> None:
    lines = run(DEMO).stdout.splitlines()
    heading = next(number for number, line in enumerate(lines) if line.startswith("SITE "))
    rows = [line.split() for line in lines[heading + 1 : heading + 5]]
    assert [row[0] for row in rows] == ["seaglider", "seaglider", "test", "ioptest"]
    assert all(row[6:8] == ["0", "0"] and row[9:] == ["as", "it", "should"] for row in rows)


@pytest.mark.usefixtures("privileged")
def test_what_is_kept_has_config_logs_ledger_and_trees(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    run([*DEMO, "--json", "--keep", str(kept)])
    assert "seaglider:" in (kept / "config/sites.yaml").read_text()
    assert (kept / "log/helper-1.log").stat().st_size
    assert (kept / "log/watcher-1.log").stat().st_size
    assert (kept / "state/watcher/ledger.db").stat().st_size
    assert "Base.py: uid" in (kept / "home/seaglider/home/sg123/mission1/baselog.log").read_text()
    assert list((kept / "srv/ioptest/rundir/archive").iterdir())
    assert "runner-ioptest:ioptest" in (kept / "owners.txt").read_text()


def test_a_directory_with_something_in_it_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = subprocess.run([*DEMO, "--keep", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is something there already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.usefixtures("privileged")
def test_a_job_that_is_not_what_it_should_be_makes_the_demo_fail() -> None:
    done = run_sabotaged("""
right = scenario.Identity
scenario.Identity = lambda uid, gid, groups: right(uid + 1, gid, groups)
""")
    assert done.returncode == 1
    assert done.stdout.count("its uids are") == 4
    assert done.stderr.count("its uids are") == 4


@pytest.mark.usefixtures("privileged")
def test_a_daemon_that_does_not_start_makes_the_demo_fail_and_show_why() -> None:
    done = run_sabotaged("""
right = scenario.with_accounts
scenario.with_accounts = lambda installation: (right(installation), installation.sites_config.write_text("nonsense"))[0]
""")
    assert done.returncode == 1
    assert "helper-1 ended with status 1" in done.stderr
    assert "sites.yaml:1" in done.stderr


def run_sabotaged(sabotage: str) -> subprocess.CompletedProcess[str]:
    code = f"""
import sys
from basestation_runner.cli import main
from basestation_runner.demo import scenario
{sabotage}
sys.exit(main(["demo"]))
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def sandboxes_of(pid: int) -> set[str]:
    return set(re.findall(r"/run/runner-\w+", Path(f"/proc/{pid}/mountinfo").read_text()))


@pytest.mark.usefixtures("privileged")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_neither_process_nor_directory(ending: signal.Signals) -> None:
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout
        ready = next(line for line in demo.stdout if line.startswith("The helper"))
        daemons = [os.pidfd_open(int(word.strip("(),"))) for word in ready.split() if word.strip("(),").isdigit()]
        (directory,) = sandboxes_of(demo.pid) - sandboxes_of(os.getpid())
        assert Path(directory).exists()
        demo.send_signal(ending)
        demo.stdout.read()
        assert demo.wait() == 130
    assert len(daemons) == 2
    assert len(select.select(daemons, [], [], 0)[0]) == 2
    for pidfd in daemons:
        os.close(pidfd)
    assert not Path(directory).exists()


def test_without_root_own_sites_run_and_others_are_refused_in_plain_words(installation: Installation) -> None:
    # As an account of the sandbox, whoever runs the tests; its own program, since the account may not reach ours.
    account = installation.accounts.add_user("ordinary")
    output = installation.run_as(account, [*installation.program.command, "demo", "--json"])
    jobs: list[dict[str, Any]] = json.loads(output)["jobs"]
    own = [job for job in jobs if job["site"] != "other"]
    assert len(own) == 4
    for job in own:
        assert (job["account"], job["uid"], job["egid"], job["groups"]) == (
            "ordinary",
            account.uid,
            account.gid,
            [account.gid],
        )
        assert (job["exit_code"], job["faults"]) == (0, [])
    (other,) = (job for job in jobs if job["site"] == "other")
    assert other["uid"] is None
    assert other["exit_code"] is None
    assert other["reason"]
    assert other["faults"] == []
