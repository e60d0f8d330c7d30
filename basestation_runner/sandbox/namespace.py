"""A private mount namespace for the calling process: what it mounts, only it and its later children see.

Nothing here touches the host: no mount leaves the namespace, and all of them end with its last process.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

from basestation_runner.errors import RunnerError

_CLONE_NEWNS: Final = 0x00020000
_MS_NOSUID: Final = 0x2
_MS_NODEV: Final = 0x4
_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 1 << 18
_MNT_DETACH: Final = 2

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, target: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = (os.fsencode(word) if word is not None else None for word in (source, target, kind))
    _checked(_libc.mount(*words, ctypes.c_ulong(flags), data.encode() if data else None), target)


def enter() -> None:
    """Move the calling thread, and what it starts from now on, to a mount namespace of its own.

    Raises RunnerError where root may not do that, as in a container without CAP_SYS_ADMIN.
    """
    try:
        _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
        _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    except OSError as error:
        raise RunnerError(
            f"no private mount namespace: {error.strerror}",
            hint="give the container CAP_SYS_ADMIN, or run this as an ordinary account (then without other accounts)",
        ) from error


def mount_tmpfs(target: Path) -> None:
    _mount("tmpfs", str(target), "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755")


def bind(source: Path, target: Path) -> None:
    """Show `source` at `target`; whoever opens `target` meanwhile gets the one or the other, whole."""
    _mount(str(source), str(target), None, _MS_BIND)


def unmount(target: Path) -> None:
    """Take the topmost mount off `target`; what is still open or running in it goes on."""
    _checked(_libc.umount2(os.fsencode(target), _MNT_DETACH), str(target))


def of(pid: int) -> int | None:
    """Return the identity of a process's mount namespace; None for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/ns/mnt").stat().st_ino
    except OSError:
        return None
