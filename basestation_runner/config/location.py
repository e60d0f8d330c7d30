"""Where the application profiles are when nobody says so."""

from pathlib import Path
from typing import Final

APPLICATIONS_CONFIG: Final = Path("/etc/baserunner/applications.yaml")


def applications_path(given: Path | None) -> Path | None:
    """Given what was asked for, return the profiles' file, or None for the built-in ones.

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
