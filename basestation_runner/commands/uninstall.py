"""Options of `runner uninstall`."""

from __future__ import annotations

from pathlib import Path

import click

from basestation_runner.commands import common


@click.command()
@common.path_option("--root", Path("/"), "Uninstall from the file system below this directory.")
@click.option("--purge", is_flag=True, help="Remove ledger, records, logs and caches of the daemons too.")
def uninstall(*, root: Path, purge: bool) -> int:
    """Remove what `runner install` has installed; running jobs go on to their ends. As root.

    The configuration and the accounts stay.
    """
    from basestation_runner.install.uninstall import run

    return run(root, purge=purge)
