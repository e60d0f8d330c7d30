"""The operators' commands against a watcher that runs: jobs, show, cancel, rerun, hold, release, drain."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.errors import RunnerError
from basestation_runner.operate.client import Client
from basestation_runner.watch import requests
from basestation_runner.watch.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.watch.conftest import Bench

    Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def listed(run: Run) -> Callable[..., list[dict[str, Any]]]:
    """Return what `runner jobs --json` says."""

    def call(*words: str) -> list[dict[str, Any]]:
        code, out, err = run("jobs", "--json", *words)
        assert (code, err) == (0, "")
        jobs: list[dict[str, Any]] = json.loads(out)
        return jobs

    return call


def ids(bench: Bench) -> dict[str, str]:
    """Return the id of each job by its request's name."""
    database = sqlite3.connect(f"file:{bench.directory}/state/ledger.db?mode=ro", uri=True)
    try:
        return dict(database.execute("SELECT request, id FROM jobs ORDER BY seq"))
    finally:
        database.close()


def with_state(bench: Bench, name: str, state: str) -> Callable[[], bool]:
    return lambda: bench.states().get(name) == state


# Looking


def test_jobs_are_listed_by_what_is_asked_for(bench: Bench, listed: Callable[..., list[dict[str, Any]]]) -> None:
    alpha, beta = bench.site("alpha"), bench.site("beta")
    bench.start()
    bench.drop(alpha, "1.run")
    bench.until(with_state(bench, "1.run", "succeeded"))
    bench.helper.on_dispatch = bench.helper.hold
    bench.drop(beta, "2.run", script="BaseLogin.py")
    bench.until(with_state(bench, "2.run", "running"))
    assert [job["request"] for job in listed()] == ["2.run", "1.run"]
    assert [job["request"] for job in listed("--site", "alpha")] == ["1.run"]
    assert [job["request"] for job in listed("--state", "running", "--state", "queued")] == ["2.run"]
    assert [job["request"] for job in listed("--script", "Base.py")] == ["1.run"]
    assert [job["request"] for job in listed("--limit", "1")] == ["2.run"]
    assert listed("--since", "2099-01-01") == []


def test_a_list_without_jobs_is_a_sentence(bench: Bench, run: Run) -> None:
    bench.site("alpha")
    bench.start()
    assert run("jobs") == (0, "There is no such job.\n", "")


def test_more_jobs_than_fit_one_answer_are_all_listed(
    bench: Bench, listed: Callable[..., list[dict[str, Any]]]
) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for number in range(450):
        bench.drop(rundir, f"{number}.run")
    bench.until(lambda: len(bench.states()) == 450)
    numbers = [job["seq"] for job in listed("--limit", "1000")]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == 450
    assert len(listed("--limit", "300")) == 300


