"""Options of `runner release`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("sites", metavar="[SITE]...", nargs=-1)
@common.whole_host
@common.control_socket
@common.as_json
def release(*, sites: tuple[str, ...], whole_host: bool, control_socket: Path, as_json: bool) -> int:
    """Start jobs again of sites that are held or drained.

    --all ends a hold of the whole host; those of single sites stay.
    """
    from basestation_runner.operate.change import release as run

    return run(control_socket, common.held(sites, whole_host=whole_host), as_json=as_json)
