"""Options of `runner submit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from pathlib import Path


class Setting(click.ParamType[tuple[str, str]]):
    """A name and what it is set to."""

    name = "name=value"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, separator, content = value.partition("=")
        if not name or not separator:
            self.fail(f"{value!r} is not like NAME=VALUE", param, ctx)
        return name, content


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("site")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@common.control_socket
@common.path_option("--mission-dir", None, "Where the job runs, in the site's tree.  [default: the working directory]")
@common.path_option("--home", None, "The home that the request names.  [default: the directory above --mission-dir]")
@common.path_option("--log", None, "What the job's output is appended to.  [default: SCRIPT.log in --mission-dir]")
@click.option("--application", metavar="NAME", help="The profile that must run it.  [default: the script's]")
@click.option("--env", type=Setting(), multiple=True, help="A variable that the job adds.")
@click.option("--limit", type=Setting(), multiple=True, help="A limit of its own, such as runtime=2h or memory=4G.")
@click.option("--task", "--tasks", "tasks", type=click.IntRange(min=1), help="How many tasks a parallel job has.")
@click.option("--group", "groups", multiple=True, help="A group that it keeps; the effective one first.")
@click.option("--resreq", metavar="TEXT", help="What the host must be and offer.")
@click.option("--input", "inputs", type=common.AbsolutePath(), multiple=True, help="What it reads in a sandbox.")
@click.option("--output", "outputs", type=common.AbsolutePath(), multiple=True, help="What it writes in a sandbox.")
@click.option("--pre-exec", metavar="COMMAND", help="Its own step before it, as a shell would split it.")
@click.option("--post-exec", metavar="COMMAND", help="Its own step after it.")
@click.option("--dry-run", is_flag=True, help="Run nothing; print what it would be run with, and who says so.")
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
    application: str | None,
    env: tuple[tuple[str, str], ...],
    limit: tuple[tuple[str, str], ...],
    tasks: int | None,
    groups: tuple[str, ...],
    resreq: str | None,
    inputs: tuple[Path, ...],
    outputs: tuple[Path, ...],
    pre_exec: str | None,
    post_exec: str | None,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """Have SCRIPT run as a site's job, and print the job's id.

    Options come before SITE; whatever follows SCRIPT is passed to it. The request is written into the site's rundir as
    whoever calls this, who must be allowed to. Paths are the host's; a jailed site's may also be as seen in the jail.
    What the job adds to its application's profile is checked as that of any request. With --wait the exit status is the
    job's exit code, 128 and the number of the signal that ended it, or 1 if it has neither, with the reason on stderr.
    """
    from basestation_runner.operate.submit import Added, SubmitOptions, run

    added = Added(
        application=application,
        env=env,
        limits=limit,
        tasks=tasks,
        groups=groups,
        resreq=resreq,
        inputs=inputs,
        outputs=outputs,
        pre_exec=pre_exec,
        post_exec=post_exec,
    )
    return run(
        SubmitOptions(
            control_socket=control_socket,
            site=site,
            script=script,
            args=args,
            home=home,
            mission_dir=mission_dir,
            log=log,
            added=added,
            dry_run=dry_run,
            wait=wait,
            as_json=as_json,
        )
    )
