"""Where a migration finds things, and how long it waits: the command's options, and what never differs on a host."""

from pathlib import Path
from typing import Final

from attrs import Factory, frozen

from basestation_runner.migrate.systemctl import Systemctl

JOURNALS: Final = Path("/var/lib/basestation-runner-migrate")
WATCHER_UNIT: Final = "baserunner-watch.service"
HELPER_UNIT: Final = "baserunner-exec.service"


@frozen(kw_only=True)
class Patience:
    """Times, in seconds."""

    look: float = 0.5  # between two looks at the same thing
    quiet: float = 2.0  # in which nothing happens in a rundir that is quiet
    multi: float = 3.0  # in which a BaseRunnerMulti, which looks once a second, notices that a job has ended
    gone: float = 60.0  # until the process and the lock of a stopped unit are gone
    watched: float = 90.0  # until a site is watched, and a started unit has its lock
    unsure: float = 0.5  # how much older a file may look than it is: the kernel tells times of files by its ticks
    tell: float = 30.0  # between two words about what is waited for


@frozen(kw_only=True)
class Setting:
    """One host's. What can be given on the command line comes first."""

    sites_config: Path
    applications_config: Path | None
    control_socket: Path
    state_dir: Path
    watcher_user: str
    helper_user: str
    journals: Path = JOURNALS
    watcher_unit: str = WATCHER_UNIT
    helper_unit: str = HELPER_UNIT
    systemctl: Systemctl = Factory(Systemctl)
    usermod: Path = Path("/usr/sbin/usermod")
    gpasswd: Path = Path("/usr/bin/gpasswd")
    cgroups: tuple[Path, ...] = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup/unified"))
    units: Path = Path("/etc/systemd/system")
    rotations: Path = Path("/etc/logrotate.d")
    our_rotation: str = "basestation-runner"
    logs: Path = Path("/var/log/baserunner")
    patience: Patience = Factory(Patience)

    @property
    def our_units(self) -> tuple[str, str]:
        """Our daemons' units, in the order in which they start."""
        return self.helper_unit, self.watcher_unit
