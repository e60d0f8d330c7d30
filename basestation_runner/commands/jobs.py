"""Options of `runner jobs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path

STATES = (
    "queued",
    "starting",
    "running",
    "succeeded",
    "failed",
    "cancelled",
    "timed_out",
    "out_of_memory",
    "lost",
    "refused",
)


@click.command()
@common.control_socket
@click.option("--site", "sites", multiple=True, help="Only jobs of this site; may be repeated.")
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only jobs in this state; may be repeated."
)
@click.option("--script", help="Only jobs of this script.")
@common.since("Only jobs that were accepted since then.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Most jobs to show.")
@common.as_json
def jobs(
    *,
    control_socket: Path,
    sites: tuple[str, ...],
    states: tuple[str, ...],
    script: str | None,
    since: float | None,
    limit: int,
    as_json: bool,
) -> int:
    """List jobs, the newest first: those that wait, run or have ended."""
    from basestation_runner.operate.jobs import JobsOptions, run

    return run(
        JobsOptions(
            control_socket=control_socket,
            sites=sites,
            states=states,
            script=script,
            since=since,
            limit=limit,
            as_json=as_json,
        )
    )
