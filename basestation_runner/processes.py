"""Processes: their first descriptors, and telling one from a later one with the same pid.

That is by start time and boot, with a pidfd to wait for its end.
"""

import errno
import os
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

_STDERR: Final = 2
_STATE: Final = 0  # fields 3 and 22 of /proc/<pid>/stat, counted after the name in parentheses
_START_TIME: Final = 19

_NO_PROCESS: Final = frozenset({errno.ESRCH, errno.ENOENT, errno.EINVAL})
"""What pidfd_open(2) says of a number that no process has; the last two, by kernel, when it is a thread's now."""


def occupy_standard_descriptors() -> None:
    """Open what whoever started us has closed: a file of ours must not get a number that somebody replaces later."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


def close_all_but(kept: Collection[int]) -> None:
    """Close every descriptor of this process but these."""
    ordered = sorted(kept)
    for below, above in zip(ordered, [*ordered[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(below + 1, above)


def become(uid: int, gid: int, groups: Collection[int]) -> None:
    """Have root's process become an account for good, with nothing left to come back by. Raises OSError."""
    import prctl  # noqa: PLC0415 - few of those who need this module become anybody

    os.setgroups(sorted(groups))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)  # which takes all capabilities
    prctl.set_no_new_privs(1)


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def look(pid: int) -> tuple[bytes, int]:
    """Return a process's state, one letter, and when it began, in clock ticks since boot. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()  # the name may hold any byte
    return fields[_STATE], int(fields[_START_TIME])


def identify(pid: int) -> dict[str, Any]:
    """Return what tells this process from any other with the same pid: {"pid", "start"}, in clock ticks since boot."""
    return {"pid": pid, "start": _start(pid)}


def open_if_alive(mark: dict[str, Any]) -> int | None:
    """Return a pidfd of the process that `identify` described, None if it is gone. The pidfd is readable at its end."""
    try:
        pidfd = os.pidfd_open(mark["pid"])
    except OSError as error:
        if error.errno in _NO_PROCESS:
            return None
        raise
    # Read after the pidfd was opened: the same start time now means the pidfd is of the same process.
    if mark["start"] is not None and _start(mark["pid"]) not in {mark["start"], None}:
        os.close(pidfd)
        return None
    return pidfd


def _start(pid: int) -> int | None:
    """Return the start time, None if the process is gone or hidden from this account."""
    with suppress(OSError):
        return look(pid)[1]
    return None
