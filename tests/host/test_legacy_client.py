"""The helper serves an existing BaseRunnerMulti: a client that speaks that watcher's protocol, one exchange a time.

The client is written from the protocol's description: a 4-byte big-endian length, a JSON object, the same back; it
takes "ok": false for final, a connection that is closed without an answer for a reason to try again.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
import uuid
from signal import SIGKILL
from typing import TYPE_CHECKING, Any, Final

import pytest

from basestation_runner.sandbox.installation import WATCHER
from tests.host.helper_client import DEADLINE, Gate, NameService, Station, acting_as, parent_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from basestation_runner.sandbox import Installation, Sandbox
    from basestation_runner.sandbox.installation import Site

Answer = dict[str, Any]

BASE_PY_RUNS: Final = """\
import os, sys
print("directory", os.getcwd())
print("arguments", *sys.argv[1:])
"""


class LegacyClient:
    """An existing watcher, as far as the helper sees it."""

    def __init__(self, installation: Installation) -> None:
        self._path: Final = str(installation.helper_socket)
        self._account: Final = installation.accounts.user(WATCHER)

    def exchange(self, message: dict[str, object]) -> Answer | None:
        """Send a message and return the answer, None if the helper closes without one. It must close in any case."""
        body = json.dumps(message).encode()
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(DEADLINE)
            with acting_as(self._account):
                link.connect(self._path)
            link.sendall(struct.pack(">I", len(body)) + body)
            received = b""
            while data := link.recv(1 << 16):
                received += data
        if not received:
            return None
        (length,) = struct.unpack(">I", received[:4])
        assert len(received) == 4 + length
        return dict(json.loads(received[4:]))

    def dispatch(self, site: str, argv: Sequence[str], log_file: Path | str, **job_id: str) -> Answer | None:
        return self.exchange({"site": site, "argv": list(argv), "log_file": str(log_file), **job_id})

    def start(self, site: str, argv: Sequence[str], log_file: Path | str, **job_id: str) -> int:
        """Dispatch a job that must start, and return its pid."""
        answer = self.dispatch(site, argv, log_file, **job_id)
        assert answer is not None
        assert answer.keys() == {"ok", "pid"}, answer
        assert answer["ok"] is True
        assert type(answer["pid"]) is int
        return answer["pid"]

    def status(self, pid: int) -> Answer | None:
        return self.exchange({"query": "status", "pid": pid})

    def returncode(self, pid: int) -> int:
        """Poll until the job is done."""
        deadline = time.monotonic() + DEADLINE
        while (answer := self.status(pid)) == RUNNING:
            assert time.monotonic() < deadline, "the job does not end"
        assert answer is not None
        assert answer.keys() == {"ok", "done", "returncode"}, answer
        assert answer["ok"] is True
        assert answer["done"] is True
        assert type(answer["returncode"]) is int
        return answer["returncode"]


RUNNING: Final = {"ok": True, "done": False, "returncode": None}


@pytest.fixture(scope="module")
def station(sandbox: Sandbox) -> Iterator[Station]:
    """Sites whose interpreter is a shell, ones with Python, and one that cannot run anything yet."""
    with sandbox.installation() as installation, Station(installation) as station:
        station.add_shell_site("shell")
        station.add_site("python", applications=["base", "base-login"])
        station.add_site("jailed", layout="jailed")
        station.add_shell_site("wide", layout="wide")
        station.add_shell_site("late", groups=["latecomers"])
        station.add_site("contained", docker_image="image")
        installation.write(installation.scripts / "Base.py", BASE_PY_RUNS)
        installation.write(installation.scripts / "BaseLogin.py", BASE_PY_RUNS)
        folder = installation.make_directory(installation.scripts / "folder")
        installation.write(folder / "Base.py", BASE_PY_RUNS)
        station.start()
        yield station


@pytest.fixture
def client(station: Station) -> LegacyClient:
    return LegacyClient(station.installation)


@pytest.fixture
def gate(station: Station) -> Iterator[Gate]:
    with Gate(station.installation.top / f"gate-{uuid.uuid4()}") as gate:
        yield gate


def shell(station: Station, command: str) -> list[str]:
    """Return the argv of a job of a site with a shell as interpreter."""
    return ["/bin/sh", str(station.installation.scripts / "do.sh"), command]


def python(station: Station, script: str, *arguments: str) -> list[str]:
    return [station.installation.program.python, str(station.installation.scripts / script), *arguments]


def site_of(station: Station, name: str) -> Site:
    return station.installation.sites[name]


def kill(pid: int) -> None:
    """Kill a process and wait until it has ended, whoever has to reap it."""
    pidfd = os.pidfd_open(pid)
    os.kill(pid, SIGKILL)
    assert select.select([pidfd], [], [], DEADLINE)[0]
    os.close(pidfd)


# A job's way


@pytest.mark.parametrize("with_id", [True, False], ids=["with a job id", "without one"])
def test_a_job_is_started_and_its_pid_is_answered(station: Station, client: LegacyClient, *, with_id: bool) -> None:
    mission = station.mission(site_of(station, "shell"))
    job_id = {"job_id": str(uuid.uuid4())} if with_id else {}
    pid = client.start("shell", shell(station, "echo $$ $RUNNER_JOB_ID"), mission / "job.log", **job_id)
    assert client.returncode(pid) == 0
    said = (mission / "job.log").read_text().split()
    assert said[0] == str(pid)
    assert str(uuid.UUID(said[1])) == job_id.get("job_id", said[1])


def test_a_job_runs_as_its_sites_account(station: Station, client: LegacyClient) -> None:
    site = site_of(station, "shell")
    assert site.account
    mission = station.mission(site)
    assert client.returncode(client.start("shell", shell(station, "id -u; id -G"), mission / "job.log")) == 0
    assert (mission / "job.log").read_text().split() == [str(site.account.uid), str(site.account.gid)]


@pytest.mark.parametrize(("end", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -15 $$", -15)])
def test_a_job_is_not_done_while_it_runs_and_then_has_its_return_code(
    station: Station, client: LegacyClient, gate: Gate, end: str, code: int
) -> None:
    mission = station.mission(site_of(station, "shell"))
    pid = client.start("shell", shell(station, f"{gate.in_shell}; {end}"), mission / "job.log")
    assert client.status(pid) == RUNNING
    assert client.status(pid) == RUNNING
    gate.open()
    assert client.returncode(pid) == code
    assert client.status(pid) == {"ok": True, "done": True, "returncode": code}


def test_a_repeated_dispatch_is_answered_with_the_same_job(station: Station, client: LegacyClient, gate: Gate) -> None:
    mission = station.mission(site_of(station, "shell"))
    job = ("shell", shell(station, f"echo once; {gate.in_shell}; exit 3"), mission / "job.log")
    job_id = str(uuid.uuid4())
    pid = client.start(*job, job_id=job_id)
    assert client.start(*job, job_id=job_id) == pid
    gate.open()
    assert client.returncode(pid) == 3
    assert client.start(*job, job_id=job_id) == pid
    assert client.returncode(pid) == 3
    assert (mission / "job.log").read_text() == "once\n"


def test_many_watchers_exchanges_may_be_open_at_once(station: Station, client: LegacyClient, gate: Gate) -> None:
    site = site_of(station, "shell")
    jobs = [
        client.start("shell", shell(station, f"{gate.in_shell}; exit {code}"), station.mission(site) / "job.log")
        for code in range(5)
    ]
    assert len(set(jobs)) == 5
    assert [client.status(pid) for pid in jobs] == [RUNNING] * 5
    gate.open(5)
    assert [client.returncode(pid) for pid in jobs] == list(range(5))


def test_jobs_are_followed_by_the_helper_that_comes_next(station: Station, client: LegacyClient, gate: Gate) -> None:
    site = site_of(station, "shell")
    command = shell(station, f"{gate.in_shell}; exit 4")
    running = client.start("shell", command, station.mission(site) / "job.log")
    ended = client.start("shell", shell(station, "exit 5"), station.mission(site) / "job.log")
    assert client.returncode(ended) == 5
    station.daemon.stop()
    station.start()
    assert client.status(running) == RUNNING
    assert client.returncode(ended) == 5
    gate.open()
    assert client.returncode(running) == 4


# What it is started with


def test_arguments_are_left_as_they_are(station: Station, client: LegacyClient) -> None:
    mission = station.mission(site_of(station, "python"))
    arguments = ["--mission_dir", str(mission), "--daemon", "--job_id", "x", "--queue_length", "3", "{job_id}"]
    pid = client.start("python", python(station, "Base.py", *arguments), mission / "job.log")
    assert client.returncode(pid) == 0
    said = (mission / "job.log").read_text().splitlines()
    assert said == [f"directory {mission}", f"arguments {' '.join(arguments)}"]


def test_without_a_mission_directory_a_job_works_where_its_log_is(station: Station, client: LegacyClient) -> None:
    mission = station.mission(site_of(station, "python"))
    for arguments in ([], ["--verbose"], ["--verbose", "--mission_dir"]):
        pid = client.start("python", python(station, "Base.py", *arguments), mission / "job.log")
        assert client.returncode(pid) == 0
    assert (mission / "job.log").read_text().count(f"directory {mission}\n") == 3


def test_paths_of_a_jailed_site_are_the_hosts(station: Station, client: LegacyClient) -> None:
    mission = station.mission(site_of(station, "jailed"))
    argv = python(station, "Base.py", "--mission_dir", str(mission), "--config", str(mission / "sg001.conf"))
    log = mission.parent / "job.log"  # it works in the mission's directory all the same
    assert client.returncode(client.start("jailed", argv, log)) == 0
    said = log.read_text().splitlines()
    assert said == [f"directory {mission}", f"arguments {' '.join(argv[2:])}"]


def test_paths_as_a_jail_sees_them_are_not_the_jails(station: Station, client: LegacyClient) -> None:
    site = site_of(station, "jailed")
    mission = station.mission(site)
    argv = python(station, "Base.py", "--mission_dir", site.seen(mission))
    refusal(client.dispatch("jailed", argv, mission / "job.log"), "outside the site's tree")
    refusal(client.dispatch("jailed", argv, site.seen(mission / "job.log")), "outside the site's tree")


def test_the_timing_line_is_left_to_the_watcher(station: Station, client: LegacyClient) -> None:
    mission = station.mission(site_of(station, "python"))
    pid = client.start("python", python(station, "BaseLogin.py"), mission / "job.log")
    assert client.returncode(pid) == 0
    assert "BaseRunner:" not in (mission / "job.log").read_text()


# What is refused for good


def refusal(answer: Answer | None, reason: str = "") -> None:
    assert answer is not None
    assert answer.keys() == {"ok", "error"}, answer
    assert answer["ok"] is False
    assert reason in answer["error"]


ARGVS: Final = {
    "no words": [],
    "no script": ["{python}"],
    "another interpreter": ["/bin/sh", "{scripts}/Base.py"],
    "the interpreter by another path": ["/usr/bin/../bin/python3", "{scripts}/Base.py"],
    "the interpreter with a slash more": ["/{python}", "{scripts}/Base.py"],
    "a script as interpreter": ["{scripts}/Base.py", "{scripts}/Base.py"],
    "a script in a subdirectory": ["{python}", "{scripts}/folder/Base.py"],
    "a directory left again": ["{python}", "{scripts}/folder/../Base.py"],
    "a directory that is the same": ["{python}", "{scripts}/./Base.py"],
    "two slashes": ["{python}", "{scripts}//Base.py"],
    "a directory above": ["{python}", "{scripts}/../Base.py"],
    "the scripts' directory itself": ["{python}", "{scripts}"],
    "the scripts' directory with a slash": ["{python}", "{scripts}/"],
    "a script behind a slash": ["{python}", "{scripts}/Base.py/"],
    "a script without directory": ["{python}", "Base.py"],
    "a script that is not listed": ["{python}", "{scripts}/Reprocess.py"],
    "a script of another application": ["{python}", "{scripts}/do.py", "print()"],
    "a script in the mission": ["{python}", "{mission}/Base.py"],
    "an option of the interpreter": ["{python}", "-c", "print()"],
    "an option of the interpreter and a script": ["{python}", "-c", "{scripts}/Base.py"],
    "an option before the script": ["{python}", "-i", "{scripts}/Base.py"],
    "a script with a space": ["{python}", "{scripts}/Base.py "],
    "a script with a newline": ["{python}", "{scripts}/Base.py\n"],
}


NOT_THE_PROGRAM: Final = "its program is not the site's interpreter with a script of the site's basestation_dir"
NOT_LISTED: Final = {
    "a script that is not listed",
    "a script of another application",
    "a script with a space",
    "a script with a newline",
    "the scripts' directory with a slash",
}


@pytest.mark.parametrize("case", ARGVS)
def test_a_program_that_our_own_rules_would_not_have_made_is_refused(
    station: Station, client: LegacyClient, case: str
) -> None:
    installation = station.installation
    mission = station.mission(site_of(station, "python"))
    installation.write(mission / "Base.py", BASE_PY_RUNS)
    places = {"python": installation.program.python, "scripts": installation.scripts, "mission": mission}
    answer = client.dispatch("python", [word.format(**places) for word in ARGVS[case]], mission / "job.log")
    refusal(answer, "not listed in any application of the site" if case in NOT_LISTED else NOT_THE_PROGRAM)
    assert not (mission / "job.log").exists()


@pytest.mark.parametrize("where", ["other", "link", "above", "relative", "directory", "missing"])
def test_a_log_that_is_not_in_the_sites_tree_is_refused(station: Station, client: LegacyClient, where: str) -> None:
    site = site_of(station, "shell")
    mission, foreign = station.mission(site), station.mission(site_of(station, "wide"), mode=0o2777)
    (mission / "link").symlink_to(foreign)
    log_file = {
        "other": f"{foreign}/job.log",
        "link": f"{mission}/link/job.log",
        "above": f"{mission}/../../../../escaped.log",
        "relative": "job.log",
        "directory": f"{mission}",
        "missing": f"{mission}/none/job.log",
    }[where]
    refusal(client.dispatch("shell", shell(station, "echo ran"), log_file))
    assert not (foreign / "job.log").exists()


@pytest.mark.parametrize("where", ["other", "link", "above", "root", "relative", "file", "missing"])
def test_a_mission_directory_that_is_not_in_the_sites_tree_is_refused(
    station: Station, client: LegacyClient, where: str
) -> None:
    site = site_of(station, "python")
    mission, foreign = station.mission(site), station.mission(site_of(station, "wide"), mode=0o2777)
    (mission / "link").symlink_to(foreign)
    (mission / "file").touch()
    directory = {
        "other": foreign,
        "link": mission / "link",
        "above": f"{mission}/../../../..",
        "root": "/",
        "relative": "mission1",
        "file": mission / "file",
        "missing": mission / "none",
    }[where]
    argv = python(station, "Base.py", "--verbose", "--mission_dir", str(directory))
    refusal(client.dispatch("python", argv, mission / "job.log"), "the mission directory")
    assert "arguments" not in (mission / "job.log").read_text()


def test_a_mission_directory_in_the_jail_root_of_a_site_that_is_not_jailed_is_in_its_tree(
    station: Station, client: LegacyClient
) -> None:
    mission = station.mission(site_of(station, "wide"))
    argv = [*shell(station, "pwd"), "--mission_dir", str(mission)]
    assert client.returncode(client.start("wide", argv, mission / "job.log")) == 0
    assert (mission / "job.log").read_text() == f"{mission}\n"


def test_a_site_that_is_not_configured_or_cannot_be_served_is_refused(station: Station, client: LegacyClient) -> None:
    mission = station.mission(site_of(station, "python"))
    for name, reason in (("nowhere", "not configured"), ("", "not configured"), ("contained", "not supported")):
        refusal(client.dispatch(name, python(station, "Base.py"), mission / "job.log"), reason)


MALFORMED: Final[dict[str, Answer]] = {
    "a field too many": {"site": "shell", "argv": ["a"], "log_file": "/l", "uid": 0},
    "a field too few": {"site": "shell", "argv": ["a"]},
    "a text as argv": {"site": "shell", "argv": "a b", "log_file": "/l"},
    "numbers in argv": {"site": "shell", "argv": ["a", 1], "log_file": "/l"},
    "a NUL in argv": {"site": "shell", "argv": ["a\0b"], "log_file": "/l"},
    "a path as job id": {"site": "shell", "argv": ["a"], "log_file": "/l", "job_id": "../../x"},
    "an empty job id": {"site": "shell", "argv": ["a"], "log_file": "/l", "job_id": ""},
    "no job id": {"site": "shell", "argv": ["a"], "log_file": "/l", "job_id": None},
    "another query": {"query": "kill", "pid": 1},
    "a negative pid": {"query": "status", "pid": -1},
    "a text as pid": {"query": "status", "pid": "1"},
    "true as pid": {"query": "status", "pid": True},
    "a huge pid": {"query": "status", "pid": 1 << 40},
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_in_the_table_is_refused(client: LegacyClient, message: Answer) -> None:
    refusal(client.exchange(message))


# What passes, and what is lost


def test_a_group_that_is_not_there_yet_closes_without_an_answer_until_it_is(
    station: Station, client: LegacyClient
) -> None:
    site, accounts = site_of(station, "late"), station.installation.accounts
    assert site.account
    mission = station.mission(site)
    job = ("late", shell(station, "id -g"), mission / "job.log")
    job_id = str(uuid.uuid4())
    assert client.dispatch(*job, job_id=job_id) is None
    assert client.dispatch(*job, job_id=job_id) is None
    gid = accounts.add_group("latecomers")
    assert client.dispatch(*job, job_id=job_id) is None
    accounts.join(site.account.name, "latecomers")
    mission.chmod(0o2777)
    assert client.returncode(client.start(*job, job_id=job_id)) == 0
    assert (mission / "job.log").read_text() == f"{gid}\n"


def test_an_account_that_is_not_answered_for_closes_without_an_answer_until_it_is(
    station: Station, client: LegacyClient
) -> None:
    site, service = site_of(station, "shell"), NameService(station.installation)
    assert site.account
    station.daemon.stop()
    station.start(command=service.command)
    job = ("shell", shell(station, "exit 4"), station.mission(site) / "job.log")
    job_id = str(uuid.uuid4())
    service.fail(site.account.name)
    assert client.dispatch(*job, job_id=job_id) is None
    assert client.dispatch(*job, job_id=job_id) is None
    service.recover(site.account.name)
    assert client.returncode(client.start(*job, job_id=job_id)) == 4


def test_a_claim_that_cannot_be_written_closes_without_an_answer_and_starts_nothing(
    station: Station, client: LegacyClient
) -> None:
    mission = station.mission(site_of(station, "shell"))
    claims = station.installation.helper_state / "claims"
    claims.chmod(0o500)
    try:
        assert client.dispatch("shell", shell(station, "echo ran"), mission / "job.log") is None
    finally:
        claims.chmod(0o700)
    assert not (mission / "job.log").exists()


def test_a_job_whose_end_nobody_saw_is_done_with_a_code_that_is_not_zero(
    station: Station, client: LegacyClient, gate: Gate
) -> None:
    mission = station.mission(site_of(station, "shell"))
    job_id = str(uuid.uuid4())
    job = ("shell", shell(station, f"{gate.in_shell}; exit 0"), mission / "job.log")
    pid = client.start(*job, job_id=job_id)
    kill(parent_of(pid))
    station.daemon.wait_event(lambda event: event["event"] == "job without a keeper" and event["job_id"] == job_id)
    assert client.status(pid) == RUNNING  # nobody may take its place in the queue
    gate.open()
    assert client.returncode(pid) > 0
    refusal(client.dispatch(*job, job_id=job_id), "its end is not known")
    assert client.returncode(pid) > 0


def test_a_job_that_was_lost_while_no_helper_ran_is_done_with_a_code_that_is_not_zero(
    station: Station, client: LegacyClient, gate: Gate
) -> None:
    mission = station.mission(site_of(station, "shell"))
    pid = client.start("shell", shell(station, gate.in_shell), mission / "job.log")
    keeper = parent_of(pid)
    station.daemon.stop()
    for process in (keeper, pid):
        kill(process)
    station.start()
    assert client.returncode(pid) > 0


def test_an_unknown_pid_is_done_with_a_code_that_is_not_zero(client: LegacyClient) -> None:
    for pid in (os.getpid(), 1, 0, (1 << 31) - 1):
        assert client.returncode(pid) > 0
