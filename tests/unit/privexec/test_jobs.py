"""The helper's table of jobs, without any process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from basestation_runner.privexec.cgroups import Cgroups
from basestation_runner.privexec.jobs import Job, Jobs
from basestation_runner.privexec.loop import Loop

if TYPE_CHECKING:
    from basestation_runner.privexec.claims import Claims
    from basestation_runner.privexec.forks import Forks


def test_a_pid_that_was_used_twice_means_the_job_that_was_started_last() -> None:
    jobs = Jobs(Loop(), cast("Claims", None), Cgroups(None), cast("Forks", None))
    later: dict[str, Any] = {"pid": 40, "started_at": 2000.0}
    earlier: dict[str, Any] = {"pid": 40, "started_at": 1000.0}
    for job_id, state, facts in (("c", "starting", {}), ("a", "running", later), ("b", "ended", earlier)):
        jobs._jobs[job_id] = Job(job_id, "one", cast("Any", state), **facts)
    found = jobs.with_pid(40)
    assert found is not None
    assert found.job_id == "a"
    assert jobs.with_pid(41) is None
