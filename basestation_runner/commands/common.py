"""Options and defaults that several sub-commands share."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from basestation_runner.config.location import APPLICATIONS_CONFIG
from basestation_runner.loglines import Format

if TYPE_CHECKING:
    from collections.abc import Callable

SITES_CONFIG: Final = Path("/etc/baserunner/sites.yaml")
PRIV_EXEC_SOCKET: Final = Path("/run/baserunner/priv_exec.sock")
CONTROL_SOCKET: Final = Path("/run/baserunner-watch/control.sock")
WATCH_STATE_DIR: Final = Path("/var/lib/baserunner")
HELPER_STATE_DIR: Final = Path("/var/lib/baserunner-exec")
HELPER_CACHE_DIR: Final = Path("/var/cache/baserunner-exec")
WATCH_LOG: Final = Path("/var/log/baserunner/watch.log")
HELPER_LOG: Final = Path("/var/log/baserunner-exec/privexec.log")

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class AbsolutePath(click.ParamType[Path]):
    """A path, made absolute by the working directory without following links."""

    name = "path"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value):
            self.fail("a path is expected", param, ctx)
        return Path(value).absolute()


class Since(click.ParamType[float]):
    """A time, as seconds since the epoch: `90s`, `30m`, `24h` or `7d` ago, or a date with or without a time."""

    name = "since"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        ago = re.fullmatch(r"([0-9]{1,9})([smhd])", value)
        if ago is not None:
            return max(0.0, time.time() - int(ago[1]) * _SECONDS[ago[2]])
        try:
            return max(0.0, datetime.fromisoformat(value).timestamp())
        except ValueError:
            self.fail(f"{value!r} is neither like 30m, 24h or 7d nor like 2026-11-30T12:00", param, ctx)


class JobId(click.ParamType[str]):
    """A job's id or its beginning."""

    name = "job"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"[0-9a-f-]{1,64}", value):
            self.fail(f"{value!r} is no job's id", param, ctx)
        return value


def since(text: str, default: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Given the help, return the decorator that declares `--since`."""
    return click.option("--since", type=Since(), default=default, show_default=default is not None, help=text)


whole_host = click.option("--all", "whole_host", is_flag=True, help="The whole host.")


def held(sites: tuple[str, ...], *, whole_host: bool) -> tuple[str, ...]:
    """Given what hold or release was told, return the sites, the empty one for the whole host."""
    if bool(sites) == whole_host:
        raise click.UsageError("name sites, or --all for the whole host")
    return sites or ("",)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def path_option(name: str, default: Path | None, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Given an option's name, default and help, return the decorator that declares it."""
    return click.option(name, type=AbsolutePath(), default=default, show_default=default is not None, help=text)


sites_config = path_option("--sites-config", SITES_CONFIG, "The sites.")
applications_config = path_option(
    "--applications-config",
    None,
    f"The application profiles.  [default: {APPLICATIONS_CONFIG} if it exists, else the built-in ones]",
)
priv_exec_socket = path_option("--priv-exec-socket", PRIV_EXEC_SOCKET, "The helper's socket.")
control_socket = path_option("--control-socket", CONTROL_SOCKET, "The watcher's control socket.")
base_log = path_option(
    "--base-log", None, "Append the log to this file; warnings still go to stderr.  [default: stderr]"
)
log_format = click.option(
    "--log-format", type=click.Choice(get_args(Format)), default="text", show_default=True, help="The log lines' form."
)
