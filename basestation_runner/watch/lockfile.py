"""The pid lock in a rundir that keeps this watcher and a legacy daemon from serving one site both. Blocking calls.

The site's people can put anything under its name: it is opened relative to the rundir and never followed.

The legacy daemon leaves its lock behind when it is killed, and its pid may be another process's by then. A live pid is
taken for such a one only if two things agree: its process began after the lock was written, and it is not called like a
runner. One would not do: a clock that was wrong when the host started and was set later makes a lock look older than
the daemon that wrote it. Where /proc does not show the process, it counts as the lock's holder.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import frozen

from basestation_runner import processes

NAME: Final = ".base_runner_lockfile"
_MODE: Final = 0o664
_LONGEST: Final = 4096  # white space included
_MOST_DIGITS: Final = 20
_MAX_PID: Final = 1 << 22  # the kernel's limit
_TRIES: Final = 3
_UNSURE_NS: Final = 60_000_000_000
"""How much later than the lock a process must have begun: clocks are stepped a little now and then."""
_NAMES: Final = (b"baserunner", b"runner-watch", b"runner watch")
"""What a command line of the legacy daemon, of its successor or of this program holds, in lower case."""


@frozen
class Holder:
    """A live process that has the lock; `descriptor` is open on the lock's file, for its changes to be watched."""

    pid: int
    descriptor: int


@frozen
class Seen:
    """A lock as it was found: the pid that it names, None if it names none, and whether that process may hold it."""

    pid: int | None
    is_held: bool


def look(rundir: int) -> Seen | None:
    """Return what the lock says, without touching it; None if there is none."""
    try:
        descriptor = _open(rundir)
    except FileNotFoundError:
        return None
    if descriptor is None:
        return Seen(None, is_held=False)
    try:
        pid = _pid(descriptor)
        return Seen(pid, is_held=pid is not None and _is_holder(pid, os.fstat(descriptor).st_mtime_ns))
    finally:
        os.close(descriptor)


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
                if pid is not None and _is_holder(pid, os.fstat(descriptor).st_mtime_ns):
                    return Holder(pid, descriptor)
                os.close(descriptor)
            os.unlink(NAME, dir_fd=rundir)
        with suppress(FileExistsError):
            _make(rundir, gid)
            return None
    raise OSError(errno.EBUSY, "the lock file is made again and again")


def holder(rundir: int) -> int | None:
    """Return which live process has the lock, if one has. Changes nothing."""
    try:
        descriptor = _open(rundir)
    except FileNotFoundError:
        return None
    if descriptor is None:
        return None
    try:
        pid = _pid(descriptor)
        return pid if pid is not None and _is_holder(pid, os.fstat(descriptor).st_mtime_ns) else None
    finally:
        os.close(descriptor)


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
    content = os.pread(descriptor, _LONGEST + 1, 0)
    text = content.strip()
    if len(content) > _LONGEST or len(text) > _MOST_DIGITS or not text.isdigit():
        return None
    return pid if 0 < (pid := int(text)) <= _MAX_PID else None


def _is_holder(pid: int, written_ns: int) -> bool:
    """Tell whether a process lives and may be the one that wrote a lock at this time of the wall clock."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs as another account
        pass
    try:
        state, began_ticks = processes.look(pid)
        command = Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return True
    if state in {b"Z", b"X"}:
        return False
    began_ns = began_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")  # after the boot
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began_ns
    if time.time_ns() - age_ns <= written_ns + _UNSURE_NS:
        return True
    return is_called_like_a_runner(command.replace(b"\0", b" "))


def is_called_like_a_runner(command: bytes) -> bool:
    """Tell whether a command line may be that of the legacy daemon, of its successor or of this program."""
    return any(name in command.lower() for name in _NAMES)


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
