"""Options of `runner submit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("site")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@common.control_socket
@common.path_option("--mission-dir", None, "Where the job runs, in the site's tree.  [default: the working directory]")
@common.path_option("--home", None, "The home that the request names.  [default: the directory above --mission-dir]")
@common.path_option("--log", None, "What the job's output is appended to.  [default: SCRIPT.log in --mission-dir]")
@click.option("--wait", is_flag=True, help="Wait for the job's end, and exit as it did.")
@common.as_json
def submit(
    *,
    site: str,
    script: str,
    args: tuple[str, ...],
    control_socket: Path,
    mission_dir: Path | None,
    home: Path | None,
    log: Path | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Have SCRIPT run as a site's job, and print the job's id.

    Options come before SITE; whatever follows SCRIPT is passed to it. The request is written into the site's rundir as
    whoever calls this, who must be allowed to. Paths are the host's; a jailed site's may also be as seen in the jail.
    With --wait the exit status is the job's exit code, 128 and the number of the signal that ended it, or 1 if it has
    neither, with the reason on stderr.
    """
    from basestation_runner.operate.submit import SubmitOptions, run

    return run(
        SubmitOptions(
            control_socket=control_socket,
            site=site,
            script=script,
            args=args,
            home=home,
            mission_dir=mission_dir,
            log=log,
            wait=wait,
            as_json=as_json,
        )
    )
