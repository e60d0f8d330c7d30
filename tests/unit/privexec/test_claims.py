"""The marks "started" and "ended so": written once, whole or not at all, and swept without losing any that counts."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.errors import RunnerError
from basestation_runner.privexec.claims import Claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

JOB: Final = "c0ffee00-0000-4000-8000-000000000001"
OTHER: Final = "c0ffee00-0000-4000-8000-000000000002"
OLD_DAYS: Final = 31


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[Claims]:
    claims = Claims(tmp_path / "state")
    claims.take_over()
    yield claims
    close(claims)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def close(claims: Claims) -> None:
    for descriptor in claims.descriptors:
        if descriptor >= 0:
            os.close(descriptor)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def age(path: Path, days: float) -> None:
    when = time.time() - days * 86400
    os.utime(path, (when, when))


@contextmanager
def no_file_can_grow() -> Iterator[None]:
    """Make every write to a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_claim_can_be_read_back(claims: Claims) -> None:
    assert claims.claimed(JOB) is None
    assert claims.claim(JOB, {"site": "seaglider", "keeper": {"pid": 1, "start": None}})
    assert claims.claimed(JOB) == {"site": "seaglider", "keeper": {"pid": 1, "start": None}}
    assert claims.claimed(OTHER) is None


def test_a_job_is_claimed_only_once_and_the_first_claim_stays(claims: Claims, state: Path) -> None:
    assert claims.claim(JOB, {"site": "first"})
    assert not claims.claim(JOB, {"site": "second"})
    assert claims.claimed(JOB) == {"site": "first"}
    assert names(state / "claims") == [JOB]
    assert names(state / "starting") == []


def test_a_claimed_job_is_kept_until_it_is_released_or_its_keeper_dies(claims: Claims, state: Path) -> None:
    assert not claims.is_kept(JOB)
    claims.claim(JOB, {})
    other = Claims.of_descriptors(*claims.descriptors)
    assert other.is_kept(JOB)
    (state / "claims" / OTHER).write_bytes((state / "claims" / JOB).read_bytes())
    assert not other.is_kept(OTHER)
    claims.release()
    claims.release()
    assert not other.is_kept(JOB)
    if (pid := os.fork()) == 0:
        claims.unclaim(JOB)
        claims.claim(JOB, {})
        os._exit(0)
    os.waitpid(pid, 0)
    assert claims.claimed(JOB) == {}
    assert not claims.is_kept(JOB)


# One helper that has forked its keepers.
RACE: Final = """
import os, sys
from pathlib import Path
from basestation_runner.privexec.claims import Claims
claims = Claims(Path(sys.argv[1]))
claims.take_over()
waiting, start = os.pipe()
for number in range(4):
    if os.fork() == 0:
        os.close(start)
        os.read(waiting, 1)
        os.write(1, f"{number} {claims.claim(sys.argv[2], {'number': number})}\\n".encode())
        os._exit(0)
os.close(start)
for number in range(4):
    os.wait()
"""


def test_of_several_that_claim_a_job_at_once_one_gets_it(claims: Claims, state: Path) -> None:
    command = [sys.executable, "-c", RACE, str(state), JOB]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    answers = dict(line.split() for line in said.splitlines())
    assert sorted(answers.values()) == ["False", "False", "False", "True"]
    (winner,) = (number for number, answer in answers.items() if answer == "True")
    assert claims.claimed(JOB) == {"number": int(winner)}


def test_a_claim_that_was_taken_back_can_be_made_again(claims: Claims) -> None:
    claims.claim(JOB, {"site": "first"})
    claims.unclaim(JOB)
    assert claims.claimed(JOB) is None
    assert claims.claim(JOB, {"site": "second"})


def test_an_exit_record_can_be_read_back_and_is_replaced_as_a_whole(claims: Claims, state: Path) -> None:
    assert claims.ended(JOB) is None
    claims.record_exit(JOB, {"exit_code": 1, "log_tail": "x" * 4096})
    claims.record_exit(JOB, {"exit_code": 0})
    assert claims.ended(JOB) == {"exit_code": 0}
    assert names(state / "exits") == [JOB]


def test_what_a_crash_left_of_a_longer_record_is_no_part_of_the_next_one(claims: Claims, state: Path) -> None:
    (state / "exits" / f"{JOB}.{os.getpid()}.tmp").write_bytes(b"x" * 100)
    claims.record_exit(JOB, {"exit_code": 0})
    assert claims.ended(JOB) == {"exit_code": 0}


@pytest.mark.parametrize("content", [b"", b'{"exit_code": 0', b"null", b"[]", b"0", b"\xff\xfe", b"{}"])
def test_a_record_that_was_cut_off_is_none_and_a_claim_like_it_is_known_to_exist(
    claims: Claims, state: Path, content: bytes
) -> None:
    (state / "claims" / JOB).write_bytes(content)
    (state / "exits" / JOB).write_bytes(content)
    assert claims.claimed(JOB) == {}
    assert claims.ended(JOB) is None
    assert not claims.claim(JOB, {"site": "again"})


