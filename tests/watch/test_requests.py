"""From a file in a rundir to a job that ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from basestation_runner.watch import watcher
from basestation_runner.watch.inbox import Inbox
from basestation_runner.watch.ledger import LedgerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.watch.conftest import Bench

SAMPLES = sorted((Path(__file__).parents[1] / "samples/requests").glob("*.run"))


def ended(bench: Bench, count: int) -> Callable[[], bool]:
    return lambda: len(bench.events("job ended")) == count


def path_gone(path: Path) -> Callable[[], bool]:
    return lambda: not path.exists()


def test_a_dropped_request_is_committed_dispatched_and_acknowledged(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    path = bench.drop(rundir, "1.run", script="GliderEarlyGPS.py")
    bench.until(lambda: bench.events("job ended") and not path.exists())
    (sent,) = bench.helper.dispatched
    assert sent["site"] == "alpha"
    assert sent["application"] == "early-gps"
    assert sent["script"] == "GliderEarlyGPS.py"
    assert sent["args"] == ["--verbose"]
    assert sent["queue_length"] == 0
    bench.until(lambda: bench.helper.settled == [sent["job_id"]])
    assert bench.states() == {"1.run": "succeeded"}
    (accepted,) = bench.events("request accepted")
    assert (accepted["site"], accepted["request"], accepted["script"]) == ("alpha", "1.run", "GliderEarlyGPS.py")
    assert bench.events("job started", site="alpha", job_id=sent["job_id"], pid=4711)


def test_the_completions_log_has_one_line_for_each_finished_job(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job started"))
    bench.helper.finish(bench.helper.dispatched[0]["job_id"], exit_code=None, signal=9)
    bench.until(lambda: bench.events("job ended"))
    bench.stop()
    (line,) = (bench.directory / "completions.log").read_text().splitlines()
    summary = json.loads(line)
    assert summary["site"] == "alpha"
    assert summary["script"] == "Base.py"
    assert summary["job_id"] == bench.helper.dispatched[0]["job_id"]
    assert summary["returncode"] == -9
    assert summary["duration"] == pytest.approx(1, abs=0.2)
    assert summary["peak_memory_bytes"] == 2048 * 1024
    assert (summary["cpu_user_seconds"], summary["cpu_system_seconds"]) == (0.5, 0.25)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_real_requests_are_dispatched_as_they_were_written(bench: Bench, sample: Path) -> None:
    rundir = bench.site("alpha")
    bench.start()
    (rundir / sample.name).write_text(sample.read_text())  # in place, as the glider's scripts write
    bench.until(lambda: bench.helper.dispatched)
    (sent,) = bench.helper.dispatched
    words = [sent[field] for field in ("home", "mission_dir", "log_file", "script")] + sent["args"]
    assert words == sample.read_text().split()
    bench.until(lambda: not (rundir / sample.name).exists())


def test_a_file_renamed_into_the_rundir_from_elsewhere_is_taken(bench: Bench) -> None:
    rundir = bench.site("alpha")
    elsewhere = bench.directory / "elsewhere"
    elsewhere.mkdir()
    bench.start()
    bench.drop(elsewhere, "1.run").rename(rundir / "1.run")
    bench.until(lambda: bench.events("job ended"))


def test_a_file_that_is_still_being_written_is_not_taken(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    with (rundir / "1.run").open("w") as file:
        file.write("/home/sg123 /home/sg123/m ")
        file.flush()
        bench.drop(rundir, "2.run")
        bench.until(lambda: bench.events("job ended"))
        file.write("/home/sg123/m/log Base.py\n")
    bench.until(lambda: len(bench.events("job ended")) == 2)
    assert not bench.events("request rejected")


def test_files_that_were_there_before_the_start_are_taken_by_age(bench: Bench) -> None:
    rundir = bench.site("alpha")
    for age, name in ((3, "c.run"), (1, "z.run"), (2, "a.run")):
        path = bench.drop(rundir, name)
        os.utime(path, (0, path.stat().st_mtime + age))
    bench.start()
    bench.until(lambda: len(bench.events("job ended")) == 3)
    assert [entry["request"] for entry in bench.events("request accepted")] == ["z.run", "a.run", "c.run"]


def test_a_file_found_half_written_is_taken_only_when_it_has_rested(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.timing = evolve(bench.timing, settle=0.3)
    path = rundir / "1.run"
    path.write_text("/home/sg123 /home/sg123/m /home")
    looked: list[str] = []
    real = Inbox.look_again

    def look_again(inbox: Inbox, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        if not looked:  # written without being closed: no event tells of it
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, b"/sg123/m/log Base.py\n")
            descriptors.append(descriptor)
        looked.append("looked")
        return real(inbox, *args, **kwargs)

    descriptors: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inbox, "look_again", look_again)
        bench.start()
        bench.until(lambda: bench.events("job ended"))
    os.close(descriptors[0])
    assert len(looked) > 1
    assert bench.helper.dispatched[0]["log_file"] == "/home/sg123/m/log"


def test_what_is_older_at_the_first_activation_is_stale_but_not_at_a_later_one(bench: Bench) -> None:
    rundir = bench.site("alpha")
    os.utime(bench.drop(rundir, "old.run"), (1e9, 1e9))
    bench.drop(rundir, "new.run")
    bench.start()
    bench.until(lambda: bench.events("job ended"))
    (line,) = bench.events("stale requests set aside")
    assert line["requests"] == ["old.run"]
    assert len(list((rundir / "stale").iterdir())) == 1
    bench.stop()
    os.utime(bench.drop(rundir, "outage.run"), (1e9, 1e9))
    bench.start()
    bench.until(lambda: len(bench.events("job ended")) == 2)
    assert bench.states() == {"new.run": "succeeded", "outage.run": "succeeded"}


def test_consumed_requests_are_kept_in_the_archive_if_the_site_wants_it(bench: Bench) -> None:
    rundir = bench.site("alpha", archive=True)
    bench.start()
    text = bench.drop(rundir, "1.run").read_text()
    bench.until(lambda: (rundir / "archive").is_dir() and list((rundir / "archive").iterdir()))
    bench.until(lambda: bench.helper.dispatched)
    (kept,) = (rundir / "archive").iterdir()
    assert kept.name == f"1.{bench.helper.dispatched[0]['job_id']}"
    assert kept.read_text() == text


def test_the_same_text_dropped_twice_runs_twice(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    for count in (1, 2):
        path = bench.drop(rundir, "1.run")
        bench.until(path_gone(path))
        bench.until(ended(bench, count))


def test_a_file_of_which_several_events_tell_runs_once(bench: Bench) -> None:
    rundir = bench.site("alpha")
    release = bench.hold_up(Inbox, "take")
    bench.start()
    path = bench.drop(rundir, "1.run")
    for _ in range(5):
        with path.open("a"):
            pass
        path.rename(rundir / "2.run").rename(path)
    release.set()
    bench.drop(rundir, "last.run", n=2)
    bench.until(lambda: len(bench.events("job ended")) == 2)
    assert [entry["request"] for entry in bench.events("request accepted")] == ["1.run", "last.run"]


def test_a_request_exchanged_before_it_is_acknowledged_is_a_second_one(bench: Bench) -> None:
    rundir = bench.site("alpha")
    release = bench.hold_up(Inbox, "acknowledge")
    bench.start()
    bench.drop(rundir, "1.run", n=1)
    bench.until(lambda: bench.events("request accepted"))
    bench.drop(rundir, "1.run", n=2)
    release.set()
    bench.until(lambda: len(bench.events("job ended")) == 2)
    assert [sent["mission_dir"] for sent in bench.helper.dispatched] == ["/home/sg123/mission1", "/home/sg123/mission2"]
    bench.until(lambda: not list(rundir.glob("*.run")))


def test_a_faulty_request_is_set_aside_and_hurts_no_other_one(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    (rundir / "1.run").symlink_to("/etc/passwd")
    os.mkfifo(rundir / "2.run")
    (rundir / "3.run").mkdir()
    bench.drop(rundir, "4.run", text="/too /few /words\n")
    bench.drop(rundir, "5.run", text="a\x1b[31m\n[beta] request accepted\n")
    bench.drop(rundir, "6.run")
    bench.until(lambda: bench.events("job ended") and len(bench.events("request rejected")) >= 2)
    for site in bench.sites_of_watcher:  # no event tells of the first three
        bench.on_loop(site.doubt)
    bench.until(lambda: len(bench.events("request rejected")) == 5)
    assert not list(rundir.glob("*.run"))
    assert len(list((rundir / "rejected").iterdir())) == 10
    assert bench.states() == {"6.run": "succeeded"}


def test_a_request_that_vanishes_after_its_event_is_nothing(bench: Bench) -> None:
    rundir = bench.site("alpha")
    release = bench.hold_up(Inbox, "take")
    bench.start()
    bench.drop(rundir, "1.run").unlink()
    release.set()
    bench.drop(rundir, "2.run")
    bench.until(lambda: bench.events("job ended"))
    assert bench.states() == {"2.run": "succeeded"}


@pytest.mark.parametrize("swap", ["fifo", "link to another site's request"])
def test_a_request_swapped_after_its_event_is_not_followed_and_nothing_hangs(bench: Bench, swap: str) -> None:
    rundir, other = bench.site("alpha"), bench.site("beta")
    release = bench.hold_up(Inbox, "take")
    secret = bench.drop(other, "hidden.txt")
    bench.start()
    path = bench.drop(rundir, "1.run")
    path.unlink()
    if swap == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(secret)
    release.set()
    bench.until(lambda: bench.events("request rejected", site="alpha"))
    bench.drop(rundir, "2.run")
    bench.until(lambda: bench.events("job ended"))
    assert bench.states() == {"2.run": "succeeded"}
    assert secret.exists()


def test_no_more_than_the_most_are_accepted_and_the_rest_waits_in_the_rundir(bench: Bench) -> None:
    bench.max_queued = 3
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for number in range(20):
        bench.drop(rundir, f"{number:02}.run")
    bench.until(lambda: len(bench.events("request accepted")) == 4 and len(list(rundir.glob("*.run"))) == 16)
    bench.helper.on_dispatch = bench.helper.run
    bench.helper.finish(bench.helper.dispatched[0]["job_id"])
    bench.until(lambda: len(bench.events("job ended")) == 20)
    assert [entry["request"] for entry in bench.events("request accepted")] == [f"{n:02}.run" for n in range(20)]


def test_a_thousand_requests_at_once_run_once_each(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    for number in range(1000):
        bench.drop(rundir, f"{number}.run", n=number % 50)
    bench.until(lambda: len(bench.events("job ended")) == 1000)
    assert set(bench.states().values()) == {"succeeded"}
    assert len(bench.states()) == 1000
    assert len(bench.helper.dispatched) == 1000
    bench.until(lambda: not list(rundir.glob("*.run")))


@pytest.mark.parametrize("step", ["take", "acknowledge", "scan"])
def test_an_unforeseen_error_in_one_sites_task_leaves_the_others_alone(bench: Bench, step: str) -> None:
    rundir, other = bench.site("alpha"), bench.site("beta")
    failing = [True]
    real: Callable[..., Any] = getattr(Inbox, step)

    def fails(inbox: Inbox, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        if failing and inbox._rundir.site.name == "alpha":
            raise ZeroDivisionError("unforeseen")
        return real(inbox, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inbox, step, fails)
        bench.start()
        bench.drop(rundir, "1.run")
        bench.drop(other, "1.run")
        bench.until(lambda: bench.events("job ended", site="beta"))
        bench.until(lambda: bench.events("site pending", site="alpha"))
        failing.clear()
        bench.until(lambda: bench.events("job ended", site="alpha") and not list(rundir.glob("*.run")))
    assert len(bench.helper.dispatched) == 2


def test_while_the_ledger_cannot_be_written_nothing_is_acknowledged_or_started_and_it_recovers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "FIRST_RETRY", 0.01)
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    made = bench.start()
    bench.drop(rundir, "0.run", n=0)
    bench.until(lambda: bench.events("job started"))
    real, tries = made.ledger.commit, []

    def fails() -> list[Callable[[], None]]:
        if made.ledger.is_dirty:
            tries.append("commit")
            raise LedgerError("database or disk is full")
        return []

    monkeypatch.setattr(made.ledger, "commit", fails)
    bench.helper.finish(bench.helper.dispatched[0]["job_id"])
    paths = [bench.drop(rundir, f"{number}.run", n=number) for number in (1, 2)]
    bench.until(lambda: len(tries) > 3)
    assert all(path.exists() for path in paths)
    assert len(bench.helper.dispatched) == 1
    assert not bench.helper.settled
    assert len(bench.events("ledger cannot be written: nothing is accepted or started")) == 1
    bench.helper.on_dispatch = bench.helper.run
    monkeypatch.setattr(made.ledger, "commit", real)
    bench.until(lambda: len(bench.events("job ended")) == 3 and not any(path.exists() for path in paths))
    assert bench.events("ledger can be written again")
    assert len(bench.helper.dispatched) == 3
    bench.drop(rundir, "3.run", n=3)
    bench.until(lambda: len(bench.events("job ended")) == 4)
