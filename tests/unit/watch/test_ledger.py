"""The ledger on real files: what is committed is there again, what is not is not."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.watch import ledger as ledger_module
from basestation_runner.watch import schema
from basestation_runner.watch.ledger import KEPT_DAYS, Intake, Ledger, LedgerError, NewJob
from basestation_runner.watch.states import State

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = b"a\xff b.run"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def ledger(directory: Path) -> Iterator[Ledger]:
    made = Ledger(directory)
    yield made
    made.close()


def new(job_id: str, *, site: str = "alpha", name: str = "1.run") -> tuple[NewJob, Intake]:
    job = NewJob(
        job_id=job_id,
        site=site,
        application="base",
        script="Base.py",
        home="/home/sg123",
        mission_dir="/home/sg123/m",
        log_file="/home/sg123/m/log",
        args=("--a", "b c"),
        submitter=4294967294,
        request=name,
    )
    return job, Intake(job_id=job_id, site=site, name=name, rundir=(1 << 64) - 1, identity=b"\0" * 32)


def test_what_was_committed_is_there_again(directory: Path) -> None:
    ledger = Ledger(directory)
    job, intake = new("a", name=os.fsdecode(NAME))
    seq = ledger.accept(job, intake, now=1.0)
    ledger.first_active("alpha", now=1.0)
    ledger.commit()
    ledger.close()
    ledger = Ledger(directory)
    (known,) = ledger.unfinished()
    assert (known.seq, known.job_id, known.state) == (seq, "a", State.QUEUED)
    assert list(ledger.intake("alpha")) == [intake]
    assert ledger.was_active("alpha")
    assert not ledger.was_active("beta")
    sent = ledger.dispatch(seq)
    assert (sent.args, sent.log_file) == (["--a", "b c"], "/home/sg123/m/log")
    ledger.close()


def test_what_a_request_adds_is_kept_with_its_job(directory: Path) -> None:
    ledger = Ledger(directory)
    additions = {"env": {"CASE": "\u00e4\n"}, "groups": ["a", 5]}
    job, intake = new("a")
    seqs = [ledger.accept(evolve(job, additions=additions), intake, now=1.0), ledger.accept(*new("b"), now=1.0)]
    ledger.commit()
    ledger.close()
    ledger = Ledger(directory)
    assert [known.additions for known in ledger.unfinished()] == [additions, {}]
    assert [ledger.dispatch(seq).additions for seq in seqs] == [additions, {}]
    assert ledger.recovery is None
    ledger.close()


@pytest.mark.parametrize("broken", ["{", "[]", "null", ""])
def test_additions_that_make_no_sense_are_damage(directory: Path, broken: str) -> None:
    ledger = Ledger(directory)
    ledger.accept(*new("a"), now=1.0)
    ledger.commit()
    ledger.close()
    with closing(sqlite3.connect(directory / "ledger.db")) as database, database:
        database.execute("UPDATE jobs SET additions = ?", (broken,))
    ledger = Ledger(directory)
    assert ledger.recovery is not None
    assert list(ledger.unfinished()) == []
    ledger.close()


def test_nothing_is_told_and_nothing_kept_before_the_commit(directory: Path) -> None:
    ledger = Ledger(directory)
    told: list[str] = []
    ledger.accept(*new("a"), now=1.0)
    ledger.after(lambda: told.append("a"))
    assert not told
    ledger.close()
    ledger = Ledger(directory)
    assert list(ledger.unfinished()) == []
    ledger.close()


def test_a_commit_that_fails_is_made_up_for_by_the_next(ledger: Ledger, directory: Path) -> None:
    other = sqlite3.connect(directory / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ledger._database.execute("PRAGMA busy_timeout = 0")
    told: list[str] = []
    ledger.accept(*new("a"), now=1.0)
    ledger.after(lambda: told.append("a"))
    with pytest.raises(LedgerError, match="locked"):
        ledger.commit()
    ledger.accept(*new("b"), now=2.0)
    ledger.after(lambda: told.append("b"))
    other.execute("ROLLBACK")
    other.close()
    for callback in ledger.commit():
        callback()
    assert told == ["a", "b"]
    assert [known.job_id for known in ledger.unfinished()] == ["a", "b"]


def test_a_second_watcher_is_refused_and_told_who_is_there(ledger: Ledger, directory: Path) -> None:  # noqa: ARG001
    with pytest.raises(RunnerError, match=rf"another watcher .*pid {os.getpid()}"):
        Ledger(directory)


def test_the_files_are_the_owners_alone(ledger: Ledger, directory: Path) -> None:
    ledger.accept(*new("a"), now=1.0)
    ledger.commit()
    for file in directory.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_directory_that_others_can_write_in_is_refused(directory: Path, mode: int) -> None:
    directory.chmod(mode)
    with pytest.raises(RunnerError, match="others can write"):
        Ledger(directory)


def test_a_missing_directory_is_an_error_that_says_what_to_do(directory: Path) -> None:
    with pytest.raises(RunnerError, match=r"No such file .*0700"):
        Ledger(directory / "none")


def test_a_ledger_that_is_a_link_is_not_followed(directory: Path) -> None:
    (directory / "ledger.db").symlink_to(directory / "elsewhere")
    with pytest.raises(RunnerError, match="symbolic links"):
        Ledger(directory)
    assert not (directory / "elsewhere").exists()


def test_a_ledger_of_a_newer_version_is_left_alone(directory: Path) -> None:
    Ledger(directory).close()
    database = sqlite3.connect(directory / "ledger.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(RunnerError, match=r"newer version .*schema 99"):
        Ledger(directory)


def test_a_ledger_of_an_older_version_is_brought_up_to_date_and_keeps_its_jobs(directory: Path) -> None:
    """The file is as the first version wrote it; what that did is frozen here."""
    database = sqlite3.connect(directory / "ledger.db")
    database.executescript((Path(__file__).parent / "ledger-version-1.sql").read_text())
    database.close()
    ledger = Ledger(directory)
    assert [(known.job_id, known.state) for known in ledger.unfinished()] == [("b", State.RUNNING), ("c", State.QUEUED)]
    assert [entry.job_id for entry in ledger.intake("alpha")] == ["c"]
    assert ledger.was_active("alpha")
    assert (ledger.state("a"), ledger.was_recovered("a")) == (State.SUCCEEDED, False)
    assert ledger.recovery is None
    assert not ledger.must_ask
    ledger.accept(*new("d"), now=1.0)
    ledger.commit()
    ledger.close()
    database = sqlite3.connect(directory / "ledger.db")
    assert database.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    database.close()


def test_a_damaged_ledger_of_an_older_version_is_read_as_what_it_is(directory: Path) -> None:
    with closing(sqlite3.connect(directory / "ledger.db")) as database:
        database.executescript((Path(__file__).parent / "ledger-version-1.sql").read_text())
        database.execute("UPDATE jobs SET args = '[' WHERE id = 'b'")
        database.commit()
    (directory / "watch.lock").write_text("1\n")
    ledger = Ledger(directory)
    assert ledger.recovery is not None
    assert [(known.job_id, known.additions) for known in ledger.unfinished()] == [("c", {})]
    assert (ledger.state("a"), ledger.state("b")) == (State.SUCCEEDED, State.LOST)
    ledger.close()


def test_a_migration_that_is_interrupted_leaves_the_older_version(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = sqlite3.connect(directory / "ledger.db")
    database.executescript((Path(__file__).parent / "ledger-version-1.sql").read_text())
    database.close()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_STEPS", (*schema._STEPS, "CREATE TABLE one_more (a); DROP TABLE no_such_table;"))
        with pytest.raises(TemporaryError, match="no such table"):
            Ledger(directory)
    database = sqlite3.connect(directory / "ledger.db")
    assert database.execute("PRAGMA user_version").fetchone() == (1,)
    database.close()
    Ledger(directory).close()


# Forgetting


def ended(ledger: Ledger, job_id: str, when: float) -> None:
    seq = ledger.accept(*new(job_id), now=when)
    ledger.ended(seq, State.SUCCEEDED, {"exit_code": 0}, now=when)


def kept(ledger: Ledger) -> list[str]:
    return [job_id for (job_id,) in ledger._database.execute("SELECT id FROM jobs ORDER BY seq")]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "KEPT_ANYWAY", 2)
    monkeypatch.setattr(ledger_module, "KEPT_JOBS", 6)


DAY = 86400.0


@pytest.mark.usefixtures("few")
def test_jobs_that_ended_long_ago_are_forgotten_but_for_the_newest(ledger: Ledger) -> None:
    for number, job_id in enumerate("abcd"):
        ended(ledger, job_id, number * DAY)
    ledger.commit()
    assert ledger.forget(10, now=(KEPT_DAYS + 1.5) * DAY) == 2
    assert kept(ledger) == ["c", "d"]
    assert ledger.forget(10, now=1e12) == 0, "no step of the clock costs all of it"


@pytest.mark.usefixtures("few")
def test_the_oldest_jobs_are_forgotten_when_there_are_too_many_a_few_at_a_time(ledger: Ledger) -> None:
    for job_id in "abcdefghi":
        ended(ledger, job_id, 1.0)
    ledger.commit()
    assert [ledger.forget(2, now=1.0) for _ in range(3)] == [2, 1, 0]
    assert kept(ledger) == list("defghi")


@pytest.mark.usefixtures("few")
def test_a_job_that_has_not_ended_is_never_forgotten(ledger: Ledger) -> None:
    ledger.accept(*new("waits"), now=0.0)
    for job_id in "abcdefghi":
        ended(ledger, job_id, 1.0)
    ledger.commit()
    while ledger.forget(10, now=1e12):
        pass
    assert kept(ledger) == ["waits", "h", "i"]
    assert [known.job_id for known in ledger.unfinished()] == ["waits"]


def test_what_waits_for_a_commit_is_not_committed_by_forgetting(ledger: Ledger) -> None:
    ledger.accept(*new("a"), now=1.0)
    ledger.forget(10, now=1e12)
    assert kept(ledger) == []
    ledger.commit()
    assert kept(ledger) == ["a"]


def test_numbers_of_jobs_are_never_used_again(directory: Path) -> None:
    seqs = []
    for job_id in "abc":
        ledger = Ledger(directory)
        seqs.append(ledger.accept(*new(job_id), now=1.0))
        ledger.commit()
        ledger.close()
    assert seqs == sorted(set(seqs))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["accept", "removed", "starting", "running", "postponed", "ended", "lost", "commit"]),
        st.integers(0, 4),
    ),
    max_size=40,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_after_a_crash_the_ledger_is_as_of_the_last_commit(steps: list[tuple[str, int]]) -> None:
    """The model is a dictionary that is copied at each commit."""
    with TemporaryDirectory() as made:
        directory = Path(made)
        ledger = Ledger(directory)
        states: dict[int, State] = {}
        intake: set[str] = set()
        committed: tuple[dict[int, State], set[str]] = ({}, set())
        for step, which in steps:
            seqs = sorted(states)
            seq = seqs[which % len(seqs)] if seqs else None
            if step == "accept":
                job_id = str(len(states))
                states[ledger.accept(*new(job_id), now=1.0)] = State.QUEUED
                intake.add(job_id)
            elif step == "commit":
                ledger.commit()
                committed = (dict(states), set(intake))
            elif seq is not None:
                change(ledger, step, seq, states, intake)
        ledger.close()
        ledger = Ledger(directory)
        unfinished = {known.seq: known.state for known in ledger.unfinished()}
        assert unfinished == {seq: state for seq, state in committed[0].items() if not state.is_final}
        assert {entry.job_id for entry in ledger.intake("alpha")} == committed[1]
        assert len(ledger.last_ended(100)) == sum(state.is_final for state in committed[0].values())
        ledger.close()


def change(ledger: Ledger, step: str, seq: int, states: dict[int, State], intake: set[str]) -> None:
    match step:
        case "removed":
            ledger.removed(str(seq - 1))
            intake.discard(str(seq - 1))
        case _ if states[seq].is_final:
            pass
        case "starting":
            ledger.starting(seq, boot="b", now=2.0)
            states[seq] = State.STARTING
        case "running":
            ledger.running(seq, pid=1, started_at=3.0)
            states[seq] = State.RUNNING
        case "postponed":
            ledger.postponed(seq, "later")
            states[seq] = State.QUEUED
        case "ended":
            ledger.ended(seq, State.FAILED, {"exit_code": 3}, now=4.0)
            states[seq] = State.FAILED
        case "lost":
            ledger.given_up(seq, State.LOST, "gone", now=4.0)
            states[seq] = State.LOST
