"""`runner status`: the whole at a glance, live, or as one line and an exit status for a monitoring system."""

from __future__ import annotations

import sys
import time
from itertools import count
from typing import TYPE_CHECKING, Final

import click
from attrs import frozen

from basestation_runner.errors import EXIT_FAILED, EXIT_OK, TemporaryError, printable
from basestation_runner.operate import output
from basestation_runner.operate.client import Client
from basestation_runner.operate.output import Table, age, short, when

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.operate.client import Facts
    from basestation_runner.operate.output import Block

EVERY: Final = 2.0
"""Seconds between two looks of `--watch`."""
_TOLERATED_AWAY: Final = 60.0
"""Seconds that the helper may be away, for instance for an upgrade, before a check says so."""


@frozen(kw_only=True)
class StatusOptions:
    control_socket: Path
    since: float
    as_json: bool
    watch: bool
    check: bool


def run(options: StatusOptions) -> int:
    """Show the status; return the exit status. Raises RunnerError."""
    if options.check:
        return _check(options)
    if options.watch:
        _watch(options)
    else:
        _show(_facts(options), as_json=options.as_json)
    return EXIT_OK


def _facts(options: StatusOptions) -> Facts:
    with Client(options.control_socket) as client:
        facts = client.ask("status", since=options.since)
        return {**facts, "counts": facts["sites"], "sites": client.all_sites()}


def _show(facts: Facts, *, as_json: bool) -> None:
    if as_json:
        output.show_json({key: value for key, value in facts.items() if key != "ok"})
    else:
        output.show(blocks(facts, time.time()))


def _watch(options: StatusOptions) -> None:
    """Show it again and again, until interrupted; a watcher that is away meanwhile is waited for."""
    if options.as_json or not sys.stdout.isatty():
        for number in count():
            if number:
                time.sleep(EVERY)
            _show(_facts(options), as_json=options.as_json)
            sys.stdout.flush()
    from rich.live import Live  # noqa: PLC0415 - for a terminal only

    with Live(auto_refresh=False, screen=True) as live:
        while True:
            try:
                shown = blocks(_facts(options), time.time())
            except TemporaryError as error:
                shown = [str(error)]
            live.update(output.renderable([*shown, "Ctrl-C ends this."]), refresh=True)
            time.sleep(EVERY)


def blocks(facts: Facts, now: float) -> list[Block]:
    """Given what the watcher says and the time, return what is shown."""
    return [
        "\n".join(_headline(facts, now)),
        Table(
            "Sites",
            ("SITE", "STATE", "RUNNING", "QUEUED", "OLDEST", "WHY"),
            [_site_row(site, now) for site in facts["sites"]],
            "There is no site that you may see.",
        ),
        Table(
            "Running jobs",
            ("JOB", "SITE", "SCRIPT", "MISSION DIRECTORY", "STATE", "FOR"),
            [_running_row(job, now) for job in facts["jobs_running"]],
            "No job is running.",
        ),
        _oldest(facts["oldest_waiting"], now),
        Table(
            f"Failures since {when(facts['since'])}",
            ("ENDED", "JOB", "SITE", "SCRIPT", "STATE", "WHY"),
            [_failure_row(job) for job in facts["failures"]],
            f"No job has failed since {when(facts['since'])}.",
        ),
    ]


def _headline(facts: Facts, now: float) -> list[str]:
    watcher, helper, counts = facts["watcher"], facts["helper"], facts["counts"]
    lines = [f"Watcher {watcher['program']}, process {watcher['pid']}, for {age(now - watcher['started_at'])}."]
    if helper["reachable"]:
        config = {True: "same configuration", False: "another configuration", None: "configuration not known"}
        lines.append(
            f"Helper {helper['program']}, process {helper['pid']}, reachable, {config[helper['same_config']]}."
        )
    else:
        lines.append(f"Helper not reachable for {age(helper['away_seconds'] or 0)}: jobs wait, running ones go on.")
    if watcher["trouble"]:
        lines.append(f"Nothing goes on: {watcher['trouble']}.")
    if watcher["hold"]:
        lines.append(f"The host is held by {_hold(watcher['hold'])}: nothing is started.")
    figures = f"{counts['watching']} watching, {counts['pending']} pending, {counts['held']} held"
    lines.append(f"Sites: {figures}. Jobs: {facts['running']} running, {facts['queued']} queued.")
    if facts["stuck"]["jobs"]:
        lines.append(f"Of these, {_stuck(facts['stuck'])}.")
    return lines


def _stuck(stuck: Facts) -> str:
    """Say which jobs cannot be started for a reason that may last."""
    first = stuck["first"]
    what = "1 job is" if stuck["jobs"] == 1 else f"{stuck['jobs']} jobs are"
    return f"{what} stuck, for instance {short(first)} of {first['site']}: {first['reason']}"


def _hold(hold: Facts) -> str:
    return f"{output.who(hold['by'])} since {when(hold['at'])}"


def _site_row(site: Facts, now: float) -> tuple[str, ...]:
    oldest = site["oldest_waiting"]
    held = f"held by {_hold(site['hold'])}" if site["hold"] else ""
    why = output.sentence([site["reason"] or "", held, *site["remarks"]])
    return (
        site["site"],
        site["state"],
        str(site["running"]),
        str(site["queued"]),
        "-" if oldest is None else age(now - oldest["accepted_at"]),
        why or (oldest["reason"] or "" if oldest else ""),
    )


def _running_row(job: Facts, now: float) -> tuple[str, ...]:
    began = job["started_at"] or job["starting_at"] or now
    state = job["state"] if job["cancelled_at"] is None else f"{job['state']}, to be cancelled"
    return short(job), job["site"], job["script"], job["mission_dir"], state, age(now - began)


def _oldest(job: Facts | None, now: float) -> str:
    if job is None:
        return "No job waits."
    which = f"{job['script']} of {job['site']} ({short(job)}), for {age(now - job['accepted_at'])}"
    return f"Longest waiting: {which}: {job['reason'] or 'no reason'}."


def _failure_row(job: Facts) -> tuple[str, ...]:
    return when(job["ended_at"]), short(job), job["site"], job["script"], job["state"], output.result(job)


# For monitoring


def _check(options: StatusOptions) -> int:
    facts = _facts(options)
    faults = list(faults_of(facts))
    if options.as_json:
        output.show_json({"ok": not faults, "faults": faults})
    elif faults:
        click.echo(printable("; ".join(faults)))
    else:
        counts = facts["counts"]
        click.echo(f"ok: {counts['watching']} sites watching, {facts['running']} running, {facts['queued']} queued")
    return EXIT_FAILED if faults else EXIT_OK


def faults_of(facts: Facts) -> list[str]:
    """Given what the watcher says, return what somebody should look at."""
    pending = [site for site in facts["sites"] if site["state"] == "pending"]
    faults = [f"site {site['site']} is pending: {site['reason']}" for site in pending]
    helper = facts["helper"]
    if facts["watcher"]["trouble"]:
        faults.append(facts["watcher"]["trouble"])
    if not helper["reachable"] and helper["away_seconds"] > _TOLERATED_AWAY:
        faults.append(f"the helper is not reachable for {age(helper['away_seconds'])}")
    if helper["same_config"] is False:
        faults.append("watcher and helper have read different configurations: restart both")
    if facts["stuck"]["jobs"]:
        faults.append(_stuck(facts["stuck"]))
    if facts["lost"]:
        what = "1 job was" if facts["lost"] == 1 else f"{facts['lost']} jobs were"
        faults.append(f"{what} lost since {when(facts['since'])}")
    return faults
