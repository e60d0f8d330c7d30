"""Ledgers that are damaged in every way: what can be read goes on, all that was moved aside is together, and whole."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from basestation_runner.errors import TemporaryError
from basestation_runner.watch import salvage
from basestation_runner.watch.ledger import Hold, Intake, Ledger, LedgerError, NewJob
from basestation_runner.watch.states import State

if TYPE_CHECKING:
    from collections.abc import Callable

JOBS = 300
PAGE = 4096
FILES = ("ledger.db", "ledger.db-wal", "ledger.db-shm")


class CrashError(BaseException):
    """The process ends here."""


def new(number: int, site: str = "alpha") -> tuple[NewJob, Intake]:
    job_id, name = f"{number:08x}", f"{number}.run"
    job = NewJob(
        job_id=job_id,
        site=site,
        application="base",
        script="Base.py",
        home="/home/sg123",
        mission_dir="/home/sg123/m",
        log_file="/home/sg123/m/log",
        args=("--n", str(number), "x" * 100),
        submitter=1000,
        request=name,
    )
    return job, Intake(job_id=job_id, site=site, name=name, rundir=17, identity=bytes(32))


def fill(directory: Path) -> Ledger:
    """Make a ledger of many jobs: two of three have ended, the others wait; the last ten still have their requests."""
    ledger = Ledger(directory)
    ledger.first_active("alpha", now=1.0)
    for number in range(1, JOBS + 1):
        seq = ledger.accept(*new(number), now=float(number))
        if number % 3:
            ledger.ended(seq, State.FAILED, {"exit_code": number % 7}, now=float(number))
        if number <= JOBS - 10:
            ledger.removed(f"{number:08x}")
    ledger.commit()
    return ledger


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that was closed in order, so that all is in its one file."""
    directory = tmp_path_factory.mktemp("closed")
    directory.chmod(0o700)
    fill(directory).close()
    assert not (directory / "ledger.db-wal").exists()
    return directory


