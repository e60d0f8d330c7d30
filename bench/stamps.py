"""The job of the benchmarks, and the file in which each run of it leaves when it was executed."""

import hashlib
import os
import platform
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attrs import frozen

from basestation_runner.errors import RunnerError

_SOURCE: Final = Path(__file__).with_name("stamp.c")
_CACHE: Final = Path("~/.cache/basestation-runner")
_RECORD: Final = struct.Struct("=QQ")
_BARE: Final = {"x86_64": ("-DBARE", "-nostdlib", "-fno-stack-protector")}
_OFTEN: Final = 0.001
_SELDOM: Final = 0.02


@frozen
class Stamp:
    """One run of the job: when it was executed, by the wall clock, and for which request."""

    ns: int
    number: int


def compile_job() -> bytes:
    """Return the job's executable, compiled unless that was done before. Raises RunnerError without a compiler."""
    command = ["gcc", "-static", "-O2", "-Wall", "-Werror", *_BARE.get(platform.machine(), ())]
    key = hashlib.sha256(repr(command).encode() + _SOURCE.read_bytes()).hexdigest()[:16]
    cached = _CACHE.expanduser() / f"stamp-{key}"
    if not cached.exists():
        cached.parent.mkdir(parents=True, exist_ok=True)
        fresh = cached.with_name(f".{cached.name}.{os.getpid()}")
        try:
            subprocess.run([*command, "-o", fresh, _SOURCE], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RunnerError(
                "the benchmarks' job cannot be compiled", where=str(_SOURCE), hint="make setup"
            ) from error
        fresh.rename(cached)
    return cached.read_bytes()


class Stamps:
    """The file to which every run of the job, whatever account it has, appends its stamp."""

    def __init__(self, path: Path) -> None:
        """Make the file."""
        self.path: Final = path
        path.touch()
        path.chmod(0o666)
        self._seen = 0

    def start(self) -> None:
        """Forget what has been stamped until now."""
        self._seen = self.path.stat().st_size

    def count(self) -> int:
        """Return how many runs there were since `start`."""
        return (self.path.stat().st_size - self._seen) // _RECORD.size

    def read(self) -> list[Stamp]:
        """Return the runs since `start`, in the order in which they were executed."""
        with self.path.open("rb") as file:
            file.seek(self._seen)
            data = file.read()
        return sorted((Stamp(*fields) for fields in _RECORD.iter_unpack(data)), key=lambda stamp: stamp.ns)

    def wait(self, count: int, patience: float, *, often: bool = False) -> bool:
        """Wait for `count` runs since `start`; return False when `patience` seconds have passed without any.

        `often` is for the wait for a single run, which a rare look would prolong.
        """
        return wait(self.count, count, patience, _OFTEN if often else _SELDOM)


def wait(count: Callable[[], int], wanted: int, patience: float, interval: float = _SELDOM) -> bool:
    """Look again and again until `count` reaches `wanted`; return False after `patience` seconds without progress."""
    seen, since = count(), time.monotonic()
    while seen < wanted:
        time.sleep(interval)
        now = count()
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            return False
    return True
