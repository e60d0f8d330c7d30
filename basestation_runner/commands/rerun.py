"""Options of `runner rerun`."""

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
def rerun(*, job: str, control_socket: Path, as_json: bool) -> int:
    """Have a job that has ended run once more, as a new job with an id of its own.

    It is checked again: what the site may not run any more is refused.
    """
    from basestation_runner.operate.change import rerun as run

    return run(control_socket, job, as_json=as_json)
