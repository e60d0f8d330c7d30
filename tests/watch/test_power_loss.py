"""The power fails at each step of a request's way: what was not durable is gone, what was is there again.

Durable of the ledger is its last commit, on a copy of its files. Of the rundir it is what it was when it was last
synced, or any state since: renames and removals that came later may have reached the disk or not.
"""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define, field

from basestation_runner.watch import inbox, setaside
from basestation_runner.watch.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

    from tests.watch.conftest import Bench

DROPPED, PRIVATE, GONE = 0, 1, 2


@define
class Moment:
    """What is durable at one moment: of the ledger a copy, of the rundir the oldest and the newest state."""

    ledger: Path | None
    oldest: int
    newest: int
    is_sent: bool


@define(eq=False)
class Recorder:
    """Notes each change of what is durable, and keeps the request's file itself, whose identity counts."""

    bench: Bench
    moments: list[Moment] = field(factory=list)
    private: str = ""
    _ledger: Path | None = None
    _oldest: int = DROPPED
    _newest: int = DROPPED

    @property
    def kept(self) -> Path:
        return self.bench.directory / "kept"

    def note(self) -> None:
        is_sent = bool(self.bench.helper.dispatched)
        self.moments.append(Moment(self._ledger, self._oldest, self._newest, is_sent))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        real_commit, real_move = Ledger.commit, setaside.move

        def commit(ledger: Ledger) -> Any:  # noqa: ANN401 - passed on
            had_writes = bool(ledger._writes)
            due = real_commit(ledger)
            if had_writes:
                self._ledger = self.bench.directory / f"copy{len(self.moments)}"
                shutil.copytree(self.bench.directory / "state", self._ledger)
                self.note()
            return due

        def move(source: int, name: str, target: int, new_name: str) -> None:
            real_move(source, name, target, new_name)
            self.private, self._newest = new_name, PRIVATE
            self.note()

        def unlink(name: str, *, dir_fd: int) -> None:
            os.rename(name, self.kept, src_dir_fd=dir_fd)
            self._newest = GONE
            self.note()

        def fsync(_: int) -> None:
            self._oldest = self._newest
            self.note()

        patch.setattr(Ledger, "commit", commit)
        patch.setattr(setaside, "move", move)
        patch.setattr(inbox, "os", SimpleNamespace(**{**vars(os), "unlink": unlink, "fsync": fsync}))

    def restore(self, moment: Moment, rundir: Path, state: int) -> None:
        """Make everything what it is after the host has come up again."""
        shutil.rmtree(self.bench.directory / "state")
        if moment.ledger is None:
            (self.bench.directory / "state").mkdir(mode=0o700)
        else:
            shutil.copytree(moment.ledger, self.bench.directory / "state")
            (self.bench.directory / "state/ledger.db-shm").unlink()
        if state != GONE:
            self.kept.rename(rundir / ("1.run" if state == DROPPED else self.private))


def cases(moments: list[Moment]) -> list[tuple[int, int]]:
    return [
        (number, state) for number, moment in enumerate(moments) for state in range(moment.oldest, moment.newest + 1)
    ]


def play(bench: Bench, recorder: Recorder, rundir: Path) -> None:
    """Have one request dropped, run and settled, and its removal recorded."""
    with bench.patch.context() as patch:
        recorder.install(patch)
        bench.start()
        recorder.note()
        bench.drop(rundir, "1.run")
        bench.until(lambda: bench.helper.settled)
        assert bench.watcher is not None
        watcher = bench.watcher
        bench.until(lambda: not bench.on_loop(lambda: list(watcher.ledger.intake("alpha"))))
        bench.stop()


@pytest.mark.parametrize("has_marks", [True, False], ids=["the helper's marks are durable", "they are not"])
def test_a_power_failure_at_any_step_neither_loses_nor_repeats_a_request(bench: Bench, *, has_marks: bool) -> None:
    done: set[tuple[int, int]] = set()
    while True:
        rundir = bench.site("alpha", make=not done)
        recorder = Recorder(bench)
        bench.helper.dispatched.clear()
        bench.helper.settled.clear()
        play(bench, recorder, rundir)
        waiting = [case for case in cases(recorder.moments) if case not in done]
        if not waiting:
            break
        number, state = waiting[0]
        done.add((number, state))
        moment = recorder.moments[number]
        recorder.restore(moment, rundir, state)
        if not (moment.is_sent and has_marks):
            bench.helper.ends.clear()
        if not moment.is_sent:
            bench.helper.dispatched.clear()
        check_after(bench, rundir, had_job=moment.ledger is not None and bool(job_ids(moment.ledger)))
        clean(bench, recorder)
    assert len(done) > 8
    assert {state for _, state in done} == {DROPPED, PRIVATE, GONE}


def job_ids(state: Path) -> list[str]:
    """Return the jobs of a copy of a ledger, read from a copy of that."""
    copy = state.with_name(f"{state.name}-read")
    shutil.copytree(state, copy)
    ledger = Ledger(copy)
    found = [*(known.job_id for known in ledger.unfinished()), *ledger.last_ended(10)]
    ledger.close()
    shutil.rmtree(copy)
    return found


def check_after(bench: Bench, rundir: Path, *, had_job: bool) -> None:
    """Start after the failure, in another boot, and see what becomes of the request."""
    bench.patch.setattr("basestation_runner.watch.watcher.boot_id", lambda: "another boot")
    bench.start()
    bench.until(lambda: [path for path in rundir.iterdir() if path.name != ".base_runner_lockfile"] == [])
    bench.until(lambda: set(bench.states().values()) & {"succeeded", "lost"})
    bench.stop()
    (state,) = bench.states().values()
    sent = {message["job_id"] for message in bench.helper.dispatched}
    assert len(sent) <= 1, "it runs once at most"
    assert state == "succeeded" if not had_job else state in {"succeeded", "lost"}
    assert len(job_ids(bench.directory / "state")) == 1


def clean(bench: Bench, recorder: Recorder) -> None:
    bench.patch.undo()
    recorder.kept.unlink(missing_ok=True)
    for path in bench.directory.glob("copy*"):
        shutil.rmtree(path)
    shutil.rmtree(bench.directory / "state")
    (bench.directory / "state").mkdir(mode=0o700)
    bench.helper.ends.clear()
