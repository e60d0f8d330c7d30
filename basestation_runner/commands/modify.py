"""Options of `runner modify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("job", type=common.JobId())
@click.option("--application", metavar="NAME", required=True, help="The profile that the job is to be run with.")
@common.control_socket
@common.as_json
def modify(*, job: str, application: str, control_socket: Path, as_json: bool) -> int:
    """Have a job that waits run with another application profile; it keeps its place.

    It is checked as a request is: the profile must be the one that runs the job's script at its site, and allow what
    the job adds.
    """
    from basestation_runner.operate.change import modify as run

    return run(control_socket, job, application, as_json=as_json)
