"""How a parallel job's command becomes its launcher's. Pure.

The launcher starts with what site and profile say; what the job adds reaches its ranks only, through a shell that the
launcher starts in the place of each.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from basestation_runner import tools

LAUNCHERS: Final[Mapping[str, Sequence[str]]] = {
    # Jobs share this host: none may take the first processors for itself, or refuse to have more ranks than there are.
    "openmpi": (tools.LAUNCHERS["openmpi"], "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-n"),
    "mpich": (tools.LAUNCHERS["mpich"], "-launcher", "fork", "-n"),
}
"""The beginning of each launcher's command, up to the number of tasks."""

ADDED: Final = "RUNNER_JOB_ENV"
"""The variable in which the added ones travel: on a command line everybody could read them."""

_RANK: Final = ("/bin/sh", "-c", f'eval "export ${ADDED}"; unset {ADDED}; exec "$@"', "sh")


def launched(
    launcher: str, tasks: int, argv: Sequence[str], environment: Mapping[str, str], added: Sequence[str]
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return command and environment that run `argv` as so many tasks, where the job adds the variables `added`."""
    command = [*LAUNCHERS[launcher], str(tasks)]
    if not added:
        return [*command, *argv], environment
    own = {name: value for name, value in environment.items() if name not in added}
    own[ADDED] = " ".join(f"{name}={shlex.quote(environment[name])}" for name in added)
    return [*command, *_RANK, *argv], own
