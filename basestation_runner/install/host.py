"""The host that is installed to: where things are there, its systemd, and what its package manager knows."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from basestation_runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = "basestation-runner"
UNITS: Final = ("baserunner-watch.service", "baserunner-exec.service")
"""In the order in which they are stopped."""
LINK: Final = "usr/bin/runner"
SYSUSERS: Final = f"{PACKAGE}.conf"
STATE: Final = (
    "var/lib/baserunner",
    "var/lib/baserunner-exec",
    "var/log/baserunner",
    "var/log/baserunner-exec",
    "var/cache/baserunner-exec",
    "var/lib/basestation-runner-migrate",
)
"""What the daemons, and migrations, write."""
DROP_INS: Final = tuple(f"etc/systemd/system/{unit}.d/from-multi.conf" for unit in UNITS)
"""What a migration from a BaseRunnerMulti writes for our units."""
JOURNALS: Final = "var/lib/basestation-runner-migrate/*.jsonl"
"""One for each site that was migrated and not given back."""

CACHE_LOCK: Final = ".lock"
"""In the cache: what the one file holds while it unpacks itself (packaging/onefile/runner.c)."""
_NOT_INSTALLED: Final = frozenset({"", "not-installed", "config-files"})


@dataclass(frozen=True)
class Host:
    """A host by its root directory: this one, or a file system that is being prepared for another."""

    root: Path

    @property
    def library(self) -> Path:
        """Where the program is, each version in a folder of its own."""
        return self.root / "usr/lib" / PACKAGE

    @property
    def cache(self) -> Path:
        """Where the one file unpacks itself to when root starts it."""
        return self.root / "var/cache" / PACKAGE

    @property
    def configuration(self) -> Path:
        """The directory of sites.yaml."""
        return self.root / "etc/baserunner"

    @property
    def manifest(self) -> Path:
        """What has been installed."""
        return self.library / "manifest"

    @property
    def is_this_one(self) -> bool:
        """Whether it is the host that this process runs on."""
        return self.root == Path("/")

    @property
    def has_systemd(self) -> bool:
        """Whether systemd runs here, which can be told of changes."""
        return self.is_this_one and Path("/run/systemd/system").is_dir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other installations out. Raises RunnerError unless this is root, while there is another, and for what
        the host's files do not allow meanwhile.
        """
        if os.geteuid() != 0:
            raise RunnerError("only root can do that", hint="use sudo")
        try:
            with _open_directory(self.root / "usr/lib") as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield
        except BlockingIOError as error:
            raise RunnerError("another installation is going on", where=str(self.library)) from error
        except OSError as error:
            raise RunnerError(
                f"{error.strerror}", where=f"{error.filename}", hint="mend that, and try again"
            ) from error

    @contextmanager
    def cache_locked(self) -> Iterator[None]:
        """Wait until nothing is unpacked to the cache, and keep it so. Makes nothing if there is no cache."""
        if not self.cache.is_dir():
            yield
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.cache / CACHE_LOCK, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def has_package(self) -> bool:
        """Return whether the Debian package is installed."""
        database = self.root / "var/lib/dpkg"
        if not (database / "status").exists() or shutil.which("dpkg-query") is None:
            return False
        done = subprocess.run(
            ["dpkg-query", f"--admindir={database}", "-W", "-f", "${db:Status-Status}", PACKAGE],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout not in _NOT_INSTALLED

    def make_accounts(self) -> None:
        """Make the daemons' accounts, as far as they are missing. Raises RunnerError."""
        _run("systemd-sysusers", *self._elsewhere(), SYSUSERS)

    def reload_units(self) -> None:
        """Have systemd read the units anew."""
        _run("systemctl", "daemon-reload")

    def restart(self) -> None:
        """Start those daemons anew that run: the helper first, as the watcher asks it."""
        _run("systemctl", "try-restart", *reversed(UNITS))

    def stop(self) -> None:
        """End the daemons. Jobs go on."""
        _run("systemctl", "stop", *UNITS)

    def disable(self) -> None:
        """Have the daemons not be started at boot any more."""
        if shutil.which("systemctl") is not None:
            _run("systemctl", "--quiet", "--no-reload", *self._elsewhere(), "disable", *UNITS)

    def _elsewhere(self) -> tuple[str, ...]:
        return () if self.is_this_one else (f"--root={self.root}",)


@contextmanager
def _open_directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RunnerError(f"{words[0]} is missing", hint="its package is called systemd") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise RunnerError(f"{' '.join(words)} failed: {said}")


def programs_in_use() -> set[str]:
    """Return the paths of the executables of all other processes on this host."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            found.add(str((process / "exe").readlink()).removesuffix(" (deleted)"))
        except OSError:
            continue  # it has ended, or is the kernel's own
    return found
