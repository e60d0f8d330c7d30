"""The helper goes, comes, answers late, twice, never, or nonsense."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner import protocol, repeats
from basestation_runner.watch import helper as helper_module
from basestation_runner.watch import jobs as jobs_module

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from tests.watch.conftest import Bench


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(helper_module, "PATIENCE", 1.0)


def test_jobs_wait_for_a_helper_that_comes_late_and_start_at_once_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause between two tries is long: what wakes the watcher is the socket's appearance."""
    monkeypatch.setattr(helper_module, "FIRST_DELAY", 1000)
    monkeypatch.setattr(helper_module, "LONGEST_DELAY", 1000)
    bench.helper.kill()
    bench.socket = bench.directory / "run/baserunner/helper.sock"
    bench.helper.socket = bench.socket
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("request accepted"))
    bench.socket.parent.mkdir(parents=True)
    bench.helper.start()
    bench.until(lambda: bench.events("job ended"))
    assert len(bench.events("helper not reachable")) == 1
    assert len(bench.events("helper reachable")) == 1


def test_an_hour_without_a_helper_costs_a_few_lines_of_log(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tries as there are in an hour, with jobs that wait."""
    tries = 0
    real = helper_module.Helper._try_to_connect

    def counted(helper: helper_module.Helper) -> Coroutine[Any, Any, None]:
        nonlocal tries
        tries += 1
        return real(helper)

    monkeypatch.setattr(helper_module.Helper, "_try_to_connect", counted)
    monkeypatch.setattr(helper_module, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(helper_module, "LONGEST_DELAY", 0.001)
    bench.helper.kill()
    rundir = bench.site("alpha")
    bench.start()
    for number in range(20):
        bench.drop(rundir, f"{number}.run", n=number)
    bench.until(lambda: len(bench.events("request accepted")) == 20)
    before = len(bench.capture.entries)
    bench.until(lambda: tries > 3600 / 5)
    assert len(bench.capture.entries) - before <= 2
    bench.helper.start()
    bench.until(lambda: len(bench.events("job ended")) == 20)


def test_a_helper_that_is_killed_with_jobs_running_and_comes_back_loses_none(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for number in range(6):
        bench.drop(rundir, f"{number}.run", n=number % 3)
    bench.until(lambda: len(bench.events("job started")) == 3)
    bench.helper.kill()
    bench.until(lambda: bench.events("helper not reachable"))
    first, second, third = (sent["job_id"] for sent in bench.helper.dispatched)
    bench.helper.finish(first)  # nobody hears of it now
    bench.helper.start()
    bench.until(lambda: bench.events("job ended", job_id=first))
    bench.until(lambda: len(bench.helper.dispatched) == 4)  # the queue of the first goes on
    assert set(bench.helper.inquired) >= {first, second, third}
    bench.helper.on_dispatch = bench.helper.run
    for job_id in list(bench.helper.running):
        bench.helper.finish(job_id)
    bench.until(lambda: len(bench.events("job ended")) == 6)
    assert len(bench.helper.dispatched) == 6
    assert len(bench.events("helper not reachable")) == 1


def test_a_dispatch_that_was_lost_is_sent_again_with_the_same_id(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = lambda _: None  # read, and the helper dies before it does anything
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.helper.dispatched)
    bench.helper.kill()
    bench.helper.on_dispatch = bench.helper.run
    bench.helper.start()
    bench.until(lambda: bench.events("job ended"))
    assert len({sent["job_id"] for sent in bench.helper.dispatched}) == 1


def test_a_postponed_job_keeps_its_place_and_is_tried_again_with_growing_delay(bench: Bench) -> None:
    rundir = bench.site("alpha")
    times: list[float] = []

    def not_now(message: dict[str, Any]) -> None:
        if message["mission_dir"].endswith("2"):
            bench.helper.run(message)
            return
        times.append(time.monotonic())
        if len(times) < 6:
            reason = "the directory service does not answer"
            bench.helper.say({"event": "temporary", "job_id": message["job_id"], "reason": reason})
        else:
            bench.helper.run(message)

    bench.helper.on_dispatch = not_now
    bench.start()
    bench.drop(rundir, "1.run", n=1)
    bench.drop(rundir, "2.run", n=1)
    bench.drop(rundir, "3.run", n=2)
    bench.until(lambda: len(bench.events("job ended")) == 3)
    by_id = {entry["job_id"]: entry["request"] for entry in bench.events("request accepted")}
    order = [by_id[entry["job_id"]] for entry in bench.events("job ended")]
    assert order.index("1.run") < order.index("2.run")
    pauses = [after - before for before, after in pairwise(times[:6])]
    assert all(pause >= 0.01 * 2**count * 0.9 for count, pause in enumerate(pauses))
    (line,) = bench.events("job postponed")
    assert line["reason"] == "the directory service does not answer"


def test_the_reason_of_a_postponed_job_is_the_helpers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "FIRST_DELAY", 1000)
    monkeypatch.setattr(jobs_module, "LONGEST_DELAY", 1000)
    bench.helper.on_dispatch = lambda sent: bench.helper.say(
        {"event": "temporary", "job_id": sent["job_id"], "reason": "digests differ"}
    )
    rundir = bench.site("alpha")
    made = bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job postponed"))
    assert bench.on_loop(lambda: [made.jobs.reason(job) for job in made.jobs._dispatcher.jobs()]) == ["digests differ"]
    bench.drop(rundir, "2.run")  # a new one of the same queue does not hurry the first
    bench.until(lambda: len(bench.events("request accepted")) == 2)
    assert len(bench.helper.dispatched) == 1


def test_an_account_that_is_not_found_is_looked_up_again_before_its_job_is_refused(
    bench: Bench,
) -> None:
    bench.absent_patience = 0.2
    bench.helper.on_dispatch = lambda sent: bench.helper.say(
        {"event": "temporary", "job_id": sent["job_id"], "reason": "account a is not known", "absent": True}
    )
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job refused"))
    assert len(bench.helper.dispatched) > 1
    assert bench.events("job refused")[0]["reason"] == "account a is not known"


def test_absence_counts_only_while_it_lasts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "LONGEST_DELAY", 0.02)
    bench.absent_patience = 0.05
    rounds = 20

    def answer(sent: dict[str, Any]) -> None:
        count = len(bench.helper.dispatched)
        if count > rounds:
            bench.helper.run(sent)
        else:
            bench.helper.say({"event": "temporary", "job_id": sent["job_id"], "reason": "no", "absent": count % 2 == 0})

    bench.helper.on_dispatch = answer
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job ended"))
    assert not bench.events("job refused")


def test_a_reason_that_repeats_is_logged_once_and_then_summed_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "SUMMED_FOR", 0.2)
    monkeypatch.setattr(jobs_module, "LONGEST_DELAY", 0.02)
    bench.helper.on_dispatch = lambda sent: bench.helper.say(
        {"event": "temporary", "job_id": sent["job_id"], "reason": "digests differ"}
    )
    rundir = bench.site("alpha")
    bench.start()
    for number in range(8):
        bench.drop(rundir, f"{number}.run", n=number)
    bench.until(lambda: bench.events("jobs postponed"))
    assert len(bench.events("job postponed")) == 1
    assert bench.events("jobs postponed")[0]["times"] >= 8


@pytest.mark.parametrize(("event", "state"), [("refused", "refused"), ("lost", "lost")], ids=["refused", "lost"])
def test_a_job_that_is_given_up_says_why_and_its_queue_goes_on(bench: Bench, event: str, state: str) -> None:
    rundir = bench.site("alpha")

    def give_up(message: dict[str, Any]) -> None:
        if event == "lost":
            bench.helper.hold(message)
        bench.helper.say({"event": event, "job_id": message["job_id"], "reason": "the log is a FIFO"})
        bench.helper.on_dispatch = bench.helper.run

    bench.helper.on_dispatch = give_up
    bench.start()
    bench.drop(rundir, "1.run")
    bench.drop(rundir, "2.run")
    bench.until(lambda: bench.events("job ended"))
    assert bench.states() == {"1.run": state, "2.run": "succeeded"}
    (line,) = bench.events(f"job {state}")
    assert line["reason"] == "the log is a FIFO"
    assert line["log_level"] == "warning"
    bench.until(lambda: len(bench.helper.settled) == 2)


@pytest.mark.parametrize(
    "record",
    [
        None,
        {},
        "0",
        {"exit_code": None, "signal": None},
        {"exit_code": "0"},
        {"exit_code": True},
        {"exit_code": 1 << 99},
    ],
)
def test_an_exit_code_that_is_not_known_is_lost_and_never_0(bench: Bench, record: object) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = lambda sent: bench.helper.say(
        {"event": "ended", "job_id": sent["job_id"], "record": record}
    )
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job lost"))
    assert bench.states() == {"1.run": "lost"}


def test_an_end_that_is_told_twice_counts_once_and_is_settled_again(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.helper.settled)
    job_id = bench.helper.dispatched[0]["job_id"]
    bench.helper.finish(job_id, exit_code=3)
    bench.until(lambda: bench.helper.settled == [job_id, job_id])
    assert bench.states() == {"1.run": "succeeded"}
    assert len(bench.events("job ended")) == 1


@pytest.mark.parametrize(
    "message",
    [
        {"event": "ended", "job_id": "never-seen", "record": {"exit_code": 0}},
        {"event": "ended"},
        {"event": "started", "job_id": 7},
        {"event": "dances"},
        {},
    ],
)
def test_nonsense_about_jobs_is_logged_and_changes_nothing(bench: Bench, message: dict[str, Any]) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.helper.say(message)
    bench.until(lambda: bench.events("helper speaks of an unknown job"))
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job ended"))


@pytest.mark.parametrize("event", ["refused", "temporary", "dances"])
def test_a_running_job_of_which_the_helper_says_nonsense_goes_on(bench: Bench, event: str) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job started"))
    job_id = bench.helper.dispatched[0]["job_id"]
    bench.helper.say({"event": event, "job_id": job_id, "reason": "no"})
    bench.until(lambda: bench.events("helper's word makes no sense"))
    bench.helper.finish(job_id)
    bench.until(lambda: bench.events("job ended"))
    assert len(bench.helper.dispatched) == 1


def test_a_job_that_ran_and_of_which_the_helper_has_no_mark_is_lost(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job started"))
    bench.helper.kill()
    bench.helper.running.clear()
    bench.helper.start()
    bench.until(lambda: bench.events("job lost"))
    assert bench.events("job lost")[0]["reason"] == "it ran, and the helper has no mark of it any more"


def test_a_late_word_that_a_postponed_job_runs_after_all_counts(bench: Bench) -> None:
    rundir = bench.site("alpha")

    def both(message: dict[str, Any]) -> None:
        bench.helper.say({"event": "temporary", "job_id": message["job_id"], "reason": "no"})
        bench.helper.hold(message)

    bench.helper.on_dispatch = both
    bench.start()
    bench.drop(rundir, "1.run")
    bench.drop(rundir, "2.run")
    bench.until(lambda: bench.events("job started"))
    bench.helper.on_dispatch = bench.helper.run
    bench.helper.finish(bench.helper.dispatched[0]["job_id"])
    bench.until(lambda: len(bench.events("job ended")) == 2)
    assert bench.states() == {"1.run": "succeeded", "2.run": "succeeded"}


ODD = {
    "garbage": b"GET / HTTP/1.0\r\n\r\n",
    "huge": b"\xff\xff\xff\xff",
    "another version": protocol.encode({"reply": "hello", "ok": True, "version": 99}),
    "refusal": protocol.encode({"ok": False, "error": "uid 7 is not the watcher's"}),
    "silence": b"",
}


@pytest.fixture
def odd_peer(bench: Bench, request: pytest.FixtureRequest) -> Iterator[str]:
    """Put something at the helper's socket that is no helper."""
    bench.helper.kill()
    bench.socket.unlink()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ODD[request.param])
        while await reader.read(1024):
            pass
        writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_unix_server(serve, str(bench.socket))

    server = asyncio.run_coroutine_threadsafe(start(), bench.loop).result(10)
    yield request.param
    bench.on_loop(server.close)