@pytest.fixture
def directory(closed: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    target = tmp_path / "state"
    shutil.copytree(closed, target)
    return target


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def noise(size: int) -> bytes:
    return Random(0).randbytes(size)  # noqa: S311 - the same each time


def page_of_jobs(path: Path) -> int:
    """Return where a page in the middle of those that hold jobs begins."""
    data = path.read_bytes()
    leaves = [
        offset for offset in range(0, len(data), PAGE) if data[offset] == 13 and b"Base.py" in data[offset:][:PAGE]
    ]
    return leaves[len(leaves) // 2]


def size_of(directory: Path) -> int:
    return (directory / "ledger.db").stat().st_size


DAMAGES: dict[str, Callable[[Path], object]] = {
    "its first page is overwritten": lambda path: overwrite(path, 0, noise(PAGE)),
    "its first bytes are zero": lambda path: overwrite(path, 0, bytes(100)),
    "its first half is overwritten": lambda path: overwrite(path, 0, noise(path.stat().st_size // 2 // PAGE * PAGE)),
    "a page of its jobs is overwritten": lambda path: overwrite(path, page_of_jobs(path), noise(PAGE)),
    "its second half is cut off": lambda path: os.truncate(path, path.stat().st_size // 2 // PAGE * PAGE),
    "it is cut off within a page": lambda path: os.truncate(path, path.stat().st_size // 2 // PAGE * PAGE + 1000),
    "it is cut off within its first page": lambda path: os.truncate(path, 1000),
    "it is empty": lambda path: os.truncate(path, 0),
    "it is gone": Path.unlink,
    "it is text": lambda path: path.write_text("no database\n" * 1000),
    "it is all noise": lambda path: path.write_bytes(noise(path.stat().st_size)),
    "it is another program's": lambda path: be_another_programs(path),  # noqa: PLW0108 - it is made later
}


def be_another_programs(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE jobs (a)")


READABLE = {
    "its first page is overwritten": JOBS,
    "its first bytes are zero": JOBS,
    "a page of its jobs is overwritten": JOBS * 3 // 4,
    "its second half is cut off": JOBS // 7,
    "it is cut off within a page": JOBS // 7,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_is_moved_aside_and_what_can_be_read_of_it_goes_on(directory: Path, damage: str) -> None:
    DAMAGES[damage](directory / "ledger.db")
    before = {name: (directory / name).read_bytes() for name in FILES if (directory / name).exists()}
    ledger = Ledger(directory)
    recovery = ledger.recovery
    assert recovery is not None
    kept = {path.name: path.read_bytes() for path in Path(recovery.kept_in).iterdir() if path.name != FILES[2]}
    assert {name: data for name, data in kept.items() if data} == {name: data for name, data in before.items() if data}
    assert not recovery.whole
    assert recovery.jobs >= READABLE.get(damage, 0)
    assert ledger.must_ask
    check_sense(ledger)
    seq = ledger.accept(*new(JOBS + 1), now=1.0)
    ledger.commit()
    assert seq > max((known.seq for known in ledger.unfinished() if known.seq != seq), default=0)
    ledger.close()
    again = Ledger(directory)
    assert again.recovery is None
    assert again.must_ask
    again.close()


def check_sense(ledger: Ledger) -> None:
    """See that nothing is in a recovered ledger that was not in it before, and nothing has another end."""
    for known in ledger.unfinished():
        number = int(known.job_id, 16)
        assert (known.seq, number % 3, known.state) == (number, 0, State.QUEUED)
        assert ledger.dispatch(known.seq).args == ["--n", str(number), "x" * 100]
        assert ledger.was_recovered(known.job_id)
    for job_id in ledger.last_ended(JOBS):
        assert int(job_id, 16) % 3
        assert ledger.state(job_id) is State.FAILED
    for entry in ledger.intake("alpha"):
        assert int(entry.job_id, 16) > JOBS - 10
        assert ledger.state(entry.job_id) is not None


def test_a_ledger_whose_first_page_is_gone_keeps_its_jobs_their_requests_and_its_sites(directory: Path) -> None:
    overwrite(directory / "ledger.db", 0, noise(PAGE))
    ledger = Ledger(directory)
    assert [known.seq for known in ledger.unfinished()] == list(range(3, JOBS + 1, 3))
    assert [int(entry.job_id, 16) for entry in ledger.intake("alpha")] == list(range(JOBS - 9, JOBS + 1))
    assert ledger.was_active("alpha")
    ledger.close()


PLACES = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=64)), min_size=1, max_size=8
)


@settings(max_examples=30)
@example(places=[(0.01953125, b"\t\x80")])  # a message of SQLite's that cannot be decoded
@example(places=[(0.2, b"\0")])  # a page of an index that is only written to
@given(PLACES)
def test_whatever_bytes_of_it_are_wrong_a_ledger_opens_and_makes_sense(
    closed: Path, places: list[tuple[float, bytes]]
) -> None:
    """Wrong bytes within a text cannot be told from right ones; everything else is as it was, or is not there."""
    with TemporaryDirectory() as made:
        directory = Path(made) / "state"
        shutil.copytree(closed, directory)
        for place, data in places:
            overwrite(directory / "ledger.db", int(place * size_of(directory)), data)
        try:
            use(directory)
        except LedgerError:  # damage that is met only by writing: the next start knows of it
            use(directory)


def use(directory: Path) -> None:
    """Do with a ledger what a watcher does."""
    with closing(Ledger(directory)) as ledger:
        for known in ledger.unfinished():
            ledger.dispatch(known.seq)
        list(ledger.intake("alpha"))
        ledger.accept(*new(JOBS + 1), now=1.0)
        ledger.commit()


def test_holds_cancellations_and_repetitions_outlive_damage(directory: Path) -> None:
    ledger = Ledger(directory)
    ledger.hold(Hold(site="", held_by=0, held_at=1.0))
    ledger.hold(Hold(site="alpha", held_by=1000, held_at=2.0, closed=True))
    ledger.cancelled(3, by=1000, now=2.0)
    ledger.accept(evolve(new(JOBS + 1)[0], rerun_of="00000001"), None, now=2.0)
    ledger.commit()
    ledger.close()
    overwrite(directory / "ledger.db", page_of_jobs(directory / "ledger.db"), noise(PAGE))
    again = Ledger(directory)
    assert again.recovery is not None
    assert list(again.holds()) == [
        Hold(site="", held_by=0, held_at=1.0),
        Hold(site="alpha", held_by=1000, held_at=2.0, closed=True),
    ]
    assert [known.seq for known in again.unfinished() if known.cancelled_by == 1000] == [3]
    assert again._read("SELECT rerun_of FROM jobs WHERE id = ?", f"{JOBS + 1:08x}") == [("00000001",)]
    again.close()


# The write-ahead log


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A ledger as a killed watcher leaves it: what came last is in the write-ahead log alone."""
    source, target = tmp_path / "source", tmp_path / "state"
    source.mkdir(mode=0o700)
    ledger = fill(source)
    ledger._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger.ended(3, State.SUCCEEDED, {"exit_code": 0}, now=1000.0)
    ledger.commit()
    shutil.copytree(source, target)
    ledger.close()
    return target


def test_the_last_changes_are_not_lost_with_a_damaged_page(killed: Path) -> None:
    overwrite(killed / "ledger.db", page_of_jobs(killed / "ledger.db"), noise(PAGE))
    salvage.declare(killed, "a page cannot be read")
    ledger = Ledger(killed)
    assert ledger.recovery is not None
    assert ledger.recovery.reason == "a page cannot be read"
    assert ledger.state("00000003") is State.SUCCEEDED
    assert {path.name for path in Path(ledger.recovery.kept_in).iterdir()} == set(FILES)
    ledger.close()


def test_the_last_changes_are_not_lost_with_the_first_page(killed: Path) -> None:
    overwrite(killed / "ledger.db", 0, noise(PAGE))
    ledger = Ledger(killed)
    assert ledger.state("00000003") is State.SUCCEEDED
    assert [known.seq for known in ledger.unfinished()] == list(range(6, JOBS + 1, 3))
    ledger.close()


def test_what_is_in_the_write_ahead_log_alone_is_not_lost_with_the_file(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "state"
    source.mkdir(mode=0o700)
    ledger = Ledger(source)
    ledger.accept(*new(3), now=1.0)
    ledger.commit()
    shutil.copytree(source, target)
    ledger.close()
    os.truncate(target / "ledger.db", 0)
    ledger = Ledger(target)
    assert ledger.recovery is not None
    assert [known.seq for known in ledger.unfinished()] in ([1], [])
    ledger.close()


def test_where_the_last_changes_cannot_be_told_what_may_have_run_is_lost_and_says_so(killed: Path) -> None:
    """A job that waits in what can be read may have ended since."""
    overwrite(killed / "ledger.db", 0, noise(PAGE))
    overwrite(killed / "ledger.db-wal", 0, noise(32))
    ledger = Ledger(killed)
    assert list(ledger.unfinished()) == []
    assert ledger.state("00000003") is State.LOST
    rows = ledger._database.execute("SELECT DISTINCT reason FROM jobs WHERE state = 'lost'").fetchall()
    assert rows == [(salvage.NOT_CURRENT,)]
    ledger.close()


@pytest.mark.parametrize("damage", ["its header", "its middle"])
def test_a_damaged_write_ahead_log_is_not_passed_over_in_silence(killed: Path, damage: str) -> None:
    """SQLite by itself would open what was there before it, in which a job that has ended waits to be run."""
    source = Ledger(killed)
    for number in range(JOBS + 1, JOBS + 6):
        source.accept(*new(number), now=1.0)
        source.commit()
    log = (killed / "ledger.db-wal").read_bytes()
    database = (killed / "ledger.db").read_bytes()
    source.close()
    (killed / "ledger.db").write_bytes(database)
    (killed / "ledger.db-wal").write_bytes(log)
    overwrite(killed / "ledger.db-wal", 0 if damage == "its header" else 32 + 24 + 100, noise(32))
    ledger = Ledger(killed)
    assert ledger.recovery is not None
    assert ledger.recovery.reason == "its write-ahead log is damaged"
    assert list(ledger.unfinished()) == []
    ledger.close()


def test_a_last_commit_that_a_power_failure_has_cut_off_is_no_damage(killed: Path) -> None:
    log = killed / "ledger.db-wal"
    os.truncate(log, log.stat().st_size - 100)
    ledger = Ledger(killed)
    assert ledger.recovery is None
    assert ledger.state("00000003") is State.QUEUED
    ledger.close()


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PLACES)
def test_whatever_bytes_of_its_log_are_wrong_a_ledger_opens_and_makes_sense(
    killed: Path, places: list[tuple[float, bytes]]
) -> None:
    with TemporaryDirectory() as made:
        directory = Path(made) / "state"
        shutil.copytree(killed, directory)
        log = directory / "ledger.db-wal"
        for place, data in places:
            overwrite(log, int(place * log.stat().st_size), data)
        use(directory)


# Interruptions


STEPS: tuple[tuple[Any, str], ...] = (
    (os, "link"),
    (os, "fsync"),
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "mkdir"),
    (shutil, "rmtree"),
    (salvage, "_insert"),
)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_recovery_that_is_killed_at_any_step_is_finished_by_the_next_start(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    overwrite(killed / "ledger.db", page_of_jobs(killed / "ledger.db"), noise(PAGE))
    salvage.declare(killed, "a page cannot be read")
    wanted = outcome_of(copy(killed, tmp_path / "whole"))
    survived = 0
    for step in range(1, 10_000, 1):
        directory = copy(killed, tmp_path / f"{step}")
        if not is_killed_at(directory, step if step < 30 else (step - 29) * 100, monkeypatch, after=after):
            break
        assert outcome_of(directory) == wanted, step
        survived += 1
        shutil.rmtree(directory)
    assert survived > 20


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def is_killed_at(directory: Path, step: int, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> bool:
    """Open a ledger and end at that step; tell whether there were so many."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
            nonlocal count
            count += 1
            if count == step and not after:
                raise CrashError
            result = real(*args, **kwargs)
            if count == step:
                raise CrashError
            return result

        return call

    with monkeypatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, counted(getattr(owner, name)))
        try:
            Ledger(directory).close()
        except CrashError:
            return True
    return False


def outcome_of(directory: Path) -> tuple[list[int], list[str], list[str]]:
    """Return what a start makes of a directory."""
    ledger = Ledger(directory)
    assert ledger.must_ask
    aside = [path for path in directory.iterdir() if path.name.startswith("damaged-")]
    assert [sorted(file.name for file in path.iterdir()) for path in aside] == [sorted(FILES)]
    found = (
        [known.seq for known in ledger.unfinished()],
        ledger.last_ended(JOBS),
        [e.job_id for e in ledger.intake("alpha")],
    )
    ledger.close()
    left = {path.name for path in directory.iterdir()} - {path.name for path in aside}
    assert left == {"ledger.db", "watch.lock"}
    return found


def test_a_disk_without_room_delays_the_recovery_and_loses_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite(directory / "ledger.db", 0, noise(PAGE))

    def full(*_: object) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(salvage, "_insert", full)
        with pytest.raises(TemporaryError, match="disk is full"):
            Ledger(directory)
    ledger = Ledger(directory)
    assert ledger.recovery is not None
    assert ledger.recovery.jobs == JOBS
    ledger.close()


# While it is in use


def test_damage_that_shows_while_the_ledger_is_in_use_is_told_and_recovered_at_the_next_start(directory: Path) -> None:
    ledger = Ledger(directory)
    told: list[str] = []
    ledger.on_failure = told.append
    ledger._database.execute("PRAGMA cache_size = 1")
    overwrite(directory / "ledger.db", PAGE, noise(size_of(directory) - PAGE))
    with pytest.raises(LedgerError):
        ledger.dispatch(JOBS)
    assert told
    ledger.close()
    again = Ledger(directory)
    assert again.recovery is not None
    again.close()


def test_a_commit_into_a_damaged_ledger_is_told_too(directory: Path) -> None:
    ledger = Ledger(directory)
    told: list[str] = []
    ledger.on_failure = told.append
    ledger._database.execute("PRAGMA cache_size = 1")
    overwrite(directory / "ledger.db", PAGE, noise(size_of(directory) - PAGE))
    ledger.accept(*new(JOBS + 1), now=1.0)
    with pytest.raises(LedgerError):
        ledger.commit()
    assert told
    ledger.close()
    assert (directory / "ledger.damaged").exists()


def test_a_first_start_is_no_recovery(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ledger = Ledger(tmp_path)
    assert ledger.recovery is None
    assert not ledger.must_ask
    ledger.close()


def test_only_the_last_few_damaged_ledgers_are_kept(directory: Path) -> None:
    kept = []
    for _ in range(5):
        overwrite(directory / "ledger.db", 0, noise(PAGE))
        ledger = Ledger(directory)
        assert ledger.recovery is not None
        kept.append(Path(ledger.recovery.kept_in))
        ledger.close()
    assert [path.exists() for path in kept] == [False, False, True, True, True]
