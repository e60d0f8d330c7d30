"""Steps before and after jobs, real ones: in order, as the site, with no more environment than is theirs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from basestation_runner.sandbox.program import write_launcher
from tests.host.helper_client import Gate, Station, launcher, parent_of
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox.installation import Site
    from tests.host.helper_client import Message

IMPATIENT = """
from basestation_runner.privexec import ending, steps
ending.GRACE_SECONDS = 1
steps.STEP_SECONDS = 1
"""
FOREVER = "while :; do sleep 1000; done"
SAY = '#!/bin/sh\necho "$(basename "$0") $*"\n'
SHOW = """#!/usr/bin/python3
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "env": dict(os.environ), "cwd": os.getcwd(), "uid": os.getresuid(), "gid": os.getresgid(), "groups": os.getgroups(),
    "caps": [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"].strip(),
    "open": [os.readlink(f"/dev/fd/{n}") for n in range(3, 100) if os.path.exists(f"/dev/fd/{n}")],
    "session": os.getsid(0) == os.getpid(),
}))
"""


class Steps:
    """Programs that are root's alone, and the profile that has them run around do.sh."""

    def __init__(self, station: Station) -> None:
        self.station = station
        self.directory = station.installation.make_directory(station.installation.top / "steps")
        self.own = station.installation.make_directory(station.installation.top / "own-steps")
        self._fields: dict[str, Any] = {}
        for name in ("profile-pre", "profile-post", "job-pre", "job-post"):
            self.make(name, SAY)

    def make(self, name: str, text: str) -> Path:
        path = (self.own if name.startswith("job") else self.directory) / name
        self.station.installation.write(path, text)
        path.chmod(0o755)
        return path

    def profile(self, **fields: Any) -> None:  # noqa: ANN401 - as a file has them
        both = {
            "pre_exec": [str(self.directory / "profile-pre"), "a b"],
            "post_exec": [str(self.directory / "profile-post")],
            "job_pre_post_exec": "allow",
            "job_exec_dirs": [str(self.own)],
            "env": {"LEVEL": "3"},
        }
        entry = {"name": "do", "scripts": ["do.py", "do.sh"], **both, **fields}
        entry = {name: value for name, value in entry.items() if value is not None}
        path = self.station.installation.applications_config
        self.station.installation.write(path, json.dumps({"applications": [entry]}))

    @property
    def added(self) -> dict[str, Any]:
        return {
            "pre_exec": [str(self.own / "job-pre")],
            "post_exec": [str(self.own / "job-post")],
            "env": {"CASE": "7"},
        }


@pytest.fixture
def site(station: Station) -> Site:
    return station.add_shell_site("one")


@pytest.fixture
def steps(station: Station) -> Steps:
    made = Steps(station)
    made.profile()
    return made


@pytest.fixture
def gate(station: Station) -> Iterator[Gate]:
    with Gate(station.installation.top / "gate") as gate:
        yield gate


def start(station: Station) -> None:
    station.start(command=[str(launcher(station.installation, IMPATIENT))])


def order(station: Station, site: Site, code: str, additions: dict[str, Any] | None = None) -> Message:
    return station.order(site, station.mission(site), "do.sh", code, additions=additions or {})


def log_of(job: Message) -> str:
    return Path(job["log_file"]).read_text()


def failures(record: Message) -> list[tuple[str, str | None]]:
    return [(step["step"].split()[1] + " " + step["step"].split()[2], step["failed"]) for step in record["steps"]]


def test_steps_run_from_the_outside_in_and_out_again(station: Station, site: Site, steps: Steps) -> None:
    station.start()
    job = order(station, site, "echo job $CASE", steps.added)
    record = station.run(job)
    assert log_of(job).splitlines() == ["profile-pre a b", "job-pre ", "job 7", "job-post ", "profile-post "]
    assert record["exit_code"] == 0
    assert [step["exit_code"] for step in record["steps"]] == [0, 0, 0, 0]
    assert [step["failed"] for step in record["steps"]] == [None] * 4


