"""Options and defaults that several sub-commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from basestation_runner.loglines import Format

if TYPE_CHECKING:
    from collections.abc import Callable

SITES_CONFIG: Final = Path("/etc/baserunner/sites.yaml")
APPLICATIONS_CONFIG: Final = Path("/etc/baserunner/applications.yaml")
PRIV_EXEC_SOCKET: Final = Path("/run/baserunner/priv_exec.sock")
WATCH_STATE_DIR: Final = Path("/var/lib/baserunner")
HELPER_STATE_DIR: Final = Path("/var/lib/baserunner-exec")
HELPER_CACHE_DIR: Final = Path("/var/cache/baserunner-exec")


class AbsolutePath(click.ParamType[Path]):
    """A path, made absolute by the working directory without following links."""

    name = "path"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value):
            self.fail("a path is expected", param, ctx)
        return Path(value).absolute()


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
base_log = path_option(
    "--base-log", None, "Append the log to this file; warnings still go to stderr.  [default: stderr]"
)
log_format = click.option(
    "--log-format", type=click.Choice(get_args(Format)), default="text", show_default=True, help="The log lines' form."
)


def applications_path(given: Path | None) -> Path | None:
    """Given the option's value, return the profiles' file, or None for the built-in ones.
    Only a default file that is absent means those; one that cannot be read is for the reader to refuse.
    """
    if given is not None:
        return given
    try:
        APPLICATIONS_CONFIG.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass
    return APPLICATIONS_CONFIG
