"""An inotify instance, read on the event loop. Says what happened to a watched directory, by its watch descriptor;
knows no site. Each site has one of its own: the kernel's queue is bounded, and who makes it overflow loses no other's.

Of pyinotify it takes the system calls and constants: its WatchManager looks at each path again, which can hang, and its
Notifier loses a whole batch of events when one name in it is not UTF-8, and drops queue overflows.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

import pyinotify

from basestation_runner.errors import RunnerError
from basestation_runner.paths import PathRefusedError, open_trusted_directory

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

CLOSE_WRITE: Final = pyinotify.IN_CLOSE_WRITE
MOVED_TO: Final = pyinotify.IN_MOVED_TO
GONE: Final = pyinotify.IN_DELETE_SELF | pyinotify.IN_MOVE_SELF | pyinotify.IN_UNMOUNT | pyinotify.IN_IGNORED
"""What ends with the directory not being where it was."""

RUNDIR: Final = CLOSE_WRITE | MOVED_TO | pyinotify.IN_DELETE_SELF | pyinotify.IN_MOVE_SELF | pyinotify.IN_ONLYDIR
PARENT: Final = (
    pyinotify.IN_CREATE
    | MOVED_TO
    | pyinotify.IN_ATTRIB
    | pyinotify.IN_DELETE_SELF
    | pyinotify.IN_MOVE_SELF
    | pyinotify.IN_ONLYDIR
)
"""For a directory in which something is to appear, or to become accessible."""
FILE: Final = CLOSE_WRITE | pyinotify.IN_ATTRIB | pyinotify.IN_DELETE_SELF | pyinotify.IN_MOVE_SELF
"""For one file; ATTRIB tells of its unlinking too."""

_EVENT: Final = struct.Struct("iIII")
_READ: Final = 1 << 16
_LONGEST_EVENT: Final = _EVENT.size + 256
_BREATH: Final = 0.02
"""Seconds between two full buffers: who makes events without end must not have the loop for himself."""


class Watches:
    """The watched directories. `add` may be called on any thread, everything else on the loop only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_overflow: Callable[[], None],
        on_unclaimed: Callable[[], None],
        calls: pyinotify.INotifyWrapper | None = None,
    ) -> None:
        """Start reading. `on_overflow`: events were lost; `on_unclaimed`: one came before its watch had a subscriber.

        `calls` are another instance's: they cost a process to find. Raises RunnerError when there can be no further
        inotify instance.
        """
        self._loop = loop
        self._on_overflow = on_overflow
        self._on_unclaimed = on_unclaimed
        self._subscribers: dict[int, list[Callable[[int, str], None]]] = {}
        self._breath: asyncio.TimerHandle | None = None
        self.calls = calls or pyinotify.INotifyWrapper.create()
        self._fd = self.calls.inotify_init()
        if self._fd < 0:
            number = self.calls.get_errno()
            raise RunnerError(
                f"inotify cannot be used: {os.strerror(number)}",
                hint="raise the sysctl fs.inotify.max_user_instances" if number == errno.EMFILE else None,
            )
        os.set_blocking(self._fd, False)
        os.set_inheritable(self._fd, False)
        loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Stop reading and forget all watches."""
        self._loop.remove_reader(self._fd)
        if self._breath is not None:
            self._breath.cancel()
        os.close(self._fd)
        self._fd = -1  # a task that hangs may still ask for a watch
        self._subscribers.clear()

    def add(self, descriptor: int, mask: int) -> int:
        """Watch the file that `descriptor` is open on, and return the watch descriptor. May hang with its filesystem.

        Two watches on one file are one, with both masks. Raises OSError; ENOSPC's text names the sysctl to raise.
        """
        path = f"/proc/self/fd/{descriptor}"  # the open file itself, whatever has become of its name
        watch = self.calls.inotify_add_watch(self._fd, path, mask | pyinotify.IN_MASK_ADD)
        if watch >= 0:
            return watch
        number = self.calls.get_errno()
        if number == errno.ENOSPC:
            raise OSError(number, "no inotify watch is left: raise the sysctl fs.inotify.max_user_watches")
        raise OSError(number, os.strerror(number))

    def subscribe(self, watch: int, callback: Callable[[int, str], None]) -> None:
        """Have `callback` called with the mask and the name of each event of a watch."""
        self._subscribers.setdefault(watch, []).append(callback)

    def unsubscribe(self, watch: int, callback: Callable[[int, str], None]) -> None:
        """Take `callback` off a watch; without any the watch itself is removed."""
        subscribers = self._subscribers.get(watch, [])
        with suppress(ValueError):
            subscribers.remove(callback)
        self.drop(watch)

    def drop(self, watch: int) -> None:
        """Remove a watch unless somebody subscribes to it."""
        if not self._subscribers.get(watch):
            self._subscribers.pop(watch, None)
            self.calls.inotify_rm_watch(self._fd, watch)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        if len(data) > _READ - _LONGEST_EVENT:  # there is more
            self._loop.remove_reader(self._fd)
            self._breath = self._loop.call_later(_BREATH, self._go_on)
        offset = 0
        while offset < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            self._tell(watch, mask, name)

    def _go_on(self) -> None:
        self._loop.add_reader(self._fd, self._read)

    def _tell(self, watch: int, mask: int, name: str) -> None:
        if mask & pyinotify.IN_Q_OVERFLOW:
            self._on_overflow()
            return
        subscribers = self._subscribers.get(watch)
        if subscribers is None:
            if not mask & pyinotify.IN_IGNORED:
                self._on_unclaimed()
            return
        if mask & pyinotify.IN_IGNORED:
            del self._subscribers[watch]
        for callback in tuple(subscribers):
            callback(mask, name)


def open_nearest(path: str) -> tuple[int, str]:
    """Open the nearest directory above `path` that can be; return it and the name that should appear in it.

    Links that others than root could have made are not followed: they could lead to a directory that another site
    watches. Raises OSError when not even that can be opened.
    """
    wanted = PurePosixPath(path)
    for parent in wanted.parents:
        try:
            descriptor = open_trusted_directory(str(parent))
        except (FileNotFoundError, NotADirectoryError, PermissionError, PathRefusedError):
            continue
        return descriptor, wanted.relative_to(parent).parts[0]
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
