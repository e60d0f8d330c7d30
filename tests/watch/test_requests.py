"""From a file in a rundir to a job that ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.watch.conftest import Bench


def test_a_dropped_request_is_committed_dispatched_and_acknowledged(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    path = bench.drop(rundir, "1.run", script="GliderEarlyGPS.py")
    bench.until(lambda: bench.events("job ended"))
    bench.until(lambda: not path.exists())
    (sent,) = bench.helper.dispatched
    assert sent["site"] == "alpha"
    assert sent["application"] == "early-gps"
    assert sent["script"] == "GliderEarlyGPS.py"
    assert sent["args"] == ["--verbose"]
    assert sent["queue_length"] == 0
    bench.until(lambda: bench.helper.settled == [sent["job_id"]])
    assert bench.states() == {"1.run": "succeeded"}
    (line,) = (bench.directory / "completions.log").read_text().splitlines()
    assert json.loads(line)["returncode"] == 0
