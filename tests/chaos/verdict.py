"""What must be true of a host at rest, whatever was killed: each request ran once, in order, and its end is known."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.chaos.host import Host, Job, Request


@define
class Harm:
    """What was done to jobs on purpose, by the jobs' ids: only these may have ended in another way than they wanted."""

    without_keeper: set[str] = field(factory=set)
    killed: set[str] = field(factory=set)


def faults(host: Host, harm: Harm) -> list[str]:
    """Return every promise that was not kept, as sentences."""
    jobs: dict[str, list[Job]] = defaultdict(list)
    for job in host.jobs():
        jobs[job.request].append(job)
    found = [f"a job that nobody asked for: {name}" for name in jobs.keys() - host.requests.keys()]
    for request in host.requests.values():
        found += (f"{request.name}: {fault}" for fault in _of_request(request, jobs[request.name], harm))
    for mission in {request.mission for request in host.requests.values()}:
        found += (f"{mission}: {fault}" for fault in _of_queue(mission, jobs, harm))
    return found


def _of_request(request: Request, jobs: list[Job], harm: Harm) -> Iterator[str]:
    runs = request.runs
    if len(jobs) != 1:
        yield f"it became {len(jobs)} jobs, which ran {len(runs)} times"
        return
    (job,) = jobs
    if runs not in ([], [job.job_id]):
        yield f"it ran {len(runs)} times, as {runs}; its job is {job.job_id}"
    if job.site != request.site:
        yield f"it ran for {job.site}"
    if job.state == "lost":
        if job.job_id not in harm.without_keeper:
            yield f"it is lost although its keeper was left alone: {job.reason}"
        if not job.reason:
            yield "it is lost without a reason"
        return
    if not runs and job.job_id not in harm.killed:  # which it may have been before its first act
        yield f"it is {job.state} and never ran"
    wanted = ("succeeded" if request.exit_code == 0 else "failed", request.exit_code, None)
    got = (job.state, job.exit_code, job.signal)
    if got != wanted and not (job.job_id in harm.killed and got == ("failed", None, 9)):
        yield f"it is {got}, not {wanted}: {job.reason}"


def _of_queue(mission: Path, jobs: dict[str, list[Job]], harm: Harm) -> Iterator[str]:
    """See that a mission's jobs ran one at a time, in the order in which they were accepted."""
    try:
        lines = (mission / "order").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return
    places = [jobs[line[2:]][0].seq for line in lines if line.startswith("+") and jobs[line[2:]]]
    if places != sorted(places):
        yield f"its jobs did not run in their order: {places}"
    running = None
    for line in lines:
        name = line[2:]
        if line.startswith("-"):
            if running != name:
                yield f"{name} ended while {running} ran"
            running = None
        else:
            if running is not None and not any(job.job_id in harm.killed for job in jobs[running]):
                yield f"{name} began while {running} ran"
            running = name
