"""Options of `runner drain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("site", required=False, default="")
@click.option(
    "--return-requests",
    is_flag=True,
    help="Write the requests of jobs that wait back into the rundir, and take none from there until `runner release`.",
)
@common.control_socket
@common.as_json
def drain(*, site: str, return_requests: bool, control_socket: Path, as_json: bool) -> int:
    """Hold a site, or the whole host, and return when nothing of it runs any more.

    `runner release SITE`, or `runner release --all` for the host, ends it.
    """
    from basestation_runner.operate.change import drain as run

    return run(control_socket, site, return_requests=return_requests, as_json=as_json)
