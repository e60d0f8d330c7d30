"""Options of `runner demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@common.path_option("--keep", None, "Copy everything to this directory at the end, to look at.")
@click.option("--json", "as_json", is_flag=True, help="Print what happened as JSON.")
def demo(*, keep: Path | None, as_json: bool) -> int:
    """Run a throw-away runner with sites, requests and jobs, and show what happens."""
    from basestation_runner.demo import run

    return run(keep, as_json)
