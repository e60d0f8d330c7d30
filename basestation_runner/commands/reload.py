"""Options of `runner reload`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@common.control_socket
@common.as_json
def reload(*, control_socket: Path, as_json: bool) -> int:
    """Have watcher and helper read their configuration anew, and wait until they go by it.

    Files with a fault change nothing: every fault is shown, and the exit status is 1. Running jobs go on, and only
    sites that are not as they were are touched.
    """
    from basestation_runner.operate.change import reload as run

    return run(control_socket, as_json=as_json)
