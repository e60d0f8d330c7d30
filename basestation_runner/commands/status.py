"""Options of `runner status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@common.control_socket
@common.since("Count failures and lost jobs from then on.", default="24h")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until interrupted.")
@click.option("--check", is_flag=True, help="For monitoring: one line, and exit status 1 if somebody should look.")
@common.as_json
def status(*, control_socket: Path, since: float, watch: bool, check: bool, as_json: bool) -> int:
    """Show sites, queues, running jobs and what went wrong.

    Somebody who is not an operator sees the sites whose group they are in. --check fails when a site is pending, a
    queue is stuck, the helper has been away for a minute or has read another configuration, or a job was lost since
    --since.
    """
    from basestation_runner.operate.status import StatusOptions, run

    if watch and check:
        raise click.UsageError("--watch and --check exclude each other")
    return run(StatusOptions(control_socket=control_socket, since=since, as_json=as_json, watch=watch, check=check))
