"""Options of `runner logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("job", type=common.JobId())
@common.control_socket
@click.option("-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True, help="Most lines to show.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written until the job has ended.")
def logs(*, job: str, control_socket: Path, lines: int, follow: bool) -> int:
    """Show the end of a job's log.

    The log is opened as whoever calls this: who may not read it sees nothing. Several jobs may write to one log.
    """
    from basestation_runner.operate.logs import run

    return run(control_socket, job, lines=lines, follow=follow)