@given(st.binary(max_size=40))
def test_whatever_a_mark_holds_it_is_an_object_or_nothing_that_counts(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    state = tmp_path_factory.mktemp("state")
    claims = Claims(state)
    (state / "claims" / JOB).write_bytes(content)
    (state / "exits" / JOB).write_bytes(content)
    assert isinstance(claims.claimed(JOB), dict)
    assert claims.ended(JOB) is None or isinstance(claims.ended(JOB), dict)
    close(claims)


def test_marks_are_the_helpers_alone(claims: Claims, state: Path) -> None:
    before = os.umask(0)
    claims.claim(JOB, {})
    claims.record_exit(JOB, {})
    os.umask(before)
    for path in (state / "claims", state / "exits"):
        assert path.stat().st_mode & 0o7777 == 0o700
        assert (path / JOB).stat().st_mode & 0o7777 == 0o600


def test_marks_are_written_where_the_directories_were_whatever_happens_to_their_path(
    claims: Claims, state: Path
) -> None:
    state.rename(state.with_name("moved"))
    claims.claim(JOB, {"site": "seaglider"})
    claims.record_exit(JOB, {"exit_code": 0})
    assert names(state.with_name("moved") / "claims") == [JOB]
    assert names(state.with_name("moved") / "exits") == [JOB]


def test_a_later_helper_finds_the_marks_of_an_earlier_one(claims: Claims, state: Path) -> None:
    claims.claim(JOB, {"site": "seaglider"})
    claims.record_exit(JOB, {"exit_code": 0})
    later = Claims(state)
    later.take_over()
    assert (later.claimed(JOB), later.ended(JOB)) == ({"site": "seaglider"}, {"exit_code": 0})
    assert not later.claim(JOB, {})
    close(later)


def test_a_state_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunnerError) as error:
        Claims(tmp_path / "file" / "state")
    assert error.value.where == str(tmp_path / "file" / "state")
    assert "--state-dir" in str(error.value)


