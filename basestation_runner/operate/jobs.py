"""`runner jobs` and `runner show`: which jobs there are and were, and everything about one of them."""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from basestation_runner.errors import EXIT_OK, printable
from basestation_runner.operate import output, values
from basestation_runner.operate.client import Client
from basestation_runner.operate.output import Table, age, short, when, who

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from basestation_runner.operate.client import Facts
    from basestation_runner.operate.output import Block

_REVISION: Final = 12
"""Digits of a profile's revision that are shown."""
_MIB: Final = 1 << 20
_KIB: Final = 1 << 10


@frozen(kw_only=True)
class JobsOptions:
    control_socket: Path
    sites: Sequence[str]
    states: Sequence[str]
    script: str | None
    since: float | None
    limit: int
    as_json: bool


def run(options: JobsOptions) -> int:
    """List jobs, the newest first; return the exit status. Raises RunnerError."""
    with Client(options.control_socket) as client:
        jobs = list(
            client.jobs(
                options.limit,
                sites=list(options.sites) or None,
                states=list(options.states) or None,
                script=options.script,
                since=options.since,
            )
        )
    if options.as_json:
        output.show_json([output.named(job) for job in jobs])
        return EXIT_OK
    is_cut = f" (the newest {options.limit}; --limit shows more)" if len(jobs) == options.limit else ""
    table = Table(
        f"Jobs{is_cut}",
        ("JOB", "SITE", "SCRIPT", "MISSION DIRECTORY", "STATE", "ACCEPTED", "TOOK", "WHY"),
        [_row(job, time.time()) for job in jobs],
        "There is no such job.",
    )
    output.show([table])
    return EXIT_OK


def _row(job: Facts, now: float) -> tuple[str, ...]:
    began, ended = job["started_at"], job["ended_at"]
    took = "-" if began is None else age((ended or now) - began)
    return (
        short(job),
        job["site"],
        job["script"],
        job["mission_dir"],
        job["state"],
        when(job["accepted_at"]),
        took,
        output.result(job),
    )


def show(control_socket: Path, job_id: str, *, as_json: bool) -> int:
    """Show everything about one job; return the exit status. Raises RunnerError."""
    with Client(control_socket) as client:
        job = client.ask("job", job=job_id)["job"]
    if as_json:
        output.show_json(output.named(job))
    else:
        output.show(_everything(job))
    return EXIT_OK


def _everything(job: Facts) -> list[Block]:
    lines = {
        "site": job["site"],
        "script": f"{job['script']} (application {job['application']})",
        "arguments": " ".join(job["args"]),
        "adds": json.dumps(job["additions"]) if job["additions"] else None,
        "home": job["home"],
        "mission directory": job["mission_dir"],
        "log": job["log_file"],
        "request": job["request"],
        "submitted by": who(job["submitter"]),
        "repeats": job["rerun_of"],
        "state": job["state"],
        "result": output.result(job),
        "accepted": when(job["accepted_at"]),
        "dispatched": f"{when(job['starting_at'])}, {_times(job['attempts'])}" if job["attempts"] else None,
        "started": f"{when(job['started_at'])}, process {job['pid']}" if job["started_at"] else None,
        "cancelled": f"{when(job['cancelled_at'])} by {who(job['cancelled_by'])}" if job["cancelled_at"] else None,
        "ended": when(job["ended_at"]) if job["ended_at"] else None,
        **_usage(job["record"] or {}),
    }
    shown = [(name, value) for name, value in lines.items() if value]
    width = max(len(name) for name, _ in shown)
    blocks: list[Block] = [
        "\n".join([f"Job {job['id']}", *(f"  {name.ljust(width)}  {printable(value)}" for name, value in shown)])
    ]
    if job["dispatch"]:
        blocks.append("\n".join(["It was started with:", *_dispatched(job)]))
    if steps := (job["record"] or {}).get("steps"):
        blocks.append("\n".join(["Its steps:", *(f"  {_step(step)}" for step in steps)]))
    tail = (job["record"] or {}).get("log_tail")
    if tail:
        blocks.append("\n".join(["The last of its log:", *(f"  {line}" for line in tail.splitlines())]))
    elif job["ended_at"] is None and job["started_at"] is not None:
        blocks.append(f"It is running: `runner logs -f {short(job)}` shows its log.")
    return blocks


def _dispatched(job: Facts) -> Iterator[str]:
    """Return the lines of a dispatch record: as whom, what, and each value with where it is from."""
    record = job["dispatch"]
    revision = str(record.get("revision", ""))[:_REVISION]
    return values.lines(
        {
            "account": f"{record['account']} (uid {record['uid']})" if "account" in record else None,
            "groups": ", ".join(map(str, record.get("groups", ()))),
            "command": shlex.join(record.get("argv", ())),
            "variables": ", ".join(record.get("env", ())),
            **values.effective(record.get("effective", {})),
            "profile": f"{revision}; profile changed since dispatch" if job["profile_changed"] else revision,
        }
    )


def _step(step: dict[str, Any]) -> str:
    return printable(f"{step['step']} {step['failed'] or 'succeeded'} ({step['seconds']:.2f} s)")


def _times(attempts: int) -> str:
    return "once" if attempts == 1 else f"{attempts} times"


def _usage(record: dict[str, Any]) -> dict[str, str]:
    """Return what the job has used, as far as that is known."""
    used = {}
    if record.get("seconds") is not None:
        used["took"] = f"{record['seconds']:.2f} s"
    if record.get("user_seconds") is not None and record.get("system_seconds") is not None:
        used["CPU time"] = f"{record['user_seconds']:.2f} s user, {record['system_seconds']:.2f} s system"
    memory = record.get("memory_peak_bytes") or (record.get("max_rss_kib") or 0) * _KIB
    if memory:
        used["most memory"] = f"{memory / _MIB:.1f} MiB"
    return used
