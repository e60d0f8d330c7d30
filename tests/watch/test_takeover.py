"""A site that was taken over from a legacy daemon: what is older than that one's end was never run, and is not now."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from basestation_runner.watch import takeover
from tests.patience import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.watch.conftest import Bench

MINUTE = 60.0


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def ticked(directory: Path) -> float:
    tick = directory / "tick"
    tick.touch()
    return tick.stat().st_ctime


@pytest.mark.parametrize("was_active", [False, True])
def test_what_is_older_than_the_legacy_daemons_end_is_stale_and_nothing_else(bench: Bench, was_active: bool) -> None:  # noqa: FBT001 - a case
    """It counts when they came, not how old they look: one may have been copied with its time."""
    rundir = bench.site("alpha")
    if was_active:
        bench.start()
        bench.stop()
    state = bench.directory / "state"
    age(bench.drop(rundir, "before.run"), 1 * MINUTE)
    stopped_at = time.time()
    takeover.write(state, "alpha", stopped_at)
    until(lambda: ticked(rundir) > stopped_at, "the kernel's clock to go on")
    age(bench.drop(rundir, "since.run"), 61 * MINUTE)
    bench.start()
    bench.until(lambda: bench.states() == {"since.run": "succeeded"})
    assert [path.name.partition(".")[0] for path in (rundir / "stale").iterdir()] == ["before"]
    bench.until(lambda: takeover.read(state, "alpha") is None, "the word to be forgotten")


def test_without_word_a_known_site_has_nothing_stale(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    bench.stop()
    age(bench.drop(rundir, "old.run"), 60 * MINUTE)
    bench.start()
    bench.until(lambda: bench.states() == {"old.run": "succeeded"})


def test_word_is_left_whole_and_taken_back(tmp_path: Path) -> None:
    takeover.write(tmp_path, "alpha", None)
    takeover.write(tmp_path, "alpha", 12.5)
    assert takeover.read(tmp_path, "alpha") == 12.5
    assert len(list(tmp_path.iterdir())) == 1
    takeover.write(tmp_path, "alpha", None)
    assert takeover.read(tmp_path, "alpha") is None
    (tmp_path / "taken-over-alpha").write_text("soon")
    assert takeover.read(tmp_path, "alpha") is None
