"""Where the programs are that run jobs in other ways than directly: Debian's, by their paths."""

from collections.abc import Mapping
from typing import Final

BWRAP: Final = "/usr/bin/bwrap"
LAUNCHERS: Final[Mapping[str, str]] = {"openmpi": "/usr/bin/mpirun.openmpi", "mpich": "/usr/bin/mpirun.mpich"}
"""By launch_type."""
PACKAGES: Final[Mapping[str, str]] = {
    BWRAP: "bubblewrap",
    LAUNCHERS["openmpi"]: "openmpi-bin",
    LAUNCHERS["mpich"]: "mpich",
}
"""The package that each is from."""
