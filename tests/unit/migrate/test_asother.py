"""What is looked at and handed in again in a rundir, of which nothing is trusted."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from basestation_runner.errors import RunnerError
from basestation_runner.migrate import asother
from basestation_runner.migrate.asother import Identity
from basestation_runner.watch import lockfile
from tests.patience import until

if TYPE_CHECKING:
    from pathlib import Path

ME = Identity(os.geteuid(), os.getegid(), tuple(os.getgroups()))


@pytest.fixture
def rundir(tmp_path: Path) -> Path:
    """A directory that is asked for as whoever runs this."""
    made = tmp_path / "rundir"
    made.mkdir()
    return made


def test_only_regular_files_that_are_called_like_requests_are_requests(rundir: Path) -> None:
    (rundir / "a.run").write_text("x")
    (rundir / "b.txt").write_text("x")
    (rundir / ".hidden.run").write_text("x")
    (rundir / "c.run").mkdir()
    (rundir / "d.run").symlink_to("a.run")
    os.mkfifo(rundir / "e.run")
    seen = asother.look(ME, str(rundir))
    assert [name for _, name in seen.requests] == ["a.run"]
    assert seen.holder is None
    (rundir / lockfile.NAME).write_text(str(os.getpid()))
    assert asother.look(ME, str(rundir)).holder == os.getpid()


def test_a_lock_that_is_a_link_or_a_fifo_holds_nothing_up(rundir: Path) -> None:
    os.mkfifo(rundir / lockfile.NAME)
    assert asother.look(ME, str(rundir)).holder is None


def test_a_rundir_that_cannot_be_opened_is_told(rundir: Path) -> None:
    with pytest.raises(RunnerError, match="No such file"):
        asother.look(ME, str(rundir / "none"))


def test_a_look_leaves_the_rundir_as_it_was(rundir: Path) -> None:
    (rundir / lockfile.NAME).write_text("4194304")
    before = [(path.name, path.stat()) for path in rundir.iterdir()], rundir.stat()
    asother.look(ME, str(rundir))
    after = [(path.name, path.stat()) for path in rundir.iterdir()], rundir.stat()
    assert [name for name, _ in after[0]] == [name for name, _ in before[0]]
    assert after[1].st_mtime_ns == before[1].st_mtime_ns


def later(rundir: Path) -> int:
    """Return a time after that of all files so far, and not after that of any that follows."""
    tick, now = rundir / "tick", time.time_ns()

    def is_later() -> bool:
        tick.touch()
        return tick.stat().st_ctime_ns > now

    until(is_later, "the kernel's clock to go on")
    tick.unlink()
    return now


def test_only_what_came_since_is_handed_in_again_the_oldest_first_however_old_it_looks(rundir: Path) -> None:
    (rundir / "old.run").write_text("old")
    since = later(rundir)
    (rundir / "first.run").write_text("first")
    later(rundir)
    (rundir / "a-second.run").write_text("second")
    os.utime(rundir / "a-second.run", (1e9, 1e9))  # as cp -p does
    assert asother.hand_in_again(ME, str(rundir), since).names == ("first.run", "a-second.run")
    assert (rundir / "first.run").read_text() == "first"


def test_odd_files_keep_no_others_from_being_handed_in_and_are_named(rundir: Path) -> None:
    (rundir / ".again-").write_text("x")
    (rundir / ".again-notes.txt").write_text("x")
    (rundir / "b.run").write_text("x")
    (rundir / ".again-a.run").mkdir()
    again = asother.hand_in_again(ME, str(rundir), 0)
    assert again.names == ("b.run",)
    assert dict(again.failed) == {".again-a.run": "Permission denied"}
    assert sorted(path.name for path in rundir.iterdir()) == [".again-", ".again-a.run", ".again-notes.txt", "b.run"]


@pytest.mark.parametrize(
    ("there", "requests"),
    [
        (None, {"a.run": "content"}),
        ("content", {"a.run": "content"}),
        ("another", {"a.run": "another", "again-a.run": "content"}),
    ],
)
def test_what_a_kill_left_hidden_is_a_request_again(rundir: Path, there: str | None, requests: dict[str, str]) -> None:
    (rundir / ".again-a.run").write_text("content")
    if there is not None:
        (rundir / "a.run").write_text(there)
    asother.hand_in_again(ME, str(rundir), 0)
    assert {path.name: path.read_text() for path in rundir.iterdir()} == requests
