"""Options of `runner install`."""

from __future__ import annotations

from pathlib import Path

import click

from basestation_runner.commands import common


@click.command()
@common.path_option("--root", Path("/"), "Install to the file system below this directory, for instance an image's.")
def install(*, root: Path) -> int:
    """Install this program, its units and its accounts on this host, or upgrade what is installed. As root.

    Nothing is enabled. Daemons that run are started anew, and running jobs go on. `runner uninstall` undoes it.
    """
    from basestation_runner.install.install import run

    return run(root)
