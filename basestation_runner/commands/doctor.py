"""Options of `runner doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("sites", nargs=-1)
@click.option(
    "--probe", is_flag=True, help="Have the helper become each of the SITES, or all, and say what it is then."
)
@common.sites_config
@common.applications_config
@common.priv_exec_socket
@common.control_socket
@common.path_option("--state-dir", common.WATCH_STATE_DIR, "The directory of the ledger.")
@common.path_option("--helper-state-dir", common.HELPER_STATE_DIR, "The directory of claims and exit records.")
@common.path_option("--cache-dir", common.HELPER_CACHE_DIR, "The directory of the accounts' caches.")
@common.path_option(
    "--cgroup-root",
    None,
    "The cgroup below which sites' cgroups are made.  [default: `jobs` beside the running helper's unit]",
)
@common.path_option("--base-log", common.WATCH_LOG, "The watcher's log.")
@common.path_option("--helper-base-log", common.HELPER_LOG, "The helper's log.")
@click.option("--watcher-user", default="baserunner", show_default=True, help="The watcher's account.")
@click.option("--helper-user", default="baserunner-exec", show_default=True, help="The helper's account.")
@common.as_json
def doctor(
    *,
    sites: tuple[str, ...],
    probe: bool,
    sites_config: Path,
    applications_config: Path | None,
    priv_exec_socket: Path,
    control_socket: Path,
    state_dir: Path,
    helper_state_dir: Path,
    cache_dir: Path,
    cgroup_root: Path | None,
    base_log: Path,
    helper_base_log: Path,
    watcher_user: str,
    helper_user: str,
    as_json: bool,
) -> int:
    """Check this installation: daemons, units, accounts, configuration, sites, and the host below them.

    Each point is ok, a warning, a fault, or skipped where it does not apply or this user may not look; what is wrong
    comes with the command that mends it. Nothing is changed. Run it as root to have every point looked at.
    """
    from basestation_runner.doctor.facts import Paths
    from basestation_runner.doctor.run import run

    if sites and not probe:
        raise click.UsageError("sites are named to be probed: --probe SITE")
    paths = Paths(
        sites_config=sites_config,
        applications_config=applications_config,
        priv_exec_socket=priv_exec_socket,
        control_socket=control_socket,
        state_dir=state_dir,
        helper_state_dir=helper_state_dir,
        cache_dir=cache_dir,
        cgroup_root=cgroup_root,
        base_log=base_log,
        helper_base_log=helper_base_log,
        watcher_user=watcher_user,
        helper_user=helper_user,
    )
    return run(paths, probe=sites if probe else None, as_json=as_json)
