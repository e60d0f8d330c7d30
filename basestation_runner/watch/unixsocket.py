"""A UNIX socket to listen on, in place of a dead process's; blocking calls that do not wait."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def is_served(path: Path) -> bool:
    """Tell whether a process listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as link:
        try:
            link.connect(str(path))
        except BlockingIOError:  # somebody listens and is very busy
            return True
        except OSError:
            return False
        return True


def listener(path: Path, mode: int) -> tuple[socket.socket, int]:
    """Bind a socket of this mode, and return it with its inode. Raises OSError, also when a process listens there."""
    if is_served(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        umask = os.umask(0o777 & ~mode)
        try:
            made.bind(str(path))
        finally:
            os.umask(umask)
        return made, path.stat().st_ino
    except BaseException:
        made.close()
        raise


def remove(path: Path, inode: int | None) -> None:
    """Take the socket away unless it is another's by now, or there was none."""
    with suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()
