"""`runner watch` as a process: what it may be, signals, systemd, kill -9 at chosen points, a real queue overflow.

As root the process gives its privileges up before it begins, as any service manager would see to.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.watch.conftest import FakeHelper

NOBODY = 65534
ROOT = Path(__file__).parents[2]

# Everything is imported before the privileges go: afterwards the program's files may be out of reach.
DRIVER = """
import contextlib, os, sys
sys.path.insert(0, sys.argv.pop(1))
import basestation_runner.commands.watch, basestation_runner.watch.daemon, basestation_runner.watch.start
from basestation_runner import cli
from basestation_runner.config import apart, load
from basestation_runner.watch import inbox, ledger

class Here(contextlib.nullcontext):
    def __init__(self, *texts):
        super().__init__(self)
        self.config = lambda: load.load_sources(*(text and load.Source(*text) for text in texts))

apart.begin = Here
if os.geteuid() == 0 and not os.environ.pop("STAY_ROOT", None):
    os.setgroups([])
    os.setresgid(*[65534] * 3)
    os.setresuid(*[65534] * 3)

def stop_here(*_, **__):
    print("stopped here", flush=True)
    while True:
        os.read(gate, 1)

gate = os.pipe()[0]
exec(os.environ.pop("SABOTAGE", ""))
sys.exit(cli.main(sys.argv[1:]))
"""

SABOTAGES = {
    "before the commit": "ledger.Ledger.commit = lambda self: stop_here() if self._writes else []",
    "between the commit and the rename": "inbox.Inbox.acknowledge = stop_here",
    "between the rename and the comparison": "inbox._identity = stop_here",
    "between the comparison and the removal": "inbox.os = type('', (), {**vars(os), 'unlink': stop_here})",
    "before the removal is recorded": "ledger.Ledger.removed = stop_here",
    "while the rundir is scanned": "inbox.Inbox.scan = stop_here",
}


class Process:
    """A directory with everything in it, and the watcher's process that is started on it again and again."""

    def __init__(self, directory: Path, helper: FakeHelper, until: Callable[..., None]) -> None:
        self.directory = directory
        self.helper = helper
        self.until = until
        self.uid = NOBODY if os.geteuid() == 0 else os.geteuid()
        self.process: subprocess.Popen[str] | None = None
        self.notices: list[str] = []
        self.rundir = directory / "alpha"
        self.sites = {"alpha": {"watch_dir": str(self.rundir), "runner_user": pwd.getpwuid(self.uid).pw_name}}
        for name, mode in (("alpha", 0o770), ("state", 0o700), ("log", 0o700)):
            (directory / name).mkdir(mode=mode)
            os.chown(directory / name, self.uid, -1)
        self.log = directory / "log/watch.log"

    def start(self, *, sabotage: str = "", ready: bool = True, **environment: str) -> subprocess.Popen[str]:
        (self.directory / "sites.yaml").write_text(json.dumps(self.sites))
        arguments = {
            "sites-config": self.directory / "sites.yaml",
            "applications-config": self.directory / "applications.yaml",
            "priv-exec-socket": self.helper.socket,
            "control-socket": self.directory / "state/control.sock",
            "state-dir": self.directory / "state",
            "base-log": self.log,
            "job-completions-log": self.directory / "log/completions.log",
            "log-format": "json",
        }
        (self.directory / "applications.yaml").write_text("{}")
        seen = self.count("ready")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", DRIVER, str(ROOT), "watch"]
            + [f"--{name}={value}" for name, value in arguments.items()],
            env={"PATH": os.environ["PATH"], "SABOTAGE": sabotage, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        if ready:
            self.until(lambda: self.count("ready") > seen or self.over(), "ready")
            assert not self.over(), self.end()
        return self.process

    def over(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def stops_here(self) -> None:
        """Wait until the sabotaged step is reached."""
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "stopped here\n"

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.end()

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the status and what was written to stderr."""
        assert self.process is not None
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors

    def lines(self, event: str) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        parsed = (json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n"))
        return [line for line in parsed if line["event"] == event]

    def count(self, event: str) -> int:
        return len(self.lines(event))

    def drop(self, name: str, number: int = 1) -> Path:
        mission = f"/home/sg123/m{number}"
        with tempfile.NamedTemporaryFile("w", dir=self.rundir, delete=False) as file:
            file.write(f"/home/sg123 {mission} {mission}/log Base.py --n {name}\n")
        os.chown(file.name, self.uid, -1)
        return Path(file.name).rename(self.rundir / name)

    def runs(self) -> dict[str, int]:
        """Return how often each request was really started: a repeat of a job's id starts nothing."""
        jobs = {sent["job_id"]: sent["args"][1] for sent in self.helper.dispatched}
        counts: dict[str, int] = {}
        for name in jobs.values():
            counts[name] = counts.get(name, 0) + 1
        return counts

    def states(self) -> list[str]:
        database = sqlite3.connect(self.directory / "state/ledger.db")
        try:
            return [state for (state,) in database.execute("SELECT state FROM jobs ORDER BY seq")]
        finally:
            database.close()

    def left(self) -> list[str]:
        return sorted(path.name for path in self.rundir.iterdir() if path.name != ".base_runner_lockfile")


@pytest.fixture
def process(fake_helper: FakeHelper, until: Callable[..., None]) -> Iterator[Process]:
    directory = Path(tempfile.mkdtemp(prefix="runner-test-"))
    directory.chmod(0o755)
    fake_helper.start()
    fake_helper.socket.chmod(0o777)
    made = Process(directory, fake_helper, until)
    yield made
    if made.process is not None and not made.over():
        made.process.kill()
        made.end()
    shutil.rmtree(directory)


@pytest.mark.parametrize("step", SABOTAGES)
def test_a_watcher_killed_at_any_step_neither_loses_nor_repeats_a_request(process: Process, step: str) -> None:
    process.helper.on_dispatch = process.helper.hold  # so that no job ends before the kill
    if step == "while the rundir is scanned":
        process.start(sabotage=SABOTAGES[step], ready=False)
    else:
        process.start(sabotage=SABOTAGES[step], ready=step != "before the commit")
    path = process.drop("1.run")
    process.stops_here()
    process.kill()
    process.start()
    process.until(lambda: process.helper.dispatched and not path.exists())
    process.helper.on_dispatch = process.helper.run
    process.helper.finish(process.helper.dispatched[0]["job_id"])
    process.drop("2.run")
    process.until(lambda: process.states() == ["succeeded"] * 2)
    assert process.runs() == {"1.run": 1, "2.run": 1}
    process.until(lambda: process.left() == [])


def test_a_watcher_killed_with_many_jobs_queued_runs_each_of_them_once(process: Process) -> None:
    process.helper.on_dispatch = process.helper.hold
    process.start()
    for number in range(100):
        process.drop(f"{number}.run", number % 10)
    process.until(lambda: process.count("request accepted") == 100 and process.left() == [])
    process.kill()
    process.helper.on_dispatch = process.helper.run
    process.start()
    for job_id in list(process.helper.running):
        process.helper.finish(job_id)
    process.until(lambda: process.states() == ["succeeded"] * 100)
    assert process.runs() == {f"{number}.run": 1 for number in range(100)}


@settings(max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
@given(kills=st.lists(st.integers(0, 12), min_size=2, max_size=3))
def test_a_watcher_killed_again_and_again_under_load_runs_each_request_once(process: Process, kills: list[int]) -> None:
    process.helper.dispatched.clear()
    total = 0
    for round_number, kill_after in enumerate(kills):
        process.start(ready=False)
        names = [f"{round_number}-{number}.run" for number in range(15)]
        total += len(names)
        for number, name in enumerate(names):
            process.drop(name, number % 4)
            if number == kill_after:
                process.until(lambda: process.runs() or process.over())
                process.kill()
        if not process.over():
            process.kill()
    process.start()
    process.until(lambda: len(process.runs()) == total and process.left() == [])
    assert set(process.runs().values()) == {1}
    process.until(lambda: set(process.states()) == {"succeeded"})
    process.kill()
    for path in (process.directory / "state").iterdir():
        path.unlink()


def test_a_real_queue_overflow_loses_nothing(process: Process) -> None:
    process.start()
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    assert process.process is not None
    process.process.send_signal(signal.SIGSTOP)
    (process.rundir / "one").write_text("x")
    for _ in range(most // 2 + 100):
        (process.rundir / "one").rename(process.rundir / "two")
        (process.rundir / "two").rename(process.rundir / "one")
    for number in range(50):
        process.drop(f"{number}.run", number)
    process.process.send_signal(signal.SIGCONT)
    process.until(lambda: len(process.runs()) == 50)
    assert process.count("inotify queue overflow: the rundir is scanned") == 1
    process.until(lambda: process.left() == ["one"])


def test_a_rundir_that_cannot_be_written_is_served_once_without_spinning(process: Process) -> None:
    process.drop("1.run")
    (process.rundir / "bad.run").write_text("x\n")
    os.chown(process.rundir / "bad.run", process.uid, -1)
    process.rundir.chmod(0o555)
    if os.geteuid() == 0:
        os.chown(process.rundir, 0, 0)
    try:
        process.start()
        process.until(lambda: process.runs() and process.count("request rejected"))
        process.until(lambda: process.count("requests cannot be removed from the rundir: each is run once"))
        process.kill()
        process.start()
        process.until(lambda: process.count("request rejected") == 2)  # it was judged anew, so the scan is over
        assert process.runs() == {"1.run": 1}
        assert process.left() == ["1.run", "bad.run"]
    finally:
        process.rundir.chmod(0o770)


# Signals and systemd


def test_sigterm_ends_it_cleanly(process: Process) -> None:
    running = process.start()
    assert (process.rundir / ".base_runner_lockfile").read_text() == str(running.pid)
    running.terminate()
    assert process.end() == (0, "")
    assert not (process.rundir / ".base_runner_lockfile").exists()
    assert process.lines("stopped")


def test_sigint_ends_it_too_even_before_it_is_ready(process: Process) -> None:
    running = process.start(sabotage=SABOTAGES["while the rundir is scanned"], ready=False)
    process.stops_here()
    running.send_signal(signal.SIGINT)
    assert process.end()[0] == 0


def test_sighup_goes_on_in_new_logs(process: Process) -> None:
    running = process.start()
    for log in (process.log, process.log.parent / "completions.log"):
        log.rename(log.with_suffix(".1"))
    running.send_signal(signal.SIGHUP)
    process.until((process.log.parent / "completions.log").exists)
    process.drop("1.run")
    process.until(lambda: process.count("job ended"))
    process.until((process.log.parent / "completions.log").read_text)


def test_systemd_is_told_when_it_is_ready_what_it_does_that_it_lives_and_that_it_ends(process: Process) -> None:
    address = process.directory / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(address))
        address.chmod(0o777)
        listener.settimeout(20)

        def hear(what: str) -> str:
            while what not in (said := listener.recv(4096).decode()):
                pass
            return said

        process.helper.on_dispatch = process.helper.hold
        process.sites["beta"] = {**process.sites["alpha"], "watch_dir": str(process.directory / "missing")}
        environment = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "200000"}
        process.start(sabotage=SABOTAGES["while the rundir is scanned"], ready=False, **environment)
        process.stops_here()
        for _ in range(3):
            assert "READY" not in hear("WATCHDOG=1")
        process.kill()
        running = process.start(ready=False, **environment)
        assert re.search(r"STATUS=1 site watching, 1 pending; 0 running, 0 queued", hear("READY=1"))
        for name in ("1.run", "2.run"):
            process.drop(name)
        hear("STATUS=1 site watching, 1 pending; 1 running, 1 queued")
        hear("WATCHDOG=1")
        running.terminate()
        hear("STOPPING=1")
        assert process.end()[0] == 0


# What it refuses


def refusal(process: Process, **environment: str) -> str:
    process.start(ready=False, **environment)
    status, errors = process.end()
    assert status == 1
    assert all(line.startswith("runner: ") for line in errors.splitlines())
    assert "Traceback" not in errors
    return errors


@pytest.mark.usefixtures("privileged")
def test_it_does_not_run_as_root(process: Process) -> None:
    assert "does not run as root" in refusal(process, STAY_ROOT="1")


@pytest.mark.usefixtures("privileged")
def test_it_does_not_run_with_capabilities() -> None:
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+setuid"]
    command += ["--ambient-caps=+setuid", sys.executable, "-c"]
    code = "from basestation_runner.watch.start import refuse_privilege; refuse_privilege()"
    done = subprocess.run([*command, code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "runner watch must have no capabilities" in done.stderr


def test_a_second_watcher_on_the_same_state_is_refused_and_the_first_goes_on(process: Process) -> None:
    first = process.start()
    assert f"another watcher is running on this state directory (pid {first.pid})" in refusal(process)
    process.process = first
    process.drop("1.run")
    process.until(lambda: process.count("job ended"))


def test_a_faulty_config_is_refused_with_its_place(process: Process) -> None:
    process.sites["alpha"]["watchdir"] = "/x"
    assert re.search(r"sites\.yaml:1:\d+: .*watchdir", refusal(process))


def test_a_missing_state_directory_is_named(process: Process) -> None:
    (process.directory / "state").rmdir()
    assert f"{process.directory}/state: the state directory cannot be used" in refusal(process)


def test_it_stays_small(process: Process) -> None:
    running = process.start()
    process.drop("1.run")
    process.until(lambda: process.count("job ended"))
    status = Path(f"/proc/{running.pid}/status").read_text()
    resident = int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])
    assert resident < 40_000