@pytest.mark.parametrize("odd_peer", ODD, indirect=True)
def test_what_is_no_helper_is_left_and_the_helper_is_found_when_it_is_back(bench: Bench, odd_peer: str) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("helper not reachable"))
    reason = bench.events("helper not reachable")[0]["reason"]
    expected = {
        "garbage": "a frame of",
        "huge": "a frame of",
        "another version": "version 99",
        "refusal": "uid 7 is not",
        "silence": "does not answer",
    }
    assert expected[odd_peer] in reason
    bench.socket.unlink()
    bench.helper.start()
    bench.until(lambda: bench.events("job ended"))
    assert len(bench.events("helper not reachable")) == 1


def test_after_a_reboot_what_was_running_is_lost_unless_its_end_was_recorded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for number in range(3):
        bench.drop(rundir, f"{number}.run", n=number)
    bench.until(lambda: len(bench.events("job started")) == 3)
    bench.drop(rundir, "starting.run", n=7)
    bench.helper.on_dispatch = lambda _: None
    bench.stop()
    bench.helper.kill()
    by_request = {entry["request"]: entry["job_id"] for entry in bench.events("request accepted")}
    bench.helper.finish(by_request["0.run"])
    bench.helper.running.clear()
    monkeypatch.setattr("basestation_runner.watch.watcher.boot_id", lambda: "another boot")
    bench.helper.start()
    bench.helper.on_dispatch = bench.helper.run
    bench.start()
    bench.until(lambda: len(bench.events("job lost")) >= 2)
    bench.until(lambda: "running" not in bench.states().values() and "starting" not in bench.states().values())
    states = bench.states()
    assert (states["0.run"], states["1.run"], states["2.run"]) == ("succeeded", "lost", "lost")
    assert {entry["reason"] for entry in bench.events("job lost")} == {"the host was restarted while it ran"}


def test_jobs_of_a_site_or_application_that_is_gone_wait_and_say_so(bench: Bench) -> None:
    bench.helper.kill()
    alpha, beta = bench.site("alpha"), bench.site("beta")
    bench.start()
    bench.drop(alpha, "1.run")
    bench.drop(beta, "2.run")
    bench.until(lambda: len(bench.events("request accepted")) == 2)
    bench.stop()
    del bench.sites["alpha"]
    bench.site("beta", make=False, applications=("early-gps",))
    bench.helper.start()
    made = bench.start()
    bench.until(lambda: bench.events("helper reachable"))
    assert bench.on_loop(lambda: {job.site: made.jobs.reason(job) for job in made.jobs._dispatcher.jobs()}) == {
        "alpha": "site alpha is not configured",
        "beta": "application base is not one that site beta may use: early-gps",
    }
    assert not bench.helper.dispatched
    bench.stop()
    bench.site("alpha", make=False)
    bench.site("beta", make=False)
    bench.start()
    bench.until(lambda: len(bench.events("job ended")) == 2)