def test_a_step_is_the_site_as_its_job_is_and_has_only_its_own_environment(
    station: Station, site: Site, steps: Steps
) -> None:
    for name in ("profile-pre", "profile-post", "job-pre", "job-post"):
        steps.make(name, SHOW)
    station.start()
    job = order(station, site, "/usr/bin/python3 - < /dev/null; true", steps.added)
    station.run(job)
    shown = [json.loads(line) for line in log_of(job).splitlines()]
    assert site.account
    groups = {site.account.gid, *(g for g in shown[0]["groups"])}
    for one in shown:
        assert one["uid"] == [site.account.uid] * 3
        assert one["gid"] == [site.account.gid] * 3
        assert set(one["groups"]) == groups
        assert one["caps"] == ["0000000000000000"] * 4
        assert (one["no_new_privs"], one["session"]) == ("1", True)
        assert all(path.startswith((f"{steps.directory}/", f"{steps.own}/")) for path in one["open"]), one["open"]
        assert one["cwd"] == job["mission_dir"]
        assert (one["env"]["LEVEL"], one["env"]["RUNNER_JOB_ID"]) == ("3", job["job_id"])
    assert [one["env"].get("CASE") for one in shown] == [None, "7", "7", None]


def test_a_job_whose_profiles_first_step_fails_is_not_run_and_the_last_one_runs_all_the_same(
    station: Station, site: Site, steps: Steps
) -> None:
    path = steps.make("profile-pre", "#!/bin/sh\necho no licence; exit 3\n")
    station.start()
    job = order(station, site, "echo job", steps.added)
    record = station.run(job)
    assert (record["exit_code"], record["signal"]) == (None, None)
    assert record["not_run"] == f"the application's pre_exec {path} ended with exit code 3"
    assert [step["exit_code"] for step in record["steps"]] == [3, 0]
    lines = log_of(job).splitlines()
    assert (lines[0], lines[2]) == ("no licence", "profile-post ")
    assert lines[1].endswith(f"ERROR: runner: do.sh (job_id={job['job_id']}) was not started: {record['not_run']}")


def test_a_job_whose_own_first_step_fails_is_not_run_either(station: Station, site: Site, steps: Steps) -> None:
    steps.make("job-pre", "#!/bin/sh\nkill -9 $$\n")
    station.start()
    job = order(station, site, "echo job", steps.added)
    record = station.run(job)
    assert record["not_run"] == f"the job's pre_exec {steps.own}/job-pre was ended by signal 9"
    assert "job-post" not in log_of(job)
    assert log_of(job).splitlines()[-1] == "profile-post "


def test_what_keeps_a_job_from_running_is_found_before_any_step_runs(
    station: Station, site: Site, steps: Steps
) -> None:
    station.start()
    job = order(station, site, "echo job", steps.added) | {"home": "/nowhere"}
    assert station.refusal(job)
    assert "profile" not in log_of(job)
    assert station.inquire(job["job_id"])["event"] == "never_started"


def test_a_failed_last_step_is_recorded_and_leaves_the_jobs_own_end_alone(
    station: Station, site: Site, steps: Steps
) -> None:
    path = steps.make("profile-post", "#!/bin/sh\nexit 9\n")
    station.start()
    job = order(station, site, "exit 4")
    record = station.run(job)
    assert record["exit_code"] == 4
    assert record["steps"][-1]["failed"] == "ended with exit code 9"
    said = f"ERROR: runner: do.sh (job_id={job['job_id']}): the application's post_exec {path} ended with exit code 9"
    assert log_of(job).splitlines()[-1].endswith(said)
    (warned,) = station.warnings("step ended")
    assert (warned["job_id"], warned["exit_code"]) == (job["job_id"], 9)


def test_the_last_step_runs_although_the_job_has_removed_where_it_ran(
    station: Station, site: Site, steps: Steps
) -> None:
    steps.make("profile-post", "#!/bin/sh\npwd\n")
    station.start()
    job = order(station, site, 'rm -rf "$PWD"/../mission*')
    record = station.run(job)
    assert record["log_tail"].splitlines()[-1] == "/"


