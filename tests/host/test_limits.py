"""Limits of a job's own, with real jobs: it is stopped in time, with all that it started, and its end says why."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

import pytest

from basestation_runner import processes
from tests.host.helper_client import DEADLINE, Station

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.sandbox.installation import Site
    from tests.host.helper_client import Message

GIB = 1 << 30
SHOW = "import resource; print(resource.getrlimit(resource.RLIMIT_AS))"
NEED = "x = bytearray(2 << 30)"
STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    pass
with open("pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
while True:
    signal.pause()
"""
TIDY = """
import signal, sys
def leave(*_):
    print("tidied up", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
signal.pause()
"""


@pytest.fixture
def site(station: Station) -> Site:
    return station.add_site("one")


def order(station: Station, site: Site, code: str, **limits: object) -> Message:
    return station.order(site, station.mission(site), "do.py", code, additions={"limits": limits})


def leaf(station: Station, job: Message) -> Path:
    return station.installation.cgroup_root / "site-one" / f"job-{job['job_id']}"


def without_cgroups(station: Station) -> None:
    os.chown(station.installation.cgroup_root, 0, 0)


def test_a_job_that_runs_too_long_is_asked_to_end_and_its_log_says_why(station: Station, site: Site) -> None:
    station.start()
    job = order(station, site, TIDY, runtime="1s")
    record = station.run(job)
    assert (record["exit_code"], record["limit"]) == (0, "runtime")
    tidied, told = record["log_tail"].splitlines()
    assert tidied == "tidied up"
    assert told.endswith(f"ERROR: runner: do.py (job_id={job['job_id']}) was stopped: it ran longer than 1s")
    assert (leaf(station, job) / "cgroup.kill").read_text() == "1"


@pytest.mark.parametrize("has_cgroups", [True, False], ids=["with cgroups", "without cgroups"])
def test_a_job_that_does_not_end_when_it_is_asked_to_is_killed_with_what_it_started(
    station: Station, site: Site, *, has_cgroups: bool
) -> None:
    if not has_cgroups:
        without_cgroups(station)
    station.start()
    job = order(station, site, STUBBORN, runtime="1s")
    station.start_job(job)
    record = station.client.event(job["job_id"], "ended")["record"]
    assert (record["signal"], record["limit"]) == (9, "runtime")
    written = (site.homes / "sg001").rglob("pids")
    for pid in (int(line) for path in written for line in path.read_text().split()):
        pidfd = processes.open_if_alive({"pid": pid, "start": None})
        if pidfd is not None:
            assert select.select([pidfd], [], [], DEADLINE)[0]
            os.close(pidfd)


def test_a_job_that_ends_in_time_has_reached_no_limit(station: Station, site: Site) -> None:
    station.start()
    record = station.run(order(station, site, "print('ran')", runtime="1h", memory="8G", cpu="50%", tasks=100))
    assert (record["exit_code"], record["limit"], record["log_tail"]) == (0, None, "ran\n")


def test_a_jobs_limits_are_those_of_its_cgroup(station: Station, site: Site) -> None:
    station.start()
    job = order(station, site, "print('ran')", memory="2G", cpu="150%", tasks=7)
    station.run(job)
    files = {path.name: path.read_text() for path in leaf(station, job).iterdir()}
    assert files == {
        "cgroup.procs": "0",
        "memory.max": str(2 * GIB),
        "cpu.max": "150000 100000",
        "pids.max": "7",
    }
    assert not station.warnings()


def test_a_job_that_the_kernel_killed_for_want_of_memory_is_told_from_one_that_somebody_killed(
    station: Station, site: Site
) -> None:
    station.start()
    code = "import os, signal; signal.pause()"
    for kills, limit in ((0, None), (1, "memory")):
        job = order(station, site, code, memory="2G")
        pid = station.start_job(job)["pid"]
        (leaf(station, job) / "memory.events").write_text(f"low 0\nhigh 0\nmax 3\noom 1\noom_kill {kills}\n")
        os.kill(pid, 9)
        record = station.client.event(job["job_id"], "ended")["record"]
        assert (record["signal"], record["limit"]) == (9, limit)
    assert "ran out of memory: it needed more than 2G" in record["log_tail"]


def test_without_a_cgroup_each_process_has_the_jobs_memory_and_the_log_says_so(station: Station, site: Site) -> None:
    without_cgroups(station)
    station.start()
    assert station.run(order(station, site, SHOW, memory="1G"))["log_tail"] == f"({GIB}, {GIB})\n"
    failed = station.run(order(station, site, NEED, memory="1G", cpu="50%", tasks=9))
    assert failed["exit_code"] == 1
    assert "MemoryError" in failed["log_tail"]
    told = [warning["event"] for warning in station.warnings(site="one")]
    assert "limits.memory counts for each process of a job by itself, as there is no cgroup for it" in told
    assert "not applied to a job, as there is no cgroup for it: limits.cpu, limits.tasks" in told


def test_a_job_is_stopped_in_time_although_its_helper_was_killed_meanwhile(station: Station, site: Site) -> None:
    station.start()
    job = order(station, site, TIDY, runtime="2s")
    station.start_job(job)
    station.daemon.kill()
    station.start()
    station.client.send({"request": "inquire", "job_ids": [job["job_id"]]})
    assert station.client.event(job["job_id"], "ended")["record"]["limit"] == "runtime"
