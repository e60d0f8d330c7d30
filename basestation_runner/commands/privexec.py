"""Options of `runner privexec`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.cli import Invocation
    from basestation_runner.loglines import Format


@click.command()
@common.sites_config
@common.applications_config
@common.priv_exec_socket
@common.path_option("--state-dir", common.HELPER_STATE_DIR, "The directory of claims and exit records.")
@common.path_option("--cache-dir", common.HELPER_CACHE_DIR, "The directory of the accounts' caches.")
@common.path_option(
    "--cgroup-root",
    None,
    "The cgroup below which sites' cgroups are made.  [default: `jobs` beside this unit, if delegated]",
)
@click.option("--watcher-user", help="Account whose connections are taken.  [default: this process's own]")
@common.base_log
@common.log_format
@click.pass_obj
def privexec(
    invocation: Invocation,
    *,
    sites_config: Path,
    applications_config: Path | None,
    priv_exec_socket: Path,
    state_dir: Path,
    cache_dir: Path,
    cgroup_root: Path | None,
    watcher_user: str | None,
    base_log: Path | None,
    log_format: Format,
) -> int:
    """Start each job as its site's account, on the watcher's request.

    Runs with exactly CAP_SETUID and CAP_SETGID, or with none for sites of its own account.
    """
    from basestation_runner.privexec.options import HelperOptions
    from basestation_runner.privexec.start import run

    return run(
        HelperOptions(
            sites_config=sites_config,
            applications_config=applications_config,
            priv_exec_socket=priv_exec_socket,
            state_dir=state_dir,
            cache_dir=cache_dir,
            cgroup_root=cgroup_root,
            watcher_user=watcher_user,
            base_log=base_log,
            log_format=log_format,
            debug=invocation.debug,
        )
    )
