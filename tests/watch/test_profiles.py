"""Requests that add to their applications' profiles, and what becomes of accepted ones when the profiles change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from basestation_runner.config.parts import Host, Limits
from basestation_runner.config.resreq import parse

if TYPE_CHECKING:
    from typing import Any

    from basestation_runner.watch.watcher import Watcher
    from tests.watch.conftest import Bench

FIRST = "/home/sg123 /home/sg123/m /home/sg123/m/log Base.py\n"


def reasons(bench: Bench, made: Watcher) -> Any:  # noqa: ANN401 - what the loop's call returns
    return bench.on_loop(lambda: [made.jobs.reason(job) for job in made.jobs._dispatcher.jobs()])


def test_the_helper_is_sent_what_the_request_adds_and_the_application_that_was_recorded(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run", FIRST + "application: base\nenv: {CASE: '7'}\ngroups: [a]\n")
    bench.drop(rundir, "2.run", FIRST)
    bench.until(lambda: len(bench.events("job ended")) == 2)
    sent = {bool(message["additions"]): message for message in bench.helper.dispatched}
    assert sent[True]["additions"] == {"env": {"CASE": "7"}, "groups": ["a"]}
    assert sent[False]["additions"] == {}
    assert {message["application"] for message in sent.values()} == {"base"}


def test_a_request_that_its_profile_does_not_allow_is_set_aside_with_the_reason(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run", FIRST + "tasks: 2\n")
    bench.until(lambda: bench.events("request rejected"))
    (line,) = bench.events("request rejected")
    assert line["reason"] == "tasks: application base runs with 1"
    (reason,) = (rundir / "rejected").glob("*.reason")
    assert "tasks: application base runs with 1" in reason.read_text()
    assert not bench.helper.dispatched


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("gone", "application base is not defined"),
        ("lower", "limits.runtime: 2h is above the 1h of application base"),
        ("other", "application base does not run Base.py at this site any more"),
    ],
)
def test_an_accepted_job_follows_the_present_profile(bench: Bench, change: str, reason: str) -> None:
    bench.helper.kill()
    rundir = bench.site("alpha", applications=("base", "early-gps"))
    bench.start()
    bench.drop(rundir, "1.run", FIRST + "limits: {runtime: 2h}\n")
    bench.until(lambda: bench.events("request accepted"))
    bench.stop()
    before = dict(bench.applications)
    if change == "gone":
        del bench.applications["base"]
        bench.site("alpha", make=False, applications=("early-gps",))
    elif change == "lower":
        bench.applications["base"] = evolve(before["base"], limits=Limits(runtime=3600))
    else:
        bench.applications["base"] = evolve(before["base"], scripts=("Other.py",))
    bench.helper.start()
    made = bench.start()
    bench.until(lambda: bench.events("helper reachable"))
    assert reasons(bench, made) == [reason]
    assert not bench.helper.dispatched
    bench.stop()
    bench.applications = before
    bench.site("alpha", make=False)
    bench.start()
    bench.until(lambda: bench.events("job ended"))
    assert bench.helper.dispatched[0]["additions"] == {"limits": {"runtime": "2h"}}


def test_what_a_request_adds_comes_back_from_the_helper_when_the_ledger_is_lost(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run", FIRST + "env: {CASE: '7'}\n")
    bench.until(lambda: bench.events("job started"))
    bench.stop()
    ledger = bench.directory / "state/ledger.db"
    ledger.write_bytes(b"x" * ledger.stat().st_size)
    made = bench.start()
    bench.until(lambda: bench.events("helper was asked for jobs that the ledger may have lost", told_of=1))
    (job,) = bench.on_loop(lambda: list(made.jobs._dispatcher.jobs()))
    assert bench.on_loop(lambda: made.jobs._ledger.dispatch(job.seq)).additions == {"env": {"CASE": "7"}}


@pytest.mark.parametrize(
    ("limit", "code", "signal", "state"),
    [
        ("runtime", 0, None, "timed_out"),
        ("runtime", None, 15, "timed_out"),
        ("memory", None, 9, "out_of_memory"),
        (None, None, 9, "failed"),
        (None, 0, None, "succeeded"),
        (["runtime"], 0, None, "succeeded"),
        ("nonsense", 1, None, "failed"),
    ],
)
def test_a_job_that_reached_a_limit_has_a_state_of_its_own(
    bench: Bench, limit: object, code: int | None, signal: int | None, state: str
) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job started"))
    bench.helper.finish(bench.helper.dispatched[0]["job_id"], exit_code=code, signal=signal, limit=limit)
    bench.until(lambda: bench.events("job ended"))
    assert bench.states() == {"1.run": state}
    bench.until(lambda: len(bench.helper.settled) == 1)


def test_jobs_take_turns_with_what_the_host_offers_also_after_a_restart(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.host = Host(resources=(("license_foam", 1),))
    bench.applications["base"] = evolve(bench.applications["base"], resreq=parse("rusage[license_foam=1]"))
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for number in range(3):
        bench.drop(rundir, f"{number}.run", n=number)
    bench.until(lambda: len(bench.events("request accepted")) == 3 and bench.events("job started"))
    bench.stop()
    made = bench.start()
    bench.until(lambda: bench.events("helper reachable"))
    assert reasons(bench, made)[1:] == ["it needs 1 license_foam, of which 1 of 1 are in use"] * 2
    for ended in range(3):
        bench.until(lambda: len(bench.helper.dispatched) == ended + 1)  # noqa: B023 - called at once
        bench.helper.finish(bench.helper.dispatched[ended]["job_id"])
    bench.until(lambda: len(bench.events("job ended")) == 3)