def test_everything_about_a_job_is_shown(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run", "/home/sg123 /home/sg123/m /home/sg123/m/log Base.py --verbose --n \x61\n")
    bench.until(with_state(bench, "1.run", "succeeded"))
    (job_id,) = ids(bench).values()
    code, out, err = run("show", job_id[:6])
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"Job {job_id}"
    shown = dict(line.strip().split("  ", 1) for line in lines[1:] if line.startswith("  ") and "  " in line.strip())
    shown = {name: value.strip() for name, value in shown.items()}
    assert shown["script"] == "Base.py (application base)"
    assert shown["arguments"] == "--verbose --n a"
    assert shown["home"] == "/home/sg123"
    assert shown["log"] == "/home/sg123/m/log"
    assert shown["state"] == "succeeded"
    assert shown["result"] == "exit code 0"
    assert shown["CPU time"] == "0.50 s user, 0.25 s system"
    assert shown["most memory"] == "2.0 MiB"
    assert out.endswith("The last of its log:\n  the last line\n")
    assert json.loads(run("show", job_id, "--json")[1])["args"] == ["--verbose", "--n", "a"]


def test_an_id_that_begins_several_jobs_is_told_apart(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.start()
    for number in range(40):  # more than an id has digits
        bench.drop(rundir, f"{number}.run", n=number)
    bench.until(lambda: list(bench.states().values()).count("succeeded") == 40)
    firsts = [job_id[0] for job_id in ids(bench).values()]
    twice = next(first for first in firsts if firsts.count(first) > 1)
    code, out, err = run("show", twice)
    assert (code, out) == (1, "")
    assert err.startswith("runner: several jobs' ids begin so, for instance ")


@pytest.mark.parametrize("command", ["show", "logs", "rerun"])
def test_an_unknown_job_is_one_line(bench: Bench, run: Run, command: str) -> None:
    bench.site("alpha")
    bench.start()
    assert run(command, "abc") == (1, "", "runner: there is no such job, or it is not of a site of yours\n")


@pytest.mark.parametrize("job", ["", "x", "ABC", "../a", "a" * 65])
def test_what_is_no_id_is_wrong_usage(bench: Bench, run: Run, job: str) -> None:
    bench.site("alpha")
    assert run("show", "--", job)[0] == 2


# Cancelling


def test_a_job_that_waits_is_cancelled_at_once_and_never_runs(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for name in ("1.run", "2.run", "3.run"):
        bench.drop(rundir, name)
    bench.until(lambda: len(bench.states()) == 3)
    bench.until(with_state(bench, "1.run", "running"))
    job = ids(bench)["2.run"]
    assert run("cancel", job) == (0, f"{job}: cancelled: it never ran\n", "")
    assert bench.states()["2.run"] == "cancelled"
    bench.helper.finish(ids(bench)["1.run"])
    bench.until(with_state(bench, "3.run", "running"))
    assert job not in [sent["job_id"] for sent in bench.helper.dispatched]
    shown = json.loads(run("show", job, "--json")[1])
    assert (shown["state"], shown["reason"]) == ("cancelled", "it was cancelled before it ran")
    assert shown["cancelled_by"] == shown["submitter"]


def test_a_job_that_runs_is_ended_by_the_helper(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "running"))
    job = ids(bench)["1.run"]
    code, out, _ = run("cancel", job)
    assert (code, out.startswith(f"{job}: to be cancelled")) == (0, True)
    bench.until(with_state(bench, "1.run", "cancelled"))
    assert json.loads(run("show", job, "--json")[1])["signal"] == 15


def test_a_job_that_ended_by_itself_meanwhile_is_not_called_cancelled(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.helper.on_cancel = lambda job_id: bench.helper.finish(job_id, 0)
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "running"))
    job = ids(bench)["1.run"]
    run("cancel", job)
    bench.until(with_state(bench, "1.run", "succeeded"))
    assert run("cancel", job) == (1, f"{job}: it has ended: succeeded\n", "")


def test_a_cancellation_while_the_helper_is_away_is_carried_out_when_it_is_back(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "running"))
    bench.helper.kill()
    bench.until(lambda: bench.events("helper not reachable"))
    assert run("cancel", ids(bench)["1.run"])[0] == 0
    bench.stop()  # the watcher does not forget it either
    bench.start()
    assert bench.states()["1.run"] == "running"
    bench.helper.start()
    bench.until(with_state(bench, "1.run", "cancelled"))


def test_a_job_that_is_cancelled_while_it_is_started_does_not_start_again(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = lambda _: None
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "starting"))
    job = ids(bench)["1.run"]
    assert run("cancel", job)[0] == 0
    bench.helper.say({"event": "temporary", "job_id": job, "reason": "the name service is away", "absent": False})
    bench.until(with_state(bench, "1.run", "cancelled"))
    assert bench.helper.cancelled == [job]
    # What the helper had said was not all: it runs after all, and must not.
    bench.helper.hold({"job_id": job})
    bench.until(lambda: bench.helper.cancelled == [job, job])


def test_several_jobs_are_cancelled_and_one_that_is_not_there_is_told(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.helper.kill()
    bench.start()
    bench.drop(rundir, "1.run")
    bench.drop(rundir, "2.run")
    bench.until(lambda: len(bench.states()) == 2)
    code, out, _ = run("cancel", *ids(bench).values(), "ffff")
    assert code == 1
    assert bench.states() == {"1.run": "cancelled", "2.run": "cancelled"}
    assert out.splitlines()[2] == "ffff: there is no such job, or it is not of a site of yours"


# Repeating


def test_a_job_that_has_ended_runs_again_under_another_id(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "succeeded"))
    (job,) = ids(bench).values()
    code, out, _ = run("rerun", job)
    assert code == 0
    again = out.split()[0]
    assert out == f"{again} repeats {job}\n"
    bench.until(lambda: json.loads(run("show", again, "--json")[1])["state"] == "succeeded")
    assert json.loads(run("show", again, "--json")[1])["rerun_of"] == job
    first, second = bench.helper.dispatched
    assert {**first, "job_id": ""} == {**second, "job_id": ""}


def test_a_job_that_has_not_ended_is_not_repeated(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "running"))
    (job,) = ids(bench).values()
    assert run("rerun", job) == (1, "", f"runner: job {job} has not ended\n")


def test_what_the_site_may_not_run_any_more_is_not_repeated(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "succeeded"))
    bench.stop()
    bench.site("alpha", make=False, applications=("base-login",))
    bench.start()
    (job,) = ids(bench).values()
    assert run("rerun", job) == (1, "", "runner: no application that this site may use runs Base.py\n")


# Holding


