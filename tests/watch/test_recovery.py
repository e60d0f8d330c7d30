"""A watcher whose ledger was damaged: what it still holds goes on, what only the helper knows is learnt from it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest

from basestation_runner.errors import TemporaryError
from basestation_runner.watch import jobs as jobs_module
from basestation_runner.watch import watcher as watcher_module
from basestation_runner.watch.inbox import Inbox
from basestation_runner.watch.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

    from tests.watch.conftest import Bench


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "FIRST_DELAY", 0.01)


def wipe(bench: Bench) -> None:
    """Leave nothing in the ledger that could be read."""
    path = bench.directory / "state/ledger.db"
    path.write_bytes(os.urandom(path.stat().st_size))


def test_a_damaged_ledger_is_told_of_loudly_and_its_files_are_kept_together(bench: Bench) -> None:
    bench.site("alpha")
    bench.start()
    bench.stop()
    wipe(bench)
    bench.start()
    (line,) = bench.events("ledger was damaged: what could be read of it is in a new one")
    assert line["log_level"] == "error"
    assert line["kept_in"].startswith(f"{bench.directory}/state/damaged-")
    bench.until(lambda: bench.events("helper was asked for jobs that the ledger may have lost", told_of=0))
    bench.stop()
    bench.start()
    assert len(bench.events("helper was asked for jobs that the ledger may have lost")) == 1


def test_jobs_that_only_the_helper_knows_are_not_run_again_and_nothing_runs_beside_them(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run", n=1)
    bench.drop(rundir, "2.run", n=2)
    bench.until(lambda: len(bench.events("job started")) == 2)
    bench.stop()
    first, second = (sent["job_id"] for sent in bench.helper.dispatched)
    bench.helper.finish(second, exit_code=3)  # nobody hears of it
    wipe(bench)
    bench.start()
    bench.until(lambda: bench.events("job ended", job_id=second))
    bench.drop(rundir, "3.run", n=1)
    bench.drop(rundir, "4.run", n=3)
    bench.helper.on_dispatch = bench.helper.run
    bench.until(lambda: len(bench.events("job ended")) == 2)  # the fourth: it is of another queue
    assert len(bench.helper.dispatched) == 3
    bench.helper.finish(first)
    bench.until(lambda: len(bench.events("job ended")) == 4)
    assert len({sent["job_id"] for sent in bench.helper.dispatched}) == len(bench.helper.dispatched) == 4


def test_without_a_helper_nothing_is_taken_or_started_until_it_can_be_asked(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.stop()
    wipe(bench)
    bench.helper.kill()
    made = bench.start()
    path = bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("helper not reachable"))
    assert jobs_module.ASKING in bench.on_loop(lambda: made._status)
    assert path.exists()
    assert not bench.events("request accepted")
    bench.helper.start()
    bench.until(lambda: bench.events("job ended"))


def test_a_request_that_is_found_again_after_the_damage_is_not_run_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job was started, and its file was not removed yet when the ledger was lost."""
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    with monkeypatch.context() as patch:
        patch.setattr(Inbox, "acknowledge", lambda *_: [])
        bench.start()
        path = bench.drop(rundir, "1.run")
        bench.until(lambda: bench.events("job started"))
        bench.stop()
    assert path.exists()
    wipe(bench)
    bench.start()
    bench.until(lambda: bench.events("request is a job already"))
    bench.until(lambda: not path.exists())
    bench.helper.finish(bench.helper.dispatched[0]["job_id"])
    bench.until(lambda: bench.events("job ended"))
    assert len(bench.helper.dispatched) == 1


