"""The first steps of `runner watch`: what the process may be, and what can go on while all the rest is loaded.

Imports only what those steps need.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from basestation_runner import processes
from basestation_runner.config import apart
from basestation_runner.config.location import applications_path
from basestation_runner.errors import RunnerError
from basestation_runner.systemd import Notifier

if TYPE_CHECKING:
    from basestation_runner.watch.options import WatchOptions

UMASK: Final = 0o007
_CAPABILITIES: Final = ("CapPrm", "CapEff", "CapAmb")


def run(options: WatchOptions) -> int:
    """Serve all sites until SIGTERM or SIGINT; return the exit status. Raises RunnerError."""
    refuse_privilege()
    processes.occupy_standard_descriptors()
    notifier = Notifier()
    os.umask(UMASK)
    _raise_descriptor_limit()
    with begin(options.sites_config, options.applications_config) as parsing:
        from basestation_runner.watch import daemon  # noqa: PLC0415 - meanwhile another process parses

        return daemon.run(options, parsing, notifier)


def begin(sites: Path, applications: Path | None) -> apart.Parsing:
    """Have the files parsed, or the built-in profiles where no file is. Raises RunnerError."""
    applications = applications_path(applications)
    return apart.begin(apart.read(sites), apart.read(applications) if applications else None)


def refuse_privilege() -> None:
    """The watcher reads what others write: it must have nothing to lose. Raises RunnerError."""
    if 0 in os.getresuid():
        raise RunnerError("runner watch does not run as root", hint="start it as its own account, baserunner")
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if any(int(fields[name], 16) for name in _CAPABILITIES):
        raise RunnerError(
            "runner watch must have no capabilities",
            hint="start it without AmbientCapabilities and file capabilities; only runner privexec needs them",
        )


def _raise_descriptor_limit() -> None:
    """Take what the unit allows: each site has its own inotify instance, and a hung one holds what it has open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
