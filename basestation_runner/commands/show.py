"""Options of `runner show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("job", type=common.JobId())
@common.control_socket
@common.as_json
def show(*, job: str, control_socket: Path, as_json: bool) -> int:
    """Show everything about one job: who asked for what, what became of it and why, what it used.

    JOB is its id, or as much of its beginning as no other job's id has.
    """
    from basestation_runner.operate.jobs import show as run

    return run(control_socket, job, as_json=as_json)