def test_nothing_of_a_held_site_is_started_until_it_is_released_whatever_happens(bench: Bench, run: Run) -> None:
    alpha, beta = bench.site("alpha"), bench.site("beta")
    bench.start()
    assert run("hold", "alpha") == (0, "site alpha is held: nothing is started; 0 jobs running\n", "")
    held = bench.drop(alpha, "1.run")
    bench.drop(beta, "2.run")
    bench.until(with_state(bench, "2.run", "succeeded"))
    bench.until(lambda: not held.exists())
    assert json.loads(run("status", "--json")[1])["oldest_waiting"]["reason"] == "its site is held"
    bench.stop()
    bench.start()
    bench.drop(beta, "3.run")
    bench.until(with_state(bench, "3.run", "succeeded"))
    assert bench.states()["1.run"] == "queued"
    assert "held by" in run("status")[1]
    assert run("release", "alpha") == (0, "site alpha is released\n", "")
    bench.until(with_state(bench, "1.run", "succeeded"))
    assert run("release", "alpha") == (0, "site alpha was not held\n", "")


def test_the_whole_host_is_held_and_released(bench: Bench, run: Run) -> None:
    alpha = bench.site("alpha")
    bench.start()
    assert run("hold", "--all")[0] == 0
    bench.drop(alpha, "1.run")
    bench.until(with_state(bench, "1.run", "queued"))
    assert json.loads(run("status", "--json")[1])["oldest_waiting"]["reason"] == "the host is held"
    assert "The host is held by " in run("status")[1]
    assert run("release", "--all")[0] == 0
    bench.until(with_state(bench, "1.run", "succeeded"))


@pytest.mark.parametrize("words", [["hold"], ["release"], ["hold", "alpha", "--all"]])
def test_a_hold_names_either_sites_or_the_host(run: Run, words: list[str]) -> None:
    assert run(*words)[0] == 2


def test_an_unknown_site_is_not_held(bench: Bench, run: Run) -> None:
    bench.site("alpha")
    bench.start()
    assert run("hold", "omega") == (1, "", "runner: there is no such site, or it is not yours\n")


def test_a_drain_returns_when_nothing_runs(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "running"))
    bench.drop(rundir, "2.run")
    bench.until(with_state(bench, "2.run", "queued"))
    job = ids(bench)["1.run"]
    bench.on_loop(lambda: bench.loop.call_later(0.3, bench.helper.finish, job))
    code, out, err = run("drain", "alpha")
    assert (code, err) == (0, "waiting for 1 job\n")
    assert out == "site alpha is drained: nothing runs; `runner release alpha` ends this\n"
    assert bench.states() == {"1.run": "succeeded", "2.run": "queued"}


def test_a_drain_that_returns_requests_leaves_them_in_the_rundir_until_the_release(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.helper.kill()
    bench.start()
    for number in range(120):
        bench.drop(rundir, f"{number}.run", n=number)
    bench.until(lambda: len(bench.states()) == 120)
    bench.until(lambda: not list(rundir.glob("*.run")))
    code, out, _ = run("drain", "--return-requests")
    assert (code, out.startswith("the host is drained: nothing runs; 120 requests are back")) == (0, True)
    assert set(bench.states().values()) == {"cancelled"}
    back = sorted(rundir.glob("*.run"))
    assert [path.name for path in back] == sorted(f"returned-{job}.run" for job in ids(bench).values())
    texts = {path.read_text() for path in back}
    mission = "/home/sg123/mission"
    assert texts == {f"/home/sg123 {mission}{n} {mission}{n}/baselog.log Base.py --verbose\n" for n in range(120)}
    bench.stop()
    bench.helper.start()
    bench.start()
    fresh = bench.drop(rundir, "new.run")
    bench.on_loop(lambda: None)
    assert fresh.exists()
    assert len(list(rundir.glob("*.run"))) == 121
    assert run("release", "--all")[0] == 0
    bench.until(lambda: list(bench.states().values()).count("succeeded") == 121)
    assert bench.helper.scripts == ["Base.py"] * 121


def test_a_crash_before_returned_requests_are_written_loses_none(bench: Bench, run: Run) -> None:
    rundir = bench.site("alpha")
    bench.helper.kill()
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "queued"))
    bench.until(lambda: not list(rundir.glob("*.run")))
    release = bench.hold_up(Inbox, "give_back")
    bench.patch.setattr(requests, "COMMIT_PATIENCE", 0.2)
    code, _, err = run("drain", "alpha", "--return-requests")
    assert code == 75
    assert "the requests are written as soon as they do" in err
    assert bench.states() == {"1.run": "cancelled"}
    assert not list(rundir.glob("*.run"))
    bench.stop()
    assert not list(rundir.glob("*.run"))
    bench.patch.undo()
    bench.start()
    bench.until(lambda: list(rundir.glob("returned-*.run")))
    release.set()


def test_requests_are_not_returned_while_others_are_taken(bench: Bench) -> None:
    bench.site("alpha")
    bench.start()
    with Client(bench.options.control_socket) as client, pytest.raises(RunnerError, match="drain it first"):
        client.ask("return", site="alpha")