def test_a_state_directory_that_cannot_be_taken_over_is_named(
    claims: Claims, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_permitted(_: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", not_permitted)
        with pytest.raises(RunnerError, match="not permitted"):
            claims.take_over()
    (state / "starting").rmdir()
    (state / "starting").touch()
    with pytest.raises(RunnerError) as error:
        claims.take_over()
    assert error.value.where == str(state / "starting")


# Durability


def test_a_mark_is_on_disk_before_it_has_its_name(claims: Claims, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], bytes]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        (path,) = [path for directory in ("claims", "starting", "exits") for path in (state / directory).iterdir()]
        seen.append((names(state / "claims") + names(path.parent), path.read_bytes()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    claims.claim(JOB, {"a": 1})
    claims.unclaim(JOB)
    claims.record_exit(JOB, {"b": 2})
    temporary = f"{JOB}.{os.getpid()}.tmp"
    assert seen == [([temporary], b'{"a": 1}'), ([temporary], b'{"b": 2}')]


def test_a_full_disk_leaves_neither_a_claim_nor_anything_else(claims: Claims, state: Path) -> None:
    with no_file_can_grow():
        for write in (claims.claim, claims.record_exit):
            with pytest.raises(OSError, match="too large"):
                write(JOB, {"site": "seaglider"})
    assert names(state / "claims") == names(state / "exits") == []
    assert claims.claimed(JOB) is None
    assert claims.claim(JOB, {"site": "seaglider"})


def test_a_disk_that_turns_out_to_be_full_later_leaves_nothing_either(
    claims: Claims, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write in (claims.claim, claims.record_exit):
        with pytest.raises(OSError, match="No space left"):
            write(JOB, {"site": "seaglider"})
    assert names(state / "claims") == names(state / "exits") == []


def test_a_full_disk_leaves_an_earlier_record_as_it_is(claims: Claims) -> None:
    claims.record_exit(JOB, {"exit_code": 0})
    with no_file_can_grow(), pytest.raises(OSError, match="too large"):
        claims.record_exit(JOB, {"exit_code": 1})
    assert claims.ended(JOB) == {"exit_code": 0}


# Pruning


def test_a_settled_job_leaves_nothing_and_can_be_settled_again(claims: Claims, state: Path) -> None:
    claims.claim(JOB, {})
    claims.record_exit(JOB, {"exit_code": 0})
    claims.claim(OTHER, {})
    for _ in range(2):
        claims.settle(JOB)
    assert names(state / "claims") == [OTHER]
    assert names(state / "exits") == []


def test_a_crash_while_settling_leaves_no_claim_without_its_record(
    claims: Claims, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the job would be taken for a lost one."""
    claims.claim(JOB, {})
    claims.record_exit(JOB, {"exit_code": 0})
    real = os.unlink

    def crash_after_the_first(name: str, *, dir_fd: int) -> None:
        real(name, dir_fd=dir_fd)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", crash_after_the_first)
        with pytest.raises(KeyboardInterrupt):
            claims.settle(JOB)
    assert (names(state / "claims"), names(state / "exits")) == ([], [JOB])
    assert claims.take_over() == []
    assert names(state / "exits") == []


def test_taking_over_tells_every_claimed_job_ended_or_not(claims: Claims, state: Path) -> None:
    claims.claim(OTHER, {})
    claims.claim(JOB, {})
    claims.record_exit(JOB, {"exit_code": 0})
    assert claims.take_over() == [JOB, OTHER]
    assert names(state / "claims") == [JOB, OTHER]
    assert names(state / "exits") == [JOB]


def test_taking_over_removes_what_a_crash_left_half_written(claims: Claims, state: Path) -> None:
    claims.claim(JOB, {})
    (state / "starting" / f"{OTHER}.4711.tmp").write_bytes(b'{"half')
    (state / "exits" / f"{OTHER}.4711.tmp").write_bytes(b'{"half')
    assert claims.take_over() == [JOB]
    assert names(state / "claims") == [JOB]
    assert names(state / "starting") == names(state / "exits") == []


def test_taking_over_leaves_a_record_that_is_being_written(claims: Claims, state: Path) -> None:
    claims.claim(JOB, {})
    (state / "exits" / f"{JOB}.4711.tmp").write_bytes(b'{"half')
    assert claims.take_over() == [JOB]
    assert names(state / "exits") == [f"{JOB}.4711.tmp"]


@pytest.mark.parametrize("moment", ["before it writes", "while it writes"])
def test_a_keeper_of_an_earlier_helper_can_claim_nothing_any_more(
    claims: Claims, state: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Claims(state)
    real = os.fsync

    def is_overtaken(descriptor: int) -> None:
        real(descriptor)
        later.take_over()

    if moment == "before it writes":
        later.take_over()
    else:
        monkeypatch.setattr(os, "fsync", is_overtaken)
    with pytest.raises(FileNotFoundError):
        claims.claim(JOB, {"site": "seaglider"})
    monkeypatch.undo()
    assert later.claimed(JOB) is None
    assert later.claim(JOB, {"site": "seaglider"})
    close(later)


def test_a_keeper_that_begins_to_write_while_it_is_overtaken_does_not_stop_that(
    claims: Claims, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rmdir

    def begins(path: Path) -> None:
        monkeypatch.setattr(os, "rmdir", real)
        (path / f"{JOB}.4711.tmp").touch()
        real(path)

    monkeypatch.setattr(os, "rmdir", begins)
    assert claims.take_over() == []
    assert names(state / "starting") == []


def test_a_job_is_old_by_its_last_mark(claims: Claims, state: Path) -> None:
    for job in (JOB, OTHER):
        claims.claim(job, {})
        age(state / "claims" / job, OLD_DAYS)
    assert claims.is_old(JOB)
    claims.record_exit(OTHER, {"exit_code": 0})
    assert not claims.is_old(OTHER)
    age(state / "exits" / OTHER, 29.5)
    assert not claims.is_old(OTHER)
    age(state / "exits" / OTHER, 30.5)
    assert claims.is_old(OTHER)
    assert not claims.is_old("ab")


def test_no_step_of_the_clock_makes_a_successor_forget_a_job(claims: Claims, state: Path) -> None:
    claims.claim(JOB, {})
    claims.record_exit(JOB, {"exit_code": 0})
    for mark in ("claims", "exits"):
        age(state / mark / JOB, 20_000)
    assert claims.take_over() == [JOB]
    assert claims.ended(JOB) == {"exit_code": 0}


def test_a_cancellation_lasts_as_long_as_its_job_and_no_longer(claims: Claims, state: Path) -> None:
    claims.claim(JOB, {"site": "seaglider"})
    assert not claims.is_cancelled(JOB)
    claims.cancel(JOB)
    claims.cancel(JOB)
    claims.cancel(OTHER)  # which is not claimed
    assert claims.is_cancelled(JOB)
    assert claims.take_over() == [JOB]
    assert claims.is_cancelled(JOB)
    assert not claims.is_cancelled(OTHER)
    claims.settle(JOB)
    assert names(state / "claims") == []


@pytest.mark.parametrize("directory", ["claims", "exits"])
def test_a_mark_that_a_keeper_finishes_during_the_sweep_does_not_disturb_it(
    claims: Claims, state: Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state / directory / f"{JOB}.4711.tmp").touch()
    real: Callable[[int], list[str]] = os.listdir

    def then_it_is_renamed(descriptor: int) -> list[str]:
        found = real(descriptor)
        if f"{JOB}.4711.tmp" in found:
            (state / directory / f"{JOB}.4711.tmp").rename(state / directory / JOB)
        return found

    monkeypatch.setattr(os, "listdir", then_it_is_renamed)
    assert claims.take_over() == []
    assert names(state / directory) == [JOB]
