"""`runner cancel`, `rerun`, `modify`, `hold`, `release`, `drain`, `reload`: what is done to jobs and sites."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from basestation_runner.errors import EXIT_FAILED, EXIT_OK, RunnerError, TemporaryError, printable
from basestation_runner.operate import output
from basestation_runner.operate.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from basestation_runner.operate.client import Facts

EVERY: Final = 0.5
"""Seconds between two looks at whether anything still runs."""
RELOAD_PATIENCE: Final = 180.0
"""Seconds in which both daemons have read the configuration, or have given up."""
HOST: Final = ""
_SAID: Final = {
    "cancelled": "cancelled: it never ran",
    "asked": "to be cancelled: it is told to end, and killed if it does not",
}


def cancel(control_socket: Path, job_ids: Sequence[str], *, as_json: bool) -> int:
    """Cancel jobs; return the exit status, which is 1 if one of them could not be."""
    outcomes: list[Facts] = []
    with Client(control_socket) as client:
        for job_id in job_ids:
            try:
                outcomes.append({key: value for key, value in client.ask("cancel", job=job_id).items() if key != "ok"})
            except TemporaryError:
                raise
            except RunnerError as error:
                outcomes.append({"id": job_id, "outcome": "refused", "error": str(error)})
    if as_json:
        output.show_json(outcomes)
    else:
        output.show(["\n".join(f"{outcome['id']}: {_said(outcome)}" for outcome in outcomes)])
    return EXIT_OK if all(map(_is_done, outcomes)) else EXIT_FAILED


def _said(outcome: Facts) -> str:
    match outcome["outcome"]:
        case "ended":
            return f"it has ended: {outcome['state']}"
        case "refused":
            return str(outcome["error"])
        case done:
            return _SAID[done]


def _is_done(outcome: Facts) -> bool:
    return outcome["outcome"] in _SAID or outcome.get("state") == "cancelled"


def rerun(control_socket: Path, job_id: str, *, as_json: bool) -> int:
    """Have a job that has ended run again, as a new one; return the exit status. Raises RunnerError."""
    with Client(control_socket) as client:
        answer = client.ask("rerun", job=job_id)
    if as_json:
        output.show_json({"id": answer["id"], "rerun_of": answer["rerun_of"]})
    else:
        click.echo(f"{answer['id']} repeats {answer['rerun_of']}")
    return EXIT_OK


def modify(control_socket: Path, job_id: str, application: str, *, as_json: bool) -> int:
    """Have a job that waits run with another application; return the exit status. Raises RunnerError."""
    with Client(control_socket) as client:
        answer = client.ask("modify", job=job_id, application=application)
    if as_json:
        output.show_json({"id": answer["id"], "application": answer["application"]})
    else:
        click.echo(f"{answer['id']} waits to be run with application {answer['application']}")
    return EXIT_OK


def reload(control_socket: Path, *, as_json: bool) -> int:
    """Have both daemons read the configuration anew; return the exit status, which is 1 if nothing has changed by that.

    Raises RunnerError.
    """
    with Client(control_socket, RELOAD_PATIENCE) as client:
        answer = client.ask("reload")
    if as_json:
        output.show_json({key: value for key, value in answer.items() if key != "ok"})
    elif answer["faults"]:
        for fault in answer["faults"]:
            click.echo(printable(fault), err=True)
        if answer["more_faults"]:
            click.echo(f"and {answer['more_faults']} more", err=True)
        click.echo("Nothing is changed: what was read before stays in force.", err=True)
    else:
        output.show(["\n".join(printable(line) for line in _reloaded(answer))])
    return EXIT_FAILED if answer["faults"] else EXIT_OK


def _reloaded(answer: Facts) -> Iterator[str]:
    changes = [f"{what}: {', '.join(answer[what])}" for what in ("added", "removed", "changed") if answer[what]]
    yield f"Reloaded. Sites {'; '.join(changes)}." if changes else "Reloaded. No site is changed."
    if answer["helper"] == "away":
        yield "The helper is not reachable: it reads the configuration when it starts."
    for held in answer["held"]:
        yield f"{_jobs(held['jobs'])} waiting: {held['reason']}"
    for site in answer["needs_restart"]:
        yield f"site {site['site']}: {site['reason']}"


def hold(control_socket: Path, sites: Sequence[str], *, as_json: bool) -> int:
    """Have nothing of some sites started; return the exit status. Raises RunnerError."""
    with Client(control_socket) as client:
        answers = [client.ask("hold", site=site, closed=False) for site in sites]
    if as_json:
        output.show_json([{"site": answer["site"] or None, "running": answer["running"]} for answer in answers])
    else:
        for answer in answers:
            click.echo(f"{_name(answer['site'])} is held: nothing is started; {_jobs(answer['running'])} running")
    return EXIT_OK


def release(control_socket: Path, sites: Sequence[str], *, as_json: bool) -> int:
    """End holds; return the exit status. Raises RunnerError."""
    with Client(control_socket) as client:
        answers = [client.ask("release", site=site) for site in sites]
    if as_json:
        output.show_json([{"site": answer["site"] or None, "was_held": answer["was_held"]} for answer in answers])
    else:
        for answer in answers:
            done = "is released" if answer["was_held"] else "was not held"
            click.echo(f"{_name(answer['site'])} {done}")
    return EXIT_OK


def drain(control_socket: Path, site: str, *, return_requests: bool, as_json: bool) -> int:
    """Hold a site or the host, and wait until nothing of it runs; return the exit status. Raises RunnerError."""
    returned = left = 0
    told = None
    while True:
        with Client(control_socket) as client:
            running = client.ask("hold", site=site, closed=return_requests)["running"]
            has_more = return_requests
            while has_more:
                answer = client.ask("return", site=site)
                has_more = bool(answer["returned"])
                returned += answer["returned"]
                left = answer["left"]
        if not running:
            break
        if running != told and not as_json:
            told = running
            click.echo(f"waiting for {_jobs(running)}", err=True)
        time.sleep(EVERY)
    if as_json:
        output.show_json({"site": site or None, "running": 0, "returned": returned, "left": left})
    else:
        back = f"; {_requests(returned)} back in the rundir" if return_requests else ""
        back += f"; {_jobs(left)} of pending sites stay queued" if left else ""
        option = site or "--all"
        click.echo(f"{_name(site)} is drained: nothing runs{back}; `runner release {option}` ends this")
    return EXIT_OK


def _name(site: str) -> str:
    return f"site {site}" if site else "the host"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _requests(count: int) -> str:
    return "1 request is" if count == 1 else f"{count} requests are"
