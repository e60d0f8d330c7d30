"""`runner demo`: throw-away sites, both daemons, request files, and a table of what each job really was."""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

import click

from basestation_runner import sandbox
from basestation_runner.demo import scenario
from basestation_runner.demo.outcome import Outcome, report_of
from basestation_runner.demo.scenario import Request
from basestation_runner.errors import EXIT_FAILED, EXIT_OK, RunnerError
from basestation_runner.sandbox import Installation
from basestation_runner.sandbox.process import Event

Say: TypeAlias = Callable[[str], None]

_PATIENCE: Final = 60.0  # seconds for all requests, on a slow and busy machine
_ENDS: Final = ("job ended", "job lost", "job refused", "request rejected")
_HEADINGS: Final = ("SITE", "SCRIPT", "ACCOUNT", "UID", "GID", "GROUPS", "CAPS", "EXIT", "MS", "RESULT")
_LEGEND: Final = (
    "CAPS: the inheritable, permitted, effective and ambient capability sets; 0: all of them are empty",
    "MS: milliseconds from the request file's close to the job's first statement",
)
_SHOWN: Final = ("script", "job_id", "pid", "exit_code", "reason")


def run(keep: Path | None, as_json: bool) -> int:  # noqa: FBT001 - called by one command, with its option
    """Show what the runner does and return whether every job ran exactly as it should."""
    if keep is not None:
        _check_free(keep)
    say: Say = (lambda _: None) if as_json else click.echo
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # what ends the demo also ends what it started
    with ExitStack() as cleanup:
        if os.geteuid() == 0:
            say("Three sites, whose accounts exist in a private mount namespace only: nothing on the host changes.")
            installation = cleanup.enter_context(cleanup.enter_context(sandbox.with_accounts()).installation())
            requests = scenario.with_accounts(installation)
        else:
            say("Not root, so all sites have your own account, and one that has another is refused.")
            installation = cleanup.enter_context(cleanup.enter_context(sandbox.single_account()).installation())
            requests = scenario.single_account(installation)
        if keep is not None:
            cleanup.callback(_save, installation, keep, say)
        with _explained(installation):
            outcomes = _play(installation, requests, say)
    if as_json:
        click.echo(json.dumps({"jobs": [outcome.as_json() for outcome in outcomes]}, indent=1))
    else:
        click.echo("\n" + _table(outcomes))
    faults = [f"{o.request.site.name}, {o.request.script}: {fault}" for o in outcomes for fault in o.faults]
    for fault in faults:
        click.echo(f"runner: {fault}", err=True)
    return EXIT_FAILED if faults else EXIT_OK


def _play(installation: Installation, requests: Sequence[Request], say: Say) -> list[Outcome]:
    """Start both daemons, drop the requests one after the other, and stop the daemons."""
    helper = installation.start_helper()
    watcher = installation.start_watcher()
    say(f"The helper (pid {helper.pid}) and the watcher (pid {watcher.pid}) are ready.\n")
    events = watcher.follow(_PATIENCE)
    outcomes = [_outcome(installation, request, events, say) for request in requests]
    for daemon in (watcher, helper):
        status = daemon.stop()
        if status != 0:
            raise RunnerError(f"{daemon.name} ended with status {status}")
    return outcomes


def _outcome(installation: Installation, request: Request, events: Iterator[Event], say: Say) -> Outcome:
    """Drop a request, tell what the watcher says of it, and return what became of it."""
    client = installation.account(request.glider)
    drop = installation.drop(request.site, request.text, by=client, name=request.file)
    say(f"[{request.site.name}] {request.glider} drops {request.file}: {request.text.rstrip()}")
    for event in events:
        if event.get("site") != request.site.name or not event["event"].startswith(("request ", "job ")):
            continue
        facts = (f"{name}={event[name]}" for name in _SHOWN if event.get(name) is not None)
        ms = datetime.fromisoformat(event["time"]).timestamp() * 1e3 - drop.closed_ns / 1e6
        say(f"[{request.site.name}] {ms:4.0f} ms  {event['event']} {' '.join(facts)}")
        if event["event"] in _ENDS:
            job_id = event.get("job_id")
            report = report_of(request, job_id) if job_id else None
            return Outcome(request, drop, job_id, event.get("exit_code"), event.get("reason"), report)
    raise AssertionError  # events go on until somebody has enough


def _table(outcomes: Sequence[Outcome]) -> str:
    rows = [_HEADINGS, *(_row(outcome) for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += _LEGEND
    lines += [f"{o.request.site.name}: {o.request.script} did not run: {o.reason}" for o in outcomes if o.reason]
    return "\n".join(lines)


def _row(outcome: Outcome) -> tuple[str, ...]:
    entry = outcome.as_json()
    sets = {value for value in outcome.capabilities.values() if value != "0"}
    cells = (
        *(entry[name] for name in ("site", "script", "account", "uid", "egid")),
        None if entry["groups"] is None else ",".join(map(str, entry["groups"])),
        None if outcome.report is None else ",".join(sorted(sets)) or "0",
        entry["exit_code"],
        entry["ms"],
        "; ".join(outcome.faults) or ("as it should" if outcome.reason is None else "refused, as it should be"),
    )
    return tuple("-" if cell is None else str(cell) for cell in cells)


@contextlib.contextmanager
def _explained(installation: Installation) -> Iterator[None]:
    """Show the ends of the daemons' logs for a failure that they may explain."""
    try:
        yield
    except RunnerError:
        for daemon in installation.daemons:
            click.echo(daemon.tail(), err=True)
        raise


def _check_free(keep: Path) -> None:
    if keep.exists() and not (keep.is_dir() and not any(keep.iterdir())):
        raise RunnerError("there is something there already", where=str(keep), hint="name a new or empty directory")


def _save(installation: Installation, keep: Path, say: Say) -> None:
    installation.save(keep)
    say(f"\nConfig, logs, ledger and the sites' trees are in {keep}.")
