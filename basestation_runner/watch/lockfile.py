"""The pid lock in a rundir that keeps this watcher and a legacy daemon from serving one site both. Blocking calls.

The site's people can put anything under its name: it is opened relative to the rundir and never followed.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import Final

from attrs import frozen

NAME: Final = ".base_runner_lockfile"
_MODE: Final = 0o664
_LONGEST: Final = 32
_MAX_PID: Final = 1 << 22  # the kernel's limit
_TRIES: Final = 3


@frozen
class Holder:
    """A live process that has the lock; `descriptor` is open on the lock's file, for its changes to be watched."""

    pid: int
    descriptor: int


def take(rundir: int, gid: int) -> Holder | None:
    """Make the lock ours, or return who has it. Raises OSError when the file cannot be made.

    A lock that is stale, cannot be read or is no number is replaced, as the legacy daemon does.
    """
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            descriptor = _open(rundir)
            if descriptor is not None:
                pid = _pid(descriptor)
                if pid == os.getpid():
                    os.close(descriptor)
                    return None
                if pid is not None and _is_alive(pid):
                    return Holder(pid, descriptor)
                os.close(descriptor)
            os.unlink(NAME, dir_fd=rundir)
        with suppress(FileExistsError):
            _make(rundir, gid)
            return None
    raise OSError(errno.EBUSY, "the lock file is made again and again")


def release(rundir: int) -> None:
    """Remove the lock if it is still ours. Raises OSError."""
    try:
        descriptor = _open(rundir)
    except FileNotFoundError:
        return
    if descriptor is None:
        return
    is_ours = _pid(descriptor) == os.getpid()
    os.close(descriptor)
    if is_ours:
        os.unlink(NAME, dir_fd=rundir)


def _open(rundir: int) -> int | None:
    """Return the lock file's descriptor, None if it is not a file that can be read. Raises FileNotFoundError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(NAME, flags, dir_fd=rundir)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _pid(descriptor: int) -> int | None:
    """Return the pid that a lock names, None if it names none that can exist."""
    text = os.pread(descriptor, _LONGEST, 0).strip()
    if not text.isdigit():
        return None
    return pid if 0 < (pid := int(text)) <= _MAX_PID else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs as another account
        return True
    return True


def _make(rundir: int, gid: int) -> None:
    """Write the lock. Raises FileExistsError when another one has come first."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(NAME, flags, _MODE, dir_fd=rundir)
    try:
        os.write(descriptor, str(os.getpid()).encode())
        with suppress(OSError):  # the legacy daemon's account takes the lock back through this group
            os.fchown(descriptor, -1, gid)
            os.fchmod(descriptor, _MODE)
    finally:
        os.close(descriptor)
