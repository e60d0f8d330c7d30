"""The program that is told of failures: what it gets, and that nothing waits for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from basestation_runner.watch import failurehook

if TYPE_CHECKING:
    from tests.watch.conftest import Bench


def program(bench: Bench, text: str) -> Path:
    path = bench.directory / "hook"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    bench.on_failure = path
    return path


@pytest.fixture
def rundir(bench: Bench) -> Path:
    bench.helper.on_dispatch = bench.helper.hold
    return bench.site("alpha")


def fail(bench: Bench, rundir: Path, number: int = 1, *, code: int = 3) -> None:
    bench.drop(rundir, f"{number}.run", n=number)
    bench.until(lambda: bench.states().get(f"{number}.run") == "running")
    bench.helper.finish(bench.helper.dispatched[-1]["job_id"], code)
    bench.until(lambda: bench.states()[f"{number}.run"] == ("failed" if code else "succeeded"))


def test_it_gets_the_job_and_nothing_else_of_the_watchers(bench: Bench, rundir: Path) -> None:
    top = bench.directory
    program(bench, f"cat > {top}/new; env > {top}/env; ls -l /proc/$$/fd > {top}/fds; mv {top}/new {top}/told")
    bench.start()
    fail(bench, rundir, 1, code=0)
    fail(bench, rundir, 2)
    bench.until((top / "told").exists)
    told = json.loads((top / "told").read_text())
    assert (told["site"], told["script"], told["state"]) == ("alpha", "Base.py", "failed")
    assert told["id"] == bench.helper.dispatched[-1]["job_id"]
    assert told["mission_dir"] == "/home/sg123/mission2"
    assert (told["record"]["exit_code"], told["record"]["log_tail"]) == (3, "the last line\n")
    names = {line.partition("=")[0] for line in (top / "env").read_text().splitlines()}
    assert names <= {"PATH", "LANG", "PWD", "OLDPWD", "SHLVL", "_"}
    held = (top / "fds").read_text()
    assert "memfd:job" in held
    assert not any(what in held for what in ("socket:", "inotify", "ledger", "eventpoll"))


def test_a_refused_job_is_told_of_with_its_reason(bench: Bench, rundir: Path) -> None:
    program(bench, f"cat > {bench.directory}/new; mv {bench.directory}/new {bench.directory}/told")
    bench.helper.on_dispatch = lambda message: bench.helper.say(
        {"event": "refused", "job_id": message["job_id"], "reason": "no such log"}
    )
    bench.start()
    bench.drop(rundir, "1.run")
    bench.until((bench.directory / "told").exists)
    told = json.loads((bench.directory / "told").read_text())
    assert (told["state"], told["reason"], told["record"]) == ("refused", "no such log", None)


def test_no_more_run_than_may_and_what_is_left_out_is_logged(
    bench: Bench, rundir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failurehook, "MOST_ALIVE", 1)
    gate = bench.directory / "gate"
    os.mkfifo(gate)
    program(bench, f"echo $$ >> {bench.directory}/ran; read _ < {gate}")
    bench.start()
    fail(bench, rundir, 1)
    bench.until((bench.directory / "ran").exists)
    fail(bench, rundir, 2)
    bench.until(lambda: bench.events("on-failure program not run"))
    fail(bench, rundir, 3, code=0)  # everything else goes on
    with gate.open("w") as waiting:
        waiting.write("\n")
    assert bench.watcher is not None
    hook = bench.watcher.hook
    assert hook is not None
    bench.until(lambda: hook._alive == 0)
    assert len((bench.directory / "ran").read_text().splitlines()) == 1


def test_it_is_not_started_more_often_than_may_be(bench: Bench, rundir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failurehook, "MOST_IN_A_WHILE", 2)
    program(bench, f"echo $$ >> {bench.directory}/ran")
    bench.start()
    for number in range(1, 4):
        fail(bench, rundir, number)
    bench.until(lambda: bench.events("on-failure program not run"))
    bench.until(lambda: len((bench.directory / "ran").read_text().splitlines()) == 2)


def test_one_that_does_not_end_is_killed_with_what_it_started(
    bench: Bench, rundir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failurehook, "PATIENCE", 0.2)
    child = bench.directory / "child"
    program(bench, f"sleep 3600 & echo $! > {child}.new; mv {child}.new {child}; wait")
    bench.start()
    fail(bench, rundir)
    bench.until(lambda: bench.events("on-failure program failed", reason="it has run for 0.2 s and is killed"))
    bench.until(lambda: bench.events("on-failure program failed", reason="it was killed by signal 9"))
    bench.until(lambda: not Path("/proc", child.read_text().strip()).exists())


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "it cannot be started: No such file or directory"), ("exit 4", "it ended with 4")]
)
def test_what_goes_wrong_with_it_is_logged(bench: Bench, rundir: Path, text: str | None, reason: str) -> None:
    path = program(bench, text or "")
    if text is None:
        path.unlink()
    bench.start()
    fail(bench, rundir)
    bench.until(lambda: bench.events("on-failure program failed", reason=reason))
