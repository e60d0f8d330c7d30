"""The one place that executes systemctl: by its absolute path, in an environment made from nothing, with a deadline."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from basestation_runner.errors import RunnerError, TemporaryError, printable

ENVIRONMENT: Final = {
    "LC_ALL": "C",
    "TZ": "UTC",
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "SYSTEMD_COLORS": "0",
    "SYSTEMD_PAGER": "",
}
ASKING: Final = 30.0
"""Seconds for an answer about units."""
CHANGING: Final = 240.0
"""Seconds for a unit to start or stop: longer than our own units' TimeoutStartSec, and than most units' to stop."""
_MOST_SHOWN: Final = 400


def execute(command: Sequence[str | Path], patience: float = ASKING) -> str:
    """Return what a command writes to stdout. Raises RunnerError when it fails, TemporaryError when it hangs."""
    words = list(map(str, command))
    said = " ".join(words)
    try:
        done = subprocess.run(
            words,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=patience,
            check=False,
            cwd="/",
            start_new_session=True,  # what somebody types at the terminal is for us, not for it
        )
    except FileNotFoundError as error:
        raise RunnerError("it is not installed", where=words[0]) from error
    except OSError as error:
        raise RunnerError(f"cannot be executed: {error.strerror}", where=words[0]) from error
    except subprocess.TimeoutExpired as error:
        raise TemporaryError(f"`{said}` does not end within {patience:g} s") from error
    if done.returncode != 0:
        why = printable(" ".join(done.stderr.decode(errors="replace").split()))[-_MOST_SHOWN:]
        raise RunnerError(f"`{said}` failed with status {done.returncode}" + (f": {why}" if why else ""))
    return done.stdout.decode(errors="surrogateescape")


@frozen
class Systemctl:
    """The system manager, by way of systemctl."""

    program: Path = Path("/usr/bin/systemctl")

    # Asking

    def show(self, unit: str, properties: Sequence[str]) -> str:
        """Return a unit's properties, one `Name=value` after the other."""
        return self._run("show", "--all", f"--property={','.join(properties)}", "--", unit)

    def cat(self, unit: str) -> str:
        """Return a unit's files, each after a comment with its path. Raises RunnerError when there are none."""
        return self._run("cat", "--", unit)

    def services(self) -> list[str]:
        """Return the services that are loaded or have a file, templates among them."""
        listing = ("--type=service", "--plain", "--no-legend", "--full")
        loaded = _first_words(self._run("list-units", "--all", "--state=loaded", *listing))
        return sorted({*loaded, *_first_words(self._run("list-unit-files", *listing))})

    def value(self, unit: str, name: str) -> str:
        """Return one property of a unit; a unit that is not there has them too."""
        return self.show(unit, (name,)).strip().partition("=")[2]

    def is_active(self, unit: str) -> bool:
        """Tell whether a unit runs, or is about to."""
        return self.value(unit, "ActiveState") in {"active", "activating", "reloading"}

    def is_enabled(self, unit: str) -> bool:
        """Tell whether a unit starts with the host."""
        return self.value(unit, "UnitFileState") in {"enabled", "enabled-runtime"}

    def main_pid(self, unit: str) -> int:
        """Return a unit's main process, 0 if there is none."""
        return int(self.value(unit, "MainPID") or 0)

    # Changing

    def start(self, unit: str) -> None:
        """Start a unit, and wait until it says that it is ready."""
        self._run("start", "--", unit, patience=CHANGING)

    def stop(self, unit: str) -> None:
        """Stop a unit, and wait until systemd has ended all of it that its KillMode= says."""
        self._run("stop", "--", unit, patience=CHANGING)

    def restart(self, unit: str) -> None:
        """Restart a unit, and wait until it says that it is ready."""
        self._run("restart", "--", unit, patience=CHANGING)

    def enable(self, unit: str, *, is_runtime: bool = False) -> None:
        """Have a unit start with the host, or count as such until the host's next start only."""
        self._run("enable", *(["--runtime"] if is_runtime else []), "--", unit)

    def disable(self, unit: str, *, is_runtime: bool = False) -> None:
        """Have a unit not start with the host; with `is_runtime` take back what holds until its next start only."""
        self._run("disable", *(["--runtime"] if is_runtime else []), "--", unit)

    def reset_failed(self, unit: str) -> None:
        """Have systemd forget that a unit has failed."""
        self._run("reset-failed", "--", unit)

    def daemon_reload(self) -> None:
        """Have systemd read all units' files anew."""
        self._run("daemon-reload", patience=CHANGING)

    def _run(self, *words: str, patience: float = ASKING) -> str:
        return execute([self.program, "--no-pager", "--no-ask-password", *words], patience)


def _first_words(listing: str) -> Iterator[str]:
    for line in listing.splitlines():
        words = line.split()
        if words and words[0].endswith(".service"):
            yield words[0]
