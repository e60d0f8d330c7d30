"""Where a request's paths lead on this host: never outside the site's tree, whatever links its people make.

The pure rules stand first. `Tree` opens logs to show them, as whoever asks; for jobs the same rules are in
privexec/become/tree.c.
"""

import errno
import os
from collections.abc import Iterable
from stat import S_ISDIR, S_ISLNK, S_ISREG, S_IWGRP, S_IWOTH
from typing import Final, Self

from basestation_runner import syscalls

_TRIES: Final = 64
"""How often a path is resolved again when renames get in the way, before the job is told to come back later."""


class PathRefusedError(Exception):
    """The path leads outside the site's tree, or is not what it has to be."""


class PathBusyError(Exception):
    """The path changed under every attempt to resolve it; a later attempt may succeed."""


def lies_beneath(path: str, ancestor: str) -> bool:
    """Tell whether `path` is `ancestor` or beneath it, compared by components ("/a/bc" is not beneath "/a/b")."""
    parts, above = _parts(path), _parts(ancestor)
    return parts[: len(above)] == above


def _parts(path: str) -> list[str]:
    """Return a path's components, the first "/" if it is absolute; what changes nothing ("//", "/./") is left out."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    return ["/", *parts] if path.startswith("/") else parts


def join_jail(jail_root: str, path: str) -> str:
    """Return where the jail's absolute `path` lies on the host when no link is in the way."""
    return jail_root.rstrip("/") + path


class Tree:
    """A site's tree, held open: the only part of the filesystem that its requests can name.

    With `jailed`, paths are as seen inside the only root, absolute links included; otherwise they are paths of the
    host and must lie beneath one of the roots, after links have been followed too.
    """

    def __init__(self, roots: Iterable[str], *, jailed: bool) -> None:
        """Open the roots. Raises PathRefusedError when one cannot be used, OSError when it cannot be opened."""
        self._jailed = jailed
        self._roots = {root: open_trusted_directory(root) for root in roots}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._roots.values():
            os.close(descriptor)

    def open_to_read(self, path: str) -> int:
        """Open the log at `path` to show it. Raises PathRefusedError, PathBusyError or OSError."""
        log = self._open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
        if not S_ISREG(os.fstat(log).st_mode):
            os.close(log)
            raise PathRefusedError("it is not a regular file")
        return log

    def _open(self, path: str, flags: int) -> int:
        if not path.startswith("/"):
            raise PathRefusedError("it is not an absolute path")
        for _ in range(_TRIES):
            try:
                return self._open_once(path, flags)
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    raise
        raise PathBusyError("it is being renamed all the time")

    def _open_once(self, path: str, flags: int) -> int:
        if self._jailed:
            ((_, root),) = self._roots.items()
            inside = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
            return syscalls.openat2(root, path, flags, resolve=inside)
        try:
            root, below = self._root_of(path)
            beneath = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS
            return syscalls.openat2(root, below, flags, resolve=beneath)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        # A link that is absolute or climbs above the root: see where it leads, and open only that, without any link.
        root, below = self._root_of(os.path.realpath(path, strict=True), resolved=True)
        try:
            straight = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
            return syscalls.openat2(root, below, flags, resolve=straight)
        except OSError as error:
            if error.errno == errno.ELOOP:  # a directory has been exchanged for a link since
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path) from None
            raise

    def _root_of(self, path: str, *, resolved: bool = False) -> tuple[int, str]:
        for name, descriptor in self._roots.items():
            root = path_of(descriptor) if resolved else name  # a root may be named through a link of the host's
            if lies_beneath(path, root):
                return descriptor, "/".join(_parts(path)[len(_parts(root)) :]) or "."
        raise PathRefusedError("it is outside the site's tree")


def path_of(descriptor: int) -> str:
    """Return the host's path of an open descriptor, as the kernel knows it."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


def may_be_followed_in(directory: os.stat_result) -> bool:
    """Given a directory's facts, tell whether links in it may be followed: root alone can make any, sticky or not.

    Whose a link is does not count: who was given one by root still cannot aim it elsewhere.
    """
    return directory.st_uid == 0 and not directory.st_mode & (S_IWGRP | S_IWOTH)


def open_trusted_directory(path: str) -> int:
    """Return an O_PATH descriptor of a configured directory, reached only through links that root alone can make.

    The site's people can write in the parents of their rundir; a link of theirs there must not lead anywhere else.
    Raises PathRefusedError or OSError.
    """
    steps = _parts(path)[1:]
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    followed = 0
    try:
        while steps:
            below = os.open(steps.pop(0), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            if not S_ISLNK(os.fstat(below).st_mode):
                os.close(here)
                here = below
                continue
            target = os.readlink("", dir_fd=below)
            os.close(below)
            followed += 1
            trusted = may_be_followed_in(os.fstat(here)) and followed <= _TRIES
            _require(trusted, f"{path} leads through a link that others than root can change")
            steps = [*_parts(target), *steps]  # an absolute target's first part leads to / from anywhere
        _require(S_ISDIR(os.fstat(here).st_mode), f"{path} is not a directory")
    except BaseException:
        os.close(here)
        raise
    return here


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - the condition itself
    if not holds:
        raise PathRefusedError(otherwise)
