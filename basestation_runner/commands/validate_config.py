"""Options of `runner validate-config`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.config.validate import Form, HostCheck


@click.command()
@click.argument("files", type=common.AbsolutePath(), nargs=-1)
@common.applications_config
@click.option("--host", is_flag=True, help="Check this host too: accounts, groups, directories, programs, limits.")
@click.option("--watcher-user", help="With --host: the watcher's account.  [default: baserunner]")
@click.option("--helper-user", help="With --host: the helper's account.  [default: baserunner-exec]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="What is printed: lines, one JSON object, or GitHub's workflow commands.",
)
def validate_config(
    *,
    files: tuple[Path, ...],
    applications_config: Path | None,
    host: bool,
    watcher_user: str | None,
    helper_user: str | None,
    form: Form,
) -> int:
    """Check config files and show all faults at once, each with its line.

    Without FILES checks /etc/baserunner/sites.yaml. A sites.yaml brings along the applications.yaml beside it, and the
    other way round. Warnings and notes do not change the exit status.
    """
    from basestation_runner.config.location import applications_path
    from basestation_runner.config.validate import run

    if not host and (watcher_user or helper_user):
        raise click.UsageError("--watcher-user and --helper-user need --host")
    return run(
        files or (common.SITES_CONFIG,),
        applications=applications_config,
        default=applications_path(None),
        form=form,
        check_host=_host_check(watcher_user or "baserunner", helper_user or "baserunner-exec") if host else None,
    )


def _host_check(watcher_user: str, helper_user: str) -> HostCheck:
    from functools import partial

    from basestation_runner.config.host import check

    return partial(check, watcher_user=watcher_user, helper_user=helper_user)
