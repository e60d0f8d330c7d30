"""Moves files out of a rundir's way: to `rejected/`, `stale/` and `archive/`, beside a reason file. Blocking calls.

Nothing is followed, nothing is replaced, and whatever is moved loses its `.run` ending: the site's people decide what
those names are, and must not be able to make a request appear elsewhere.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from basestation_runner import syscalls

if TYPE_CHECKING:
    import re

SUFFIX: Final = ".run"
MOST_KEPT: Final = 1000
"""Most files in `rejected/`, their reason files not counted."""

_KEPT_AFTER_CLEANING: Final = 900
_LONGEST_NAME: Final = 255
_REASON: Final = ".reason"
_FOLDER_MODE: Final = 0o775
_REASON_MODE: Final = 0o664


def move(source: int, name: str, target: int, new_name: str) -> None:
    """Rename without replacing anything. Raises OSError."""
    try:
        syscalls.rename_noreplace(source, name, target, new_name)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS}:
            raise
        # The filesystem cannot promise it. Every new name has a part that nobody can guess: nothing is replaced.
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)


def set_aside(  # noqa: PLR0913 - the facts of one move
    rundir: int, source: str, *, folder: str, name: str, tag: str, gid: int, reason: str | None = None
) -> str:
    """Move `source`, a request that was called `name`, into a folder of the rundir; return where it is now.

    `tag`, which nobody can guess, becomes its ending. A reason is written beside it. When the folder is not a directory
    of the rundir itself, or cannot be used, the file stays in the rundir. Raises OSError when it cannot be moved.
    """
    ending = os.fsencode(f".{tag}")
    stem = os.fsencode(name.removesuffix(SUFFIX))[: _LONGEST_NAME - len(ending) - len(_REASON)]
    kept = os.fsdecode(stem + ending)
    with suppress(OSError):
        directory = _open_folder(rundir, folder, gid)
        try:
            move(rundir, source, directory, kept)
            _write_reason(directory, kept, reason, gid)
        finally:
            os.close(directory)
        return f"{folder}/{kept}"
    move(rundir, source, rundir, kept)
    _write_reason(rundir, kept, reason, gid)
    return kept


def write_new(rundir: int, name: str, content: bytes, *, gid: int) -> None:
    """Write a file of the site, whole or not at all. Does nothing when the name is taken. Raises OSError."""
    part = f".{name}.part"
    with suppress(FileNotFoundError):  # of a crash
        os.unlink(part, dir_fd=rundir)
    descriptor = os.open(
        part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=rundir
    )
    try:
        _share(descriptor, _REASON_MODE, gid)
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        move(rundir, part, rundir, name)
    except FileExistsError:
        os.unlink(part, dir_fd=rundir)


def count(rundir: int, folder: str) -> int:
    """Return how many files were set aside in a folder; 0 when it is not a directory or cannot be read."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=rundir)
    except OSError:
        return 0
    try:
        return sum(not name.endswith(_REASON) for name in os.listdir(directory))  # noqa: PTH208 - of a descriptor
    finally:
        os.close(directory)


def clean(rundir: int, folder: str, tagged: re.Pattern[str]) -> int:
    """Remove the oldest files that were set aside, those whose names match `tagged`; return how many are left."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=rundir)
    try:
        with os.scandir(directory) as entries:
            aged = sorted(
                (entry.stat(follow_symlinks=False).st_ctime_ns, entry.name)
                for entry in entries
                if tagged.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False)
            )
        surplus = len(aged) - _KEPT_AFTER_CLEANING if len(aged) > MOST_KEPT else 0
        for _, name in aged[:surplus]:
            with suppress(OSError):
                os.unlink(name, dir_fd=directory)
            with suppress(OSError):
                os.unlink(name + _REASON, dir_fd=directory)
        return len(aged) - surplus
    finally:
        os.close(directory)


def _open_folder(rundir: int, folder: str, gid: int) -> int:
    is_new = False
    with suppress(FileExistsError):
        os.mkdir(folder, _FOLDER_MODE, dir_fd=rundir)
        is_new = True
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=rundir)
    if is_new:
        _share(directory, _FOLDER_MODE, gid)
    return directory


def _share(descriptor: int, mode: int, gid: int) -> None:
    """Give what we made to the site's group, if we may."""
    with suppress(OSError):
        os.fchown(descriptor, -1, gid)
        os.fchmod(descriptor, mode)


def _write_reason(directory: int, kept: str, reason: str | None, gid: int) -> None:
    """Say why, in a file that the site's people can read. That it cannot be written is no reason to fail."""
    if reason is None:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        descriptor = os.open(kept + _REASON, flags, _REASON_MODE, dir_fd=directory)
        try:
            os.write(descriptor, f"{reason}\n".encode("utf-8", "backslashreplace"))
            _share(descriptor, _REASON_MODE, gid)
        finally:
            os.close(descriptor)