def test_requests_that_lie_in_a_rundir_when_the_ledger_was_lost_are_not_stale(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.stop()
    os.utime(bench.drop(rundir, "old.run"), (1e9, 1e9))
    wipe(bench)
    bench.start()
    bench.until(lambda: bench.events("job ended"))
    assert not (rundir / "stale").exists()


def test_waiting_jobs_that_can_be_read_run_once_and_in_their_order(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for number in range(6):
        accepted = len(bench.events("request accepted"))
        path = bench.drop(rundir, f"{number}.run")
        bench.until(partial(is_gone, path))
        assert len(bench.events("request accepted")) == accepted + 1
    bench.until(lambda: bench.events("job started"))
    bench.stop()
    with (bench.directory / "state/ledger.db").open("r+b") as file:
        file.write(bytes(4096))
    bench.helper.on_dispatch = bench.helper.run
    bench.helper.finish(bench.helper.dispatched[0]["job_id"])
    bench.start()
    bench.until(lambda: len(bench.events("job ended")) == 6)
    order = [sent["job_id"] for sent in bench.helper.dispatched]
    assert order == [line["job_id"] for line in bench.events("request accepted")]
    assert bench.states() == {f"{number}.run": "succeeded" for number in range(6)}


def is_gone(path: Path) -> bool:
    return not path.exists()


@pytest.mark.parametrize(
    "message",
    [
        {"event": "recalled"},
        {"event": "recalled", "job_id": "ab", "request": None},
        {"event": "recalled", "job_id": "ab", "request": {"site": "alpha"}},
        {
            "event": "recalled",
            "job_id": 7,
            "request": dict.fromkeys(("site", "application", "home", "mission_dir", "log_file", "script"), "x")
            | {"args": [], "additions": {}},
        },
        {
            "event": "recalled",
            "job_id": "ab",
            "request": dict.fromkeys(("site", "application", "home", "mission_dir", "log_file", "script"), "x")
            | {"args": [], "additions": []},
        },
    ],
    ids=["nothing", "no request", "a part", "a number", "a list"],
)
def test_nonsense_about_forgotten_jobs_changes_nothing(
    bench: Bench, message: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.stop()
    wipe(bench)

    def recall() -> None:
        bench.helper.say(message)
        bench.helper.say({"event": "recalled all"})

    monkeypatch.setattr(bench.helper, "recall", recall)
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.events("job ended"))
    assert len(bench.states()) == 1


def test_a_ledger_that_turns_out_to_be_damaged_ends_the_watcher_and_the_next_one_recovers(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.helper.settled)
    assert bench.watcher is not None
    bench.on_loop(lambda: overwrite_all(bench))
    path = bench.drop(rundir, "2.run", n=2)
    with pytest.raises(TemporaryError, match="the ledger is damaged"):
        bench._running.result(20)
    bench.watcher = None
    assert path.exists(), "what was not durable is not acknowledged"
    bench.start()
    bench.until(lambda: len(bench.events("job ended")) == 2)
    assert not path.exists()


def overwrite_all(bench: Bench) -> None:
    """Damage what is open, beneath SQLite, and see to it that it is read again."""
    assert bench.watcher is not None
    database = bench.watcher.ledger._database
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    database.execute("PRAGMA cache_size = 0")
    path = bench.directory / "state/ledger.db"
    with path.open("r+b") as file:
        file.write(os.urandom(path.stat().st_size))


def test_old_jobs_are_forgotten_by_and_by(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "FIRST_FORGETTING", 0.01)
    monkeypatch.setattr(watcher_module, "FORGETTING_PAUSE", 0.01)
    monkeypatch.setattr(watcher_module, "FORGOTTEN_AT_ONCE", 2)
    monkeypatch.setattr("basestation_runner.watch.ledger.KEPT_ANYWAY", 1)
    bench.site("alpha")
    make_old_jobs(bench.directory / "state", 9)
    bench.start()
    bench.until(lambda: len(bench.states()) == 1)


def make_old_jobs(state: Path, count: int) -> None:
    """Make a ledger of jobs that ended in 1970."""
    Ledger(state).close()
    with closing(sqlite3.connect(state / "ledger.db")) as database, database:
        for number in range(count):
            database.execute(
                "INSERT INTO jobs (id, site, application, script, home, mission_dir, log_file, args, submitter,"
                " request, state, accepted_at, ended_at)"
                " VALUES (?, 'alpha', '', '', '', '', '', '[]', 0, ?, 'succeeded', 1, 2)",
                (f"{number}", f"{number}.run"),
            )
    shutil.chown(state / "ledger.db", os.geteuid())