def test_after_a_job_that_ran_too_long_the_profiles_last_step_runs(station: Station, site: Site, steps: Steps) -> None:
    start(station)
    job = order(station, site, f"echo job; {FOREVER}", {**steps.added, "limits": {"runtime": "1s"}})
    record = station.run(job)
    assert record["limit"] == "runtime"
    assert log_of(job).splitlines()[-2:] == ["job-post ", "profile-post "]


def test_a_step_that_does_not_end_is_ended_and_the_job_is_not_run(station: Station, site: Site, steps: Steps) -> None:
    path = steps.make("profile-pre", f"#!/bin/sh\ntrap '' TERM\n{FOREVER}\n")
    start(station)
    job = order(station, site, "echo job")
    record = station.run(job)
    assert record["not_run"].startswith(f"the application's pre_exec {path} was stopped: it ran longer than")
    assert log_of(job).splitlines()[-1] == "profile-post "


HANGS: Final = """
from basestation_runner.privexec.child import Child
from basestation_runner.privexec.job import StepPlan
opens = Child.open
def open(self, plan):
    if isinstance(plan, StepPlan):
        self.ending._signal(signal.SIGSTOP)  # as whoever has the site's account can do
    return opens(self, plan)
Child.open = open
"""


@pytest.mark.usefixtures("steps")
def test_a_step_that_hangs_before_its_program_runs_is_ended_too(station: Station, site: Site) -> None:
    prelude = f"import signal\n{IMPATIENT}ending.START_SECONDS = 1\n{HANGS}"
    station.start(command=[str(launcher(station.installation, prelude))])
    record = station.run(order(station, site, "echo job"))
    assert "could not be started within" in record["not_run"]
    assert ["could not be started within" in step["failed"] for step in record["steps"]] == [True, True]


def test_a_job_that_is_cancelled_during_a_step_does_not_run_and_the_last_step_does(
    station: Station, site: Site, steps: Steps
) -> None:
    steps.make("profile-pre", f"#!/bin/sh\necho ready\n{FOREVER}\n")
    station.start()
    job = order(station, site, "echo job", steps.added)
    station.dispatch(job)
    until(lambda: Path(job["log_file"]).exists() and "ready" in log_of(job), "the step to run")
    station.client.send({"request": "cancel", "job_ids": [job["job_id"]]})
    record = station.client.event(job["job_id"], "ended")["record"]
    assert (record["cancelled"], record["not_run"]) == (True, "it was cancelled before it ran")
    lines = log_of(job).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("ready", "profile-post ", 3)


CANCELLED: Final = """
from basestation_runner.privexec.claims import Claims
Claims.is_cancelled = lambda *_: True
"""
SEEN_LATE: Final = """
from basestation_runner.privexec.ending import Ending
Ending._is_wanted = lambda *_: False
"""


@pytest.mark.usefixtures("steps")
def test_of_a_job_that_is_cancelled_while_its_child_is_on_its_way_nothing_runs(station: Station, site: Site) -> None:
    prelude = f"import signal\n{CANCELLED}{HANGS.replace('StepPlan', 'JobPlan')}"  # it is killed before it can answer
    station.start(command=[str(launcher(station.installation, prelude))])
    job = order(station, site, "echo job")
    event = station.outcome(job)
    assert (event["event"], event.get("reason")) == ("temporary", "it was cancelled while it was being started"), event
    assert not Path(job["log_file"]).exists() or log_of(job) == ""


@pytest.mark.usefixtures("steps")
def test_of_a_job_that_is_cancelled_when_its_child_waits_for_the_first_step_nothing_runs(
    station: Station, site: Site
) -> None:
    station.start(command=[str(launcher(station.installation, CANCELLED + SEEN_LATE))])
    job = order(station, site, "echo job")
    record = station.run(job)
    assert (record["cancelled"], record["not_run"]) == (True, "it was cancelled before it ran")
    assert record["steps"] == []
    (line,) = log_of(job).splitlines()
    assert line.endswith(f"was not started: {record['not_run']}")


def test_a_job_that_is_cancelled_while_it_runs_has_its_profiles_last_step_only(
    station: Station, site: Site, steps: Steps
) -> None:
    station.start()
    job = order(station, site, f"echo ready; {FOREVER}", steps.added)
    station.start_job(job)
    until(lambda: "ready" in log_of(job), "the job to run")
    station.client.send({"request": "cancel", "job_ids": [job["job_id"]]})
    record = station.client.event(job["job_id"], "ended")["record"]
    assert record["cancelled"] is True
    assert log_of(job).splitlines()[-2:] == ["ready", "profile-post "]


