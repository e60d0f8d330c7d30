"""The helper side's durable marks in its state directory: `claims/<job>` "started", `exits/<job>` "ended so".

Written by keepers, read and pruned by the helper. A claim without an exit record means running while the processes
live, and lost afterwards; no claim means never started.
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from basestation_runner import protocol, syscalls
from basestation_runner.errors import RunnerError

_KEPT_SECONDS: Final = 30 * 24 * 3600
"""How long a mark is kept whose end no watcher ever settled."""

Mark = dict[str, Any]


class Claims:
    """The two directories of marks, held open: keepers go on writing there whatever happens to the path."""

    def __init__(self, state_dir: Path) -> None:
        """Make and open the directories. Raises RunnerError when they cannot be used."""
        try:
            self.claims = _directory(state_dir / "claims")
            self.exits = _directory(state_dir / "exits")
        except OSError as error:
            raise RunnerError(
                f"the state directory cannot be used: {error.strerror}", where=str(state_dir), hint="see --state-dir"
            ) from error

    def claim(self, job_id: str, mark: Mark) -> bool:
        """Durably mark the job as started. Return False if it was before, which must never start a second one."""
        temporary = _write_temporary(self.claims, job_id, mark)
        try:
            syscalls.rename_noreplace(self.claims, temporary, self.claims, job_id)
        except FileExistsError:
            os.unlink(temporary, dir_fd=self.claims)
            return False
        return True

    def unclaim(self, job_id: str) -> None:
        """Take the mark back: the program has not been started after all."""
        os.unlink(job_id, dir_fd=self.claims)

    def record_exit(self, job_id: str, record: Mark) -> None:
        """Durably record how the job ended. Raises OSError."""
        temporary = _write_temporary(self.exits, job_id, record)
        os.rename(temporary, job_id, src_dir_fd=self.exits, dst_dir_fd=self.exits)

    def claimed(self, job_id: str) -> Mark | None:
        """Return the job's claim, None if it was never started."""
        return _read(self.claims, job_id)

    def ended(self, job_id: str) -> Mark | None:
        """Return the job's exit record, None if there is none that can be relied on."""
        return _read(self.exits, job_id) or None

    def settle(self, job_id: str) -> None:
        """Forget the job. The claim goes first: an exit record alone is harmless and swept at the next start."""
        for directory in (self.claims, self.exits):
            with suppress(FileNotFoundError):
                os.unlink(job_id, dir_fd=directory)

    def sweep(self) -> list[str]:
        """Remove what a crash or an absent watcher left behind; return the ids of the jobs that are still marked."""
        oldest = time.time() - _KEPT_SECONDS
        claimed = set()
        for name in os.listdir(self.claims):
            ended = _modified(self.exits, name)
            if not protocol.is_job_id(name):
                with suppress(FileNotFoundError):  # a keeper that lives has finished writing it
                    os.unlink(name, dir_fd=self.claims)
            elif ended is not None and ended < oldest:
                self.settle(name)
            else:
                claimed.add(name)
        for name in os.listdir(self.exits):
            if name not in claimed:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self.exits)
        return sorted(claimed)


def _directory(path: Path) -> int:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _write_temporary(directory: int, job_id: str, content: Mark) -> str:
    """Write `content` durably beside its final name, under a name that can never be a job's."""
    name = f"{job_id}.{os.getpid()}.tmp"
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        with open(file, "wb") as stream:
            stream.write(json.dumps(content).encode())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        os.unlink(name, dir_fd=directory)
        raise
    return name


def _read(directory: int, job_id: str) -> Mark | None:
    """Return a mark's content: None if there is no such mark, {} if there is one that cannot be read."""
    try:
        descriptor = os.open(job_id, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        try:
            content = json.loads(file.read())
        except ValueError:  # cut off by a full disk or a power failure: known to exist, nothing more
            return {}
    return content if isinstance(content, dict) else {}


def _modified(directory: int, name: str) -> float | None:
    try:
        return os.stat(name, dir_fd=directory).st_mtime
    except FileNotFoundError:
        return None
