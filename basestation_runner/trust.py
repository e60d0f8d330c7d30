"""That whatever decides what the helper does can be written by root alone: its config, its program, its libraries.

A file is as trustworthy as the weakest directory above it, so every parent counts, through every link.
"""

import os
import stat
import sys
from typing import Final

from basestation_runner import program
from basestation_runner.errors import RunnerError

_MOST_LINKS: Final = 40  # as path_resolution(7)
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_BYTES: Final = 2 << 20  # more than the parser takes: it says so


def check_chain(path: str, known: set[str] | None = None) -> None:
    """Check that only root can write `path` and everything on the way to it. Raises RunnerError naming the culprit.

    The path is absolute. `known` collects what has been found safe, to spare work over many files. There is no race:
    whoever could change a checked link or directory afterwards is root.
    """
    known = set() if known is None else known
    steps = path.split("/")
    here = "/"
    links = 0
    while steps:
        step = steps.pop(0)
        if step == "..":
            here = os.path.dirname(here)
            continue
        here = os.path.join(here, step) if step not in {"", "."} else here
        if here in known:
            continue
        facts = _facts(here)
        if facts is None:
            return
        if facts.st_uid != 0:
            what = f"the helper uses it, but it belongs to uid {facts.st_uid}"
            raise RunnerError(what, where=here, hint="chown it to root")
        if stat.S_ISLNK(facts.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise RunnerError("too many links", where=path, hint="give the real path")
            target = os.readlink(here)
            steps = [*target.split("/"), *steps]
            here = "/" if target.startswith("/") else os.path.dirname(here)
            continue
        writable = facts.st_mode & _OTHERS_WRITE
        sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
        if writable and not sticky:
            what = "the helper uses it, but others than root can write it"
            raise RunnerError(what, where=here, hint="chmod go-w it")
        known.add(here)


def _facts(path: str) -> os.stat_result | None:
    """Return what lstat(2) says, None if there is nothing and root alone can change that. Raises RunnerError."""
    try:
        return os.lstat(path)
    except NotADirectoryError:
        return None  # it is in an archive, which has been checked
    except FileNotFoundError:
        # Whoever can write in the directory can put it there later: a sticky one is not enough.
        if os.stat(os.path.dirname(path)).st_mode & _OTHERS_WRITE:
            what = "the helper would use it, and others than root can make it"
            raise RunnerError(what, where=path, hint="make it, owned by root") from None
        return None


def read_config(path: str, *, privileged: bool) -> bytes:
    """Return the content of a config file. Raises RunnerError if others than root can write it, OSError.

    Without capabilities there is nothing to protect, and the helper may read its own account's files.
    """
    if privileged:
        check_chain(_absolute(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise RunnerError("it is not a regular file", where=path, hint="name the YAML file itself")
        if privileged and (facts.st_uid != 0 or facts.st_mode & _OTHERS_WRITE):
            raise RunnerError("others than root can write it", where=path, hint="chown it to root, chmod go-w it")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(_MOST_BYTES)
    finally:
        os.close(descriptor)


def check_program() -> None:
    """Check the executable, every library mapped into this process, every loaded module and the import path; of a
    compiled program the whole folder that it lies in.

    Raises RunnerError: with capabilities the helper must not run code that its own account, or anyone, could change.
    """
    known: set[str] = set()
    for path in sorted(_program_files()):
        check_chain(path, known)


def _absolute(path: str) -> str:
    """Return the path from the root, its ".." as they are: after a link they mean another directory."""
    return os.path.join(os.getcwd(), path)


def _program_files() -> set[str]:
    files = {_absolute(program.EXECUTABLE), _absolute(program.BECOME)}
    if program.COMPILED:  # what has not been loaded yet may be at any time
        for folder, folders, names in os.walk(os.path.dirname(program.EXECUTABLE)):
            files.update(os.path.join(folder, name) for name in (*folders, *names))
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            _, separator, path = line.rstrip("\n").partition(" /")
            if separator and not path.endswith(" (deleted)"):
                files.add("/" + path)
    for module in list(sys.modules.values()):
        for attribute in ("__file__", "__cached__"):
            location: object = getattr(module, attribute, None)
            if isinstance(location, str) and location.startswith("/"):
                files.add(location)
    files.update(_absolute(path) for path in sys.path)
    return files
