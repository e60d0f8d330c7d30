"""Word of when a site's legacy daemon was stopped, left in the state directory before the site is first watched.

What lies in the rundir since before then belongs to a past that the legacy daemon never ran; what is newer came while
nobody watched. Blocking calls.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "taken-over-"
_LONGEST: Final = 40


def read(state_dir: Path, site: str) -> float | None:
    """Return the time, in seconds since the epoch, or None if there is no word, or none that makes sense."""
    try:
        with (state_dir / f"{_PREFIX}{site}").open("rb") as file:
            return float(file.read(_LONGEST))
    except (OSError, ValueError):
        return None


def write(state_dir: Path, site: str, stopped_at: float | None) -> None:
    """Leave word, whole or not at all; without a time take it back. Raises OSError."""
    path = state_dir / f"{_PREFIX}{site}"
    if stopped_at is None:
        with suppress(FileNotFoundError):
            path.unlink()
        return
    fresh = state_dir / f".{path.name}"
    with fresh.open("w", encoding="ascii") as file:
        file.write(repr(stopped_at))
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
