"""Options of `runner watch`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from basestation_runner.commands import common

if TYPE_CHECKING:
    from basestation_runner.cli import Invocation
    from basestation_runner.loglines import Format
    from basestation_runner.watch.web import Address

MOST_PORT: Final = (1 << 16) - 1


class ListeningAddress(click.ParamType["Address"]):
    """Where a page is served: `unix:PATH`, or a port of a loopback address, like `127.0.0.1:9464`."""

    name = "address"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        return "unix:PATH|127.0.0.1:PORT"

    def convert(self, value: str | Address, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        import ipaddress

        from basestation_runner.watch.web import Address

        if isinstance(value, Address):
            return value
        if value.startswith("unix:") and value.removeprefix("unix:"):
            return Address(path=Path(value.removeprefix("unix:")).absolute())
        host, _, port = value.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            is_loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_loopback = False
        if not is_loopback or not port.isdecimal() or int(port) > MOST_PORT:
            self.fail(f"{value!r} is neither unix:PATH nor a port of a loopback address: 127.0.0.1:9464", param, ctx)
        return Address(host=host, port=int(port))


@click.command()
@common.sites_config
@common.applications_config
@common.priv_exec_socket
@common.control_socket
@common.path_option("--state-dir", common.WATCH_STATE_DIR, "The ledger's directory.")
@common.base_log
@common.log_format
@click.option(
    "--max-running",
    type=click.IntRange(min=1),
    default=lambda: 4 * len(os.sched_getaffinity(0)),
    show_default="4 per core",
    help="Most jobs at once on this host; interactive ones are not counted.",
)
@click.option(
    "--max-queued",
    type=click.IntRange(min=1),
    default=50_000,
    show_default=True,
    help="Most accepted requests per site; further ones stay in the rundir.",
)
@click.option(
    "--absent-patience",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="Seconds in which an account or effective group that is not found is looked up again; then jobs are refused.",
)
@common.path_option("--job-completions-log", None, "Append one JSON line per finished job to this file.")
@common.path_option("--on-failure", None, "Run this program for each job that ends badly, with it as JSON on stdin.")
@click.option("--metrics", type=ListeningAddress(), help="Show metrics for Prometheus there, at /metrics.")
@click.option(
    "--http",
    type=ListeningAddress(),
    help="Show a status page there. Reasons, arguments and log lines are shown on a UNIX socket only.",
)
@click.pass_obj
def watch(
    invocation: Invocation,
    *,
    sites_config: Path,
    applications_config: Path | None,
    priv_exec_socket: Path,
    control_socket: Path,
    state_dir: Path,
    base_log: Path | None,
    log_format: Format,
    max_running: int,
    max_queued: int,
    absent_patience: float,
    job_completions_log: Path | None,
    on_failure: Path | None,
    metrics: Address | None,
    http: Address | None,
) -> int:
    """Take requests from the sites' rundirs and run them in turn.

    Needs no privilege: `runner privexec` starts the jobs.
    """
    from basestation_runner.watch.options import WatchOptions
    from basestation_runner.watch.start import run

    return run(
        WatchOptions(
            sites_config=sites_config,
            applications_config=applications_config,
            priv_exec_socket=priv_exec_socket,
            control_socket=control_socket,
            state_dir=state_dir,
            base_log=base_log,
            log_format=log_format,
            max_running=max_running,
            max_queued=max_queued,
            absent_patience=absent_patience,
            job_completions_log=job_completions_log,
            on_failure=on_failure,
            metrics=metrics,
            http=http,
            debug=invocation.debug,
        )
    )
