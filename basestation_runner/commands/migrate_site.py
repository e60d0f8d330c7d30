"""Options of `runner migrate-site`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("site", required=False)
@click.option("--list", "is_list", is_flag=True, help="Show the legacy units of this host, and what was migrated.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Show the new entry and what would be done, and stop there.")
@click.option("--yes", "is_agreed", is_flag=True, help="Do not ask.")
@click.option("--unit", help="The site's legacy unit.  [default: the one that is called like the site]")
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="NAMES",
    help="Directives or options of the unit that may be lost, with commas, or all; may be repeated.",
)
@click.option("--now", "is_now", is_flag=True, help="Do not wait for jobs that run: says what dies instead.")
@click.option("--rollback", "is_back", is_flag=True, help="Give a migrated site back to its legacy unit.")
@click.option("--from-multi", is_flag=True, help="Take the whole host over from a BaseRunnerMulti.")
@common.sites_config
@common.applications_config
@common.control_socket
@common.path_option("--state-dir", common.WATCH_STATE_DIR, "The watcher's state directory.")
@click.option("--watcher-user", default="baserunner", show_default=True, help="The watcher's account.")
@click.option("--helper-user", default="baserunner-exec", show_default=True, help="The helper's account.")
@common.as_json
def migrate_site(
    *,
    site: str | None,
    is_list: bool,
    is_dry: bool,
    is_agreed: bool,
    unit: str | None,
    accepted: tuple[str, ...],
    is_now: bool,
    is_back: bool,
    from_multi: bool,
    sites_config: Path,
    applications_config: Path | None,
    control_socket: Path,
    state_dir: Path,
    watcher_user: str,
    helper_user: str,
    as_json: bool,
) -> int:
    """Take SITE over from its legacy unit, a BaseRunner of its own, and give it back.

    Shows the new entry of sites.yaml, all that it cannot hold, and each step; asks; then waits until the unit runs no
    job and does it. If anything fails, all of it is undone. After a kill the next call goes on.
    """
    from basestation_runner.migrate import run
    from basestation_runner.migrate.setting import Setting

    setting = Setting(
        sites_config=sites_config,
        applications_config=applications_config,
        control_socket=control_socket,
        state_dir=state_dir,
        watcher_user=watcher_user,
        helper_user=helper_user,
    )
    if bool(site) + is_list + from_multi != 1:
        raise click.UsageError("name a site, or --list to see which there are, or --from-multi for the whole host")
    if is_list:
        return run.list_units(setting, as_json=as_json)
    if as_json:
        raise click.UsageError("--json is for --list")
    if is_back:
        if unit or accepted:
            raise click.UsageError("--rollback goes by what was migrated: it takes neither --unit nor --accept")
        return run.roll_back(setting, site, is_dry=is_dry, is_agreed=is_agreed, is_now=is_now)
    names = {name.strip() for text in accepted for name in text.split(",")}
    if from_multi:
        if unit:
            raise click.UsageError("--unit is for a site")
        return run.migrate_multi(setting, accepted=names, is_dry=is_dry, is_agreed=is_agreed, is_now=is_now)
    return run.migrate(setting, str(site), unit=unit, accepted=names, is_dry=is_dry, is_agreed=is_agreed, is_now=is_now)
