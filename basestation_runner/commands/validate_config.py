"""Options of `runner validate-config`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("files", type=common.AbsolutePath(), nargs=-1)
@common.applications_config
def validate_config(*, files: tuple[Path, ...], applications_config: Path | None) -> int:
    """Check config files and show all faults at once, each with its line.

    Without FILES checks /etc/baserunner/sites.yaml.
    """
    from basestation_runner.config.validate import run

    return run(files or (common.SITES_CONFIG,), common.applications_path(applications_config))
