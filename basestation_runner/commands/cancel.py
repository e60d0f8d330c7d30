"""Options of `runner cancel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("jobs", metavar="JOB...", type=common.JobId(), nargs=-1, required=True)
@common.control_socket
@common.as_json
def cancel(*, jobs: tuple[str, ...], control_socket: Path, as_json: bool) -> int:
    """Cancel jobs: one that waits never runs; one that runs gets SIGTERM, and SIGKILL if it has not ended soon after.

    While the helper is away this is recorded, and done as soon as it is back. Exit status 1 if a job had ended before.
    """
    from basestation_runner.operate.change import cancel as run

    return run(control_socket, jobs, as_json=as_json)
