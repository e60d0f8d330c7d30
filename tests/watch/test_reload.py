"""The configuration read anew: what changes, what goes on, and that a fault changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from basestation_runner.config.model import Application
from basestation_runner.errors import RunnerError
from basestation_runner.watch import jobs, lockfile, reload
from basestation_runner.watch.ledger import NewJob
from basestation_runner.watch.rundir import Rundir

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.watch.conftest import Bench

    Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def reloaded(bench: Bench, run: Run) -> Callable[[], dict[str, Any]]:
    """Have the watcher go by what the bench says now; return what `runner reload --json` says."""

    def call() -> dict[str, Any]:
        bench.configure()
        code, out, err = run("reload", "--json")
        answer: dict[str, Any] = json.loads(out)
        assert (code, err) == (1 if answer["faults"] else 0, "")
        return answer

    return call


def names(bench: Bench) -> list[str]:
    return sorted(site.site.name for site in bench.sites_of_watcher)


def with_state(bench: Bench, name: str, state: str) -> Callable[[], bool]:
    return lambda: bench.states().get(name) == state


def reason(run: Run, name: str) -> str:
    (job,) = (job for job in json.loads(run("jobs", "--json")[1]) if job["request"] == name)
    return str(job["reason"])


# Sites


def test_a_new_site_is_served_and_no_other_is_touched(
    bench: Bench, reloaded: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = bench.site("alpha")
    bench.start()
    place = bench.sites_of_watcher[0].place
    armed: list[str] = []
    arm = Rundir.arm

    def noted(self: Rundir, *args: Any) -> Any:  # noqa: ANN401 - passed on
        armed.append(self.site.name)
        return arm(self, *args)

    monkeypatch.setattr(Rundir, "arm", noted)
    beta = bench.site("beta")
    answer = reloaded()
    assert (answer["added"], answer["removed"], answer["changed"]) == (["beta"], [], [])
    assert (answer["helper"], bench.helper.reloads) == ("reloaded", 1)
    for rundir in (alpha, beta):
        bench.drop(rundir, f"{rundir.name}.run")
        bench.until(with_state(bench, f"{rundir.name}.run", "succeeded"))
    assert armed == ["beta"]
    assert bench.sites_of_watcher[0].place == place


def test_a_site_that_is_gone_is_let_go_with_its_lock_and_takes_nothing_more(
    bench: Bench, reloaded: Callable[[], dict[str, Any]]
) -> None:
    alpha = bench.site("alpha")
    bench.site("beta")
    bench.start()
    assert (alpha / lockfile.NAME).exists()
    kept = bench.sites.pop("alpha")
    assert reloaded()["removed"] == ["alpha"]
    assert names(bench) == ["beta"]
    assert not (alpha / lockfile.NAME).exists()
    left = bench.drop(alpha, "1.run")
    bench.sites["alpha"] = kept
    assert left.exists()
    assert reloaded()["added"] == ["alpha"]
    bench.until(with_state(bench, "1.run", "succeeded"))
    assert not left.exists()


def test_a_site_that_gets_another_rundir_is_served_there(bench: Bench, reloaded: Callable[[], dict[str, Any]]) -> None:
    old = bench.site("alpha")
    bench.start()
    new = bench.directory / "elsewhere"
    new.mkdir()
    bench.sites["alpha"] = evolve(bench.sites["alpha"], watch_dir=str(new))
    assert reloaded()["changed"] == ["alpha"]
    bench.drop(new, "1.run")
    bench.until(with_state(bench, "1.run", "succeeded"))
    assert bench.drop(old, "2.run").exists()
    assert not (old / lockfile.NAME).exists()
    assert (new / lockfile.NAME).read_text() == str(os.getpid())


def test_two_sites_can_exchange_their_rundirs(bench: Bench, reloaded: Callable[[], dict[str, Any]]) -> None:
    alpha, beta = bench.site("alpha"), bench.site("beta")
    bench.start()
    bench.sites["alpha"] = evolve(bench.sites["alpha"], watch_dir=str(beta))
    bench.sites["beta"] = evolve(bench.sites["beta"], watch_dir=str(alpha))
    reloaded()
    bench.drop(alpha, "1.run")
    bench.until(with_state(bench, "1.run", "succeeded"))
    assert [message["site"] for message in bench.helper.dispatched] == ["beta"]


def test_what_does_not_touch_the_rundir_keeps_the_watch_and_counts_at_once(
    bench: Bench, reloaded: Callable[[], dict[str, Any]]
) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    watch = bench.sites_of_watcher[0]
    bench.sites["alpha"] = evolve(bench.sites["alpha"], archive=True, max_running=1)
    assert reloaded()["changed"] == ["alpha"]
    assert bench.sites_of_watcher[0] is watch
    bench.drop(rundir, "1.run", n=1)
    bench.until(with_state(bench, "1.run", "running"))
    bench.drop(rundir, "2.run", n=2)
    bench.until(with_state(bench, "2.run", "queued"))
    assert sorted(path.name for path in (rundir / "archive").iterdir()) != []
    bench.sites["alpha"] = evolve(bench.sites["alpha"], archive=True, max_running=2)
    reloaded()
    bench.until(with_state(bench, "2.run", "running"))


def test_a_site_that_hangs_holds_up_no_other_when_it_is_removed(
    bench: Bench, reloaded: Callable[[], dict[str, Any]]
) -> None:
    bench.site("alpha")
    bench.start()
    release = bench.hold_up(Rundir, "check")
    bench.on_loop(bench.sites_of_watcher[0].doubt)
    del bench.sites["alpha"]
    beta = bench.site("beta")
    try:
        assert reloaded()["removed"] == ["alpha"]
        bench.drop(beta, "1.run")
        bench.until(with_state(bench, "1.run", "succeeded"))
    finally:
        release.set()


def test_a_site_whose_group_the_watcher_lacks_needs_a_restart(
    bench: Bench, reloaded: Callable[[], dict[str, Any]], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.site("alpha")
    bench.start()
    monkeypatch.setattr(reload, "has_group", lambda _: False)
    bench.site("beta", groups=("daemon",))
    assert reloaded()["needs_restart"] == [{"site": "beta", "reason": "needs restart: group daemon"}]
    bench.site("gamma", groups=("daemon",))
    bench.configure()
    assert run("reload") == (0, "Reloaded. Sites added: gamma.\nsite gamma: needs restart: group daemon\n", "")


# Jobs


def test_jobs_that_run_go_on_and_those_that_wait_for_a_removed_site_go_on_when_it_is_back(
    bench: Bench, reloaded: Callable[[], dict[str, Any]], run: Run
) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "running"))
    bench.drop(rundir, "2.run")
    bench.until(with_state(bench, "2.run", "queued"))
    kept = bench.sites.pop("alpha")
    assert reloaded()["held"] == [{"reason": "site alpha is not configured", "jobs": 1}]
    bench.helper.finish(bench.helper.dispatched[0]["job_id"])
    bench.until(with_state(bench, "1.run", "succeeded"))
    assert reason(run, "2.run") == "site alpha is not configured"
    bench.sites["alpha"] = kept
    assert reloaded()["held"] == []
    bench.until(with_state(bench, "2.run", "running"))


def test_jobs_whose_profile_is_gone_wait_and_go_on_when_it_is_back(
    bench: Bench, reloaded: Callable[[], dict[str, Any]], run: Run
) -> None:
    bench.applications["mine"] = Application(name="mine", scripts=("Mine.py",))
    rundir = bench.site("alpha", applications=("mine",))
    beta = bench.site("beta")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run", script="Mine.py")
    bench.until(with_state(bench, "1.run", "running"))
    for name in ("2.run", "3.run"):
        bench.drop(rundir, name, script="Mine.py")
        bench.until(with_state(bench, name, "queued"))
    mine = bench.applications.pop("mine")
    bench.sites["alpha"] = evolve(bench.sites["alpha"], applications=())
    assert reloaded()["held"] == [{"reason": "application mine is not defined", "jobs": 2}]
    bench.helper.finish(bench.helper.dispatched[0]["job_id"])
    bench.until(with_state(bench, "1.run", "succeeded"))
    assert reason(run, "2.run") == "application mine is not defined"
    bench.drop(beta, "4.run")
    bench.until(with_state(bench, "4.run", "running"))
    bench.applications["mine"] = mine
    bench.sites["alpha"] = evolve(bench.sites["alpha"], applications=("mine",))
    assert reloaded()["held"] == []
    bench.until(with_state(bench, "2.run", "running"))


def test_a_job_that_is_not_committed_yet_follows_the_new_configuration(bench: Bench) -> None:
    bench.site("alpha")
    watcher = bench.start()
    new = NewJob(
        job_id="5",
        site="alpha",
        application="base",
        script="Base.py",
        home="/home/sg123",
        mission_dir="/home/sg123/mission1",
        log_file="/home/sg123/mission1/job.log",
        args=(),
        submitter=0,
        request="1.run",
        additions={},
    )
    bench.sites.clear()
    config = bench.config

    async def accept_and_reload() -> None:
        watcher.jobs.rerun(new)
        await watcher._use(config)

    bench.helper.kill()  # else the commit would start it
    bench.until(lambda: bench.events("helper not reachable"))
    asyncio.run_coroutine_threadsafe(accept_and_reload(), bench.loop).result(20)
    assert watcher.jobs.held == {"site alpha is not configured": 1}


def test_one_queue_for_a_site_counts_for_what_runs_already(
    bench: Bench, reloaded: Callable[[], dict[str, Any]]
) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run", n=1)
    bench.until(with_state(bench, "1.run", "running"))
    bench.sites["alpha"] = evolve(bench.sites["alpha"], queue_scripts=False)
    reloaded()
    bench.drop(rundir, "2.run", n=2)
    bench.until(with_state(bench, "2.run", "queued"))
    bench.helper.finish(bench.helper.dispatched[0]["job_id"])
    bench.until(with_state(bench, "2.run", "running"))


def test_a_job_that_was_put_back_is_tried_at_once_when_the_helper_goes_by_another_configuration(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "FIRST_DELAY", 3600.0)
    monkeypatch.setattr(jobs, "LONGEST_DELAY", 3600.0)
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = lambda message: bench.helper.say(
        {"event": "temporary", "job_id": message["job_id"], "reason": "different configurations"}
    )
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job postponed"))
    bench.helper.on_dispatch = bench.helper.run
    bench.helper.say({"event": "configuration", "config": "another"})
    bench.until(with_state(bench, "1.run", "succeeded"))


def test_a_job_that_was_put_back_is_tried_at_once_when_its_site_is_changed(
    bench: Bench, reloaded: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "FIRST_DELAY", 3600.0)
    monkeypatch.setattr(jobs, "LONGEST_DELAY", 3600.0)
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = lambda message: bench.helper.say(
        {"event": "temporary", "job_id": message["job_id"], "reason": "different configurations"}
    )
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job postponed"))
    bench.helper.on_dispatch = bench.helper.run
    bench.sites["alpha"] = evolve(bench.sites["alpha"], env=(("A", "b"),))
    reloaded()
    bench.until(with_state(bench, "1.run", "succeeded"))
    first, second = (message["digest"] for message in bench.helper.dispatched)
    assert first != second


# What is not right


def test_a_fault_is_shown_and_changes_nothing(bench: Bench, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = bench.site("alpha")
    bench.start()

    def wrong(*_: object) -> None:
        raise RunnerError("one thing")

    monkeypatch.setattr(reload, "load", wrong)
    code, out, err = run("reload")
    assert (code, out) == (1, "")
    assert err == "one thing\nNothing is changed: what was read before stays in force.\n"
    assert bench.helper.reloads == 0
    bench.drop(rundir, "1.run")
    bench.until(with_state(bench, "1.run", "succeeded"))


def test_what_the_helper_refuses_changes_nothing(bench: Bench, reloaded: Callable[[], dict[str, Any]]) -> None:
    bench.site("alpha")
    bench.start()
    bench.site("beta")
    bench.helper.reload_faults = ["site beta: account root has uid 0, which no job may have"]
    assert reloaded()["faults"] == ["the helper refuses it: site beta: account root has uid 0, which no job may have"]
    assert names(bench) == ["alpha"]


def test_an_account_that_is_not_there_refuses_the_new_configuration(
    bench: Bench, reloaded: Callable[[], dict[str, Any]]
) -> None:
    bench.site("alpha")
    bench.start()
    bench.site("beta", runner_user="no-such-account")
    assert reloaded()["faults"] == ["there is no account no-such-account (runner_user of site beta)"]
    assert names(bench) == ["alpha"]


def test_without_the_helper_the_watcher_goes_by_the_new_configuration(
    bench: Bench, reloaded: Callable[[], dict[str, Any]]
) -> None:
    bench.site("alpha")
    bench.start()
    bench.helper.kill()
    bench.until(lambda: bench.events("helper not reachable"))
    bench.site("beta")
    assert reloaded()["helper"] == "away"
    assert names(bench) == ["alpha", "beta"]


def test_a_watcher_that_is_stopped_while_it_reloads_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.site("alpha")
    bench.start()
    began, release = threading.Event(), threading.Event()

    def waits(*_: object) -> None:
        began.set()
        release.wait(20)

    monkeypatch.setattr(reload, "load", waits)
    assert bench.watcher is not None
    bench.on_loop(bench.watcher.reload.begin)
    assert began.wait(20)
    try:
        bench.stop()
    finally:
        release.set()
