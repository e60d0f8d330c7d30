"""Options of `runner applications`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@common.sites_config
@common.applications_config
@click.option("--site", metavar="NAME", help="Only what this site may use, with what comes from its own entry.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def applications(*, sites_config: Path, applications_config: Path | None, site: str | None, as_json: bool) -> int:
    """List the application profiles: what each runs, and what its jobs must have."""
    from basestation_runner.config.listing import run
    from basestation_runner.config.location import applications_path

    return run(sites_config, applications_path(applications_config), site=site, as_json=as_json)
