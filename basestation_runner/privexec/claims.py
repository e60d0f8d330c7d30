"""The helper side's durable marks in its state directory: `claims/<job>` "started", `exits/<job>` "ended so".

`claims/<job>.cancel` says that the job is to be ended. Written by keepers, the last by the helper; read and pruned by
the helper. A claim without an exit record means running while the processes live, and lost afterwards; no claim means
never started. A keeper holds its job's claim locked while it keeps the job, since its process may go on to another one.
Claims are written in `starting/`, which each helper makes anew: a keeper of an earlier one that comes late can claim
nothing any more, and "never started" stays true.
"""

import errno
import fcntl
import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from basestation_runner import protocol, syscalls
from basestation_runner.errors import RunnerError

if TYPE_CHECKING:
    from pathlib import Path

_KEPT_SECONDS: Final = 30 * 24 * 3600
"""How long a mark is kept whose end no watcher ever settled."""

_STARTING: Final = "starting"

_CANCEL: Final = ".cancel"  # no job's id has a dot in it

Mark = dict[str, Any]


class Claims:
    """The directories of marks, held open: keepers go on writing there whatever happens to the path."""

    def __init__(self, state_dir: "Path") -> None:
        """Make and open the directories. Raises RunnerError when they cannot be used."""
        self._path = state_dir
        self._starting = -1
        self._held: list[int] = []
        try:
            self._claims = _directory(state_dir / "claims")
            self._exits = _directory(state_dir / "exits")
        except OSError as error:
            raise _unusable(state_dir, error) from error

    @classmethod
    def of_descriptors(cls, claims: int, exits: int, starting: int) -> "Claims":
        """Return the same as another process has, from the descriptors that it has passed on."""
        self = cls.__new__(cls)
        self._claims, self._exits, self._starting = claims, exits, starting
        self._held = []
        return self

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """What a keeper must keep open to use this, and another process to use the same."""
        return self._claims, self._exits, self._starting

    def claim(self, job_id: str, mark: Mark) -> bool:
        """Durably mark the job as started, and keep it until `release`.

        Return False if it was started before, which must never start a second one. Raises OSError.
        """
        temporary, file = _write_temporary(self._starting, job_id, mark)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            syscalls.rename_noreplace(self._starting, temporary, self._claims, job_id)
        except OSError as error:
            os.close(file)
            os.unlink(temporary, dir_fd=self._starting)
            if isinstance(error, FileExistsError):
                return False
            raise
        self._held.append(file)
        return True

    def hand_on(self, job_id: str, mark: Mark) -> None:
        """Durably say anew what is so of a job that is kept. Raises OSError."""
        # Not in `starting`, which is another helper's by now; and what was locked before stays so until `release`, for
        # whoever has opened that.
        temporary, file = _write_temporary(self._exits, job_id, mark)
        self._held.append(file)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(temporary, job_id, src_dir_fd=self._exits, dst_dir_fd=self._claims)

    @property
    def is_holding(self) -> bool:
        """Whether this process keeps a job."""
        return bool(self._held)

    def release(self) -> None:
        """Keep the job that was claimed no longer."""
        while self._held:
            os.close(self._held.pop())

    def is_kept(self, job_id: str) -> bool:
        """Tell whether a process keeps this claimed job at present."""
        try:
            file = os.open(job_id, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._claims)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def unclaim(self, job_id: str) -> None:
        """Take the mark back: the program has not been started after all."""
        os.unlink(job_id, dir_fd=self._claims)

    def record_exit(self, job_id: str, record: Mark) -> None:
        """Durably record how the job ended. Raises OSError."""
        temporary, file = _write_temporary(self._exits, job_id, record)
        os.close(file)
        os.rename(temporary, job_id, src_dir_fd=self._exits, dst_dir_fd=self._exits)

    def claimed(self, job_id: str) -> Mark | None:
        """Return the job's claim, None if it was never started."""
        return _read(self._claims, job_id)

    def ended(self, job_id: str) -> Mark | None:
        """Return the job's exit record, None if there is none that can be relied on."""
        return _read(self._exits, job_id) or None

    def cancel(self, job_id: str) -> None:
        """Mark the job as one that is to be ended. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        os.close(os.open(job_id + _CANCEL, flags, 0o600, dir_fd=self._claims))

    def is_cancelled(self, job_id: str) -> bool:
        """Tell whether the job is to be ended."""
        return _modified(self._claims, job_id + _CANCEL) is not None

    def uncancel(self, job_id: str) -> None:
        """Take that mark back: the job was not started."""
        with suppress(OSError):  # where it cannot be removed it could not be made either
            os.unlink(job_id + _CANCEL, dir_fd=self._claims)

    def settle(self, job_id: str) -> None:
        """Forget the job. The claim goes first: an exit record alone is harmless and swept at the next start."""
        for directory, name in ((self._claims, job_id), (self._exits, job_id), (self._claims, job_id + _CANCEL)):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)

    def take_over(self) -> list[str]:
        """Make these marks ours: no earlier helper's keeper can claim a job from now on.

        Also removes what a crash left behind. Returns the ids of the jobs that are claimed. Raises RunnerError. Whoever
        calls this must hold the state directory's lock.
        """
        path = self._path / _STARTING
        try:
            with suppress(FileNotFoundError):
                while not _is_removed(path):
                    pass  # a keeper has begun to write a claim there
            self._starting = _directory(path)
        except OSError as error:
            raise _unusable(path, error) from error
        found = os.listdir(self._claims)
        claimed = frozenset(filter(protocol.is_job_id, found))
        cancelled = (name for name in found if name.endswith(_CANCEL))
        for directory, names in ((self._exits, os.listdir(self._exits)), (self._claims, cancelled)):
            for name in names:
                if name.partition(".")[0] not in claimed:  # those of a claimed job may be being written
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)
        return sorted(claimed)

    def is_old(self, job_id: str) -> bool:
        """Tell whether the last mark of a job is from so long ago that nobody will ask for it any more."""
        written = _modified(self._exits, job_id) or _modified(self._claims, job_id)
        return written is not None and written < time.time() - _KEPT_SECONDS


def _unusable(path: "Path", error: OSError) -> RunnerError:
    what = f"the state directory cannot be used: {error.strerror}"
    return RunnerError(what, where=str(path), hint="see --state-dir")


def _is_removed(path: "Path") -> bool:
    """Remove a directory of files; return False if it had got another one meanwhile. Raises OSError."""
    for name in os.listdir(path):
        with suppress(FileNotFoundError):
            os.unlink(path / name)
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    return True


def _directory(path: "Path") -> int:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _write_temporary(directory: int, job_id: str, content: Mark) -> tuple[str, int]:
    """Write `content` durably beside its final name; return a name that can never be a job's, and the open file."""
    name = f"{job_id}.{os.getpid()}.tmp"
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=directory)
    data = json.dumps(content).encode()
    try:
        while data:
            data = data[os.write(file, data) :]
        os.fsync(file)
    except OSError:
        os.close(file)
        os.unlink(name, dir_fd=directory)
        raise
    return name, file


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
