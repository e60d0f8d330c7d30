"""`runner status` against a watcher that runs: what it says of sites, jobs and the helper, and what it costs."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.watch.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.watch.conftest import Bench

ROOT = Path(__file__).parents[2]


@pytest.fixture
def status(run: Callable[..., tuple[int, str, str]]) -> Callable[..., dict[str, Any]]:
    """Return what `runner status --json` says."""

    def call(*words: str) -> dict[str, Any]:
        code, out, err = run("status", "--json", *words)
        assert (code, err) == (0, "")
        facts: dict[str, Any] = json.loads(out)
        return facts

    return call


def test_an_idle_watcher_says_that_there_is_nothing(bench: Bench, run: Callable[..., tuple[int, str, str]]) -> None:
    bench.site("alpha")
    bench.start()
    code, out, err = run("status")
    assert (code, err) == (0, "")
    assert "alpha  watching  0        0       -" in out
    assert "Sites: 1 watching, 0 pending, 0 held. Jobs: 0 running, 0 queued." in out
    assert "No job is running." in out
    assert "No job waits." in out
    assert "No job has failed since" in out


def test_running_and_waiting_jobs_are_told_with_their_reasons(
    bench: Bench, status: Callable[..., dict[str, Any]], run: Callable[..., tuple[int, str, str]]
) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: status()["running"] == 1 and status()["jobs_running"][0]["state"] == "running")
    bench.drop(rundir, "2.run")
    bench.until(lambda: status()["queued"] == 1)
    facts = status()
    (job,) = facts["jobs_running"]
    assert (job["site"], job["script"], job["mission_dir"]) == ("alpha", "Base.py", "/home/sg123/mission1")
    assert facts["oldest_waiting"]["request"] == "2.run"
    assert facts["oldest_waiting"]["reason"] == "another job of its queue is before it"
    (site,) = facts["sites"]
    assert (site["running"], site["queued"], site["oldest_waiting"]["request"]) == (1, 1, "2.run")
    out = run("status")[1]
    assert f"{job['id'][:8]}  alpha  Base.py  /home/sg123/mission1" in out
    assert "Longest waiting: Base.py of alpha" in out


def test_a_failed_job_is_told_with_its_exit_code(
    bench: Bench, status: Callable[..., dict[str, Any]], run: Callable[..., tuple[int, str, str]]
) -> None:
    rundir = bench.site("alpha")

    def fail(message: dict[str, Any]) -> None:
        bench.helper.hold(message)
        bench.helper.finish(message["job_id"], exit_code=3)

    bench.helper.on_dispatch = fail
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: status()["failures"])
    assert status()["failures"][0]["exit_code"] == 3
    assert "exit code 3" in run("status")[1]
    assert status("--since", "2099-01-01")["failures"] == []


def test_a_pending_site_and_a_helper_that_is_away_are_told(
    bench: Bench, status: Callable[..., dict[str, Any]], run: Callable[..., tuple[int, str, str]]
) -> None:
    rundir = bench.site("alpha")
    bench.site("beta", make=False)
    bench.start()
    bench.helper.kill()
    bench.until(lambda: not status()["helper"]["reachable"])
    bench.drop(rundir, "1.run")
    bench.until(lambda: status()["queued"] == 1)
    facts = status()
    assert facts["oldest_waiting"]["reason"] == "the helper is not reachable"
    assert [site["reason"] for site in facts["sites"]] == [None, f"{bench.directory}/beta: it does not exist"]
    out = run("status")[1]
    assert "Helper not reachable for" in out
    assert f"{bench.directory}/beta: it does not exist" in out


def test_a_check_is_one_line_and_an_exit_status(bench: Bench, run: Callable[..., tuple[int, str, str]]) -> None:
    bench.site("alpha")
    bench.start()
    assert run("status", "--check") == (0, "ok: 1 sites watching, 0 running, 0 queued\n", "")
    bench.stop()
    bench.site("beta", make=False)
    bench.start()
    assert run("status", "--check") == (1, f"site beta is pending: {bench.directory}/beta: it does not exist\n", "")
    code, out, _ = run("status", "--check", "--json")
    assert code == 1
    assert json.loads(out)["faults"] == [f"site beta is pending: {bench.directory}/beta: it does not exist"]


def test_a_check_tells_of_lost_jobs_until_they_are_older_than_since(
    bench: Bench, run: Callable[..., tuple[int, str, str]]
) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = lambda message: bench.helper.say({
        "event": "lost", "job_id": message["job_id"], "reason": "its keeper ended without a record",
    })  # fmt: skip
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.states() == {"1.run": "lost"})
    code, out, _ = run("status", "--check")
    assert code == 1
    assert out.startswith("1 job was lost since ")
    assert out.count("\n") == 1
    assert run("status", "--check", "--since", "2099-01-01")[0] == 0


def test_a_check_tells_of_a_queue_that_cannot_go_on(bench: Bench, run: Callable[..., tuple[int, str, str]]) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = lambda message: bench.helper.say({
        "event": "temporary", "job_id": message["job_id"], "reason": "the name service is away", "absent": False,
    })  # fmt: skip
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: run("status", "--check")[0] == 1)
    out = run("status", "--check")[1]
    assert out.startswith("1 job is stuck, for instance ")
    assert out.endswith(" of alpha: the name service is away\n")


def test_on_a_terminal_it_is_shown_live_until_it_is_interrupted(bench: Bench) -> None:
    bench.site("alpha")
    bench.start()
    ours, theirs = pty.openpty()
    socket_option = f"--control-socket={bench.options.control_socket}"
    with subprocess.Popen(
        [sys.executable, "-m", "basestation_runner", "status", "--watch", socket_option],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        cwd=ROOT,
    ) as process:
        os.close(theirs)
        seen = b""
        while b"Ctrl-C ends this." not in seen:
            seen += os.read(ours, 1 << 16)
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # how a terminal says that nobody writes any more
            while os.read(ours, 1 << 16):
                pass
        assert process.wait() == 130
    os.close(ours)
    assert b"alpha" in seen
    assert b"watching" in seen


def test_a_helper_that_is_stuck_is_told_on_the_first_lines(
    bench: Bench, run: Callable[..., tuple[int, str, str]]
) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = lambda message: bench.helper.say({
        "event": "temporary", "job_id": message["job_id"], "reason": "no memory", "absent": False,
    })  # fmt: skip
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: "1 job is stuck, for instance" in run("status")[1])


def test_all_sites_are_told_however_many_there_are(bench: Bench, status: Callable[..., dict[str, Any]]) -> None:
    names = [f"site{number:04}" for number in range(250)]
    for name in names:
        bench.site(name, docker_image="image")  # never watched, so that it is quick
    bench.start()
    facts = status()
    assert [site["site"] for site in facts["sites"]] == names
    assert facts["counts"]["pending"] == 250


def test_without_a_watcher_there_is_one_line_and_status_75(
    bench: Bench, run: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = run("status")
    assert (code, out) == (75, "")
    assert err.startswith(f"runner: {bench.options.control_socket}: the watcher cannot be asked: No such file")
    assert err.count("\n") == 1


def test_a_hanging_rundir_does_not_keep_the_watcher_from_answering(
    bench: Bench, status: Callable[..., dict[str, Any]]
) -> None:
    bench.site("alpha")
    release = bench.hold_up(Inbox, "scan")
    bench.start(wait=False)
    try:
        bench.until(bench.options.control_socket.exists)
        bench.until(lambda: status()["sites"][0]["reason"] is not None)
    finally:
        release.set()


def test_the_socket_is_everybodys_and_goes_with_the_watcher(bench: Bench) -> None:
    bench.site("alpha")
    bench.start()
    assert bench.options.control_socket.stat().st_mode & 0o777 == 0o666
    bench.stop()
    assert not bench.options.control_socket.exists()


def test_a_watcher_that_was_killed_leaves_a_socket_that_is_replaced(
    bench: Bench, status: Callable[..., dict[str, Any]]
) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(bench.options.control_socket))
    left.close()
    bench.site("alpha")
    bench.start()
    assert status()["running"] == 0
    assert not bench.events("control socket cannot be made: nobody can ask this watcher anything")


def test_a_control_socket_that_cannot_be_made_stops_no_job(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.options.control_socket.mkdir()
    bench.start()
    assert bench.events("control socket cannot be made: nobody can ask this watcher anything")
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.states() == {"1.run": "succeeded"})