@pytest.mark.parametrize("when", ["before", "after"])
def test_steps_go_on_although_their_helper_was_killed_meanwhile(
    station: Station, site: Site, steps: Steps, gate: Gate, when: str
) -> None:
    waits = f"#!/bin/sh\necho waits\n{gate.in_shell}\nexit 5\n"
    steps.make("profile-pre" if when == "before" else "job-post", waits)
    station.start()
    job = order(station, site, "echo job", steps.added)
    station.dispatch(job)
    until(lambda: Path(job["log_file"]).exists() and "waits" in log_of(job), "the step to run")
    station.daemon.kill()
    station.start()
    assert station.inquire(job["job_id"])["event"] == "started"
    gate.open()
    record = station.client.event(job["job_id"], "ended")["record"]
    assert log_of(job).splitlines()[-1] == "profile-post "
    if when == "before":
        assert "ended with exit code 5" in record["not_run"]
    else:
        assert (record["exit_code"], record["steps"][-2]["exit_code"]) == (0, 5)


def test_steps_go_on_although_the_whole_program_was_removed_meanwhile(
    station: Station, site: Site, steps: Steps, gate: Gate
) -> None:
    """As `runner uninstall` does: it ends the daemons, and lets jobs go on."""
    program = station.installation.program
    folder = station.installation.top / "program"
    lib = shutil.copytree(Path(program.command[0]).with_name("lib"), folder / "lib")
    station.start(command=[str(write_launcher(folder / "runner", program.python, lib))])
    job = order(station, site, f"echo waits; {gate.in_shell}; exit 5", steps.added)
    station.start_job(job)
    until(lambda: "waits" in log_of(job), "the job to run")
    station.daemon.stop()
    shutil.rmtree(folder)
    gate.open()
    record = station.installation.helper_state / "exits" / job["job_id"]
    until(record.exists, "the job's record")
    assert log_of(job).splitlines()[-2:] == ["job-post ", "profile-post "]
    station.start()
    assert station.inquire(job["job_id"])["record"]["exit_code"] == 5


def test_a_job_whose_keeper_is_killed_during_a_step_is_lost_only_when_that_has_ended(
    station: Station, site: Site, steps: Steps, gate: Gate
) -> None:
    steps.make("profile-pre", f"#!/bin/sh\necho $$ > pid\necho waits\n{gate.in_shell}\n")
    station.start()
    job = order(station, site, "echo job")
    station.dispatch(job)
    until(lambda: Path(job["log_file"]).exists() and "waits" in log_of(job), "the step to run")
    pid = int((Path(job["mission_dir"]) / "pid").read_text())
    claim = json.loads((station.installation.helper_state / "claims" / job["job_id"]).read_text())
    assert (claim["child"]["pid"], claim["keeper"]["pid"]) == (pid, parent_of(pid))
    os.kill(parent_of(pid), 9)
    station.daemon.wait_event(lambda line: line["event"] == "job without a keeper")
    gate.open()
    assert station.client.event(job["job_id"], "lost")
    assert "job" not in log_of(job).replace("profile", "")


def test_a_profiles_step_that_others_could_change_is_not_run(station: Station, site: Site, steps: Steps) -> None:
    (steps.directory / "profile-pre").chmod(0o757)
    station.start()
    record = station.run(order(station, site, "echo job"))
    assert "others than root could change" in record["not_run"]


def test_what_a_step_leaves_behind_lives_as_long_as_its_job_may(station: Station, site: Site, steps: Steps) -> None:
    steps.make("profile-pre", f"#!/bin/sh\n({FOREVER}) &\n")
    steps.profile(leftovers="kill")
    station.start()
    job = order(station, site, "echo job")
    record = station.run(job)
    assert record["exit_code"] == 0
    leaf = station.installation.cgroup_root / "site-one" / f"job-{job['job_id']}"
    assert (leaf / "cgroup.kill").read_text() == "1"
