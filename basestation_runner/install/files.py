"""Putting files where a power failure leaves them old or new and whole, owned by root."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING, Final

from basestation_runner.errors import RunnerError

if TYPE_CHECKING:
    from pathlib import Path

UNFINISHED: Final = ".unfinished"
"""How what is not whole yet is called, or ends."""

_DIRECTORY_MODE: Final = 0o755


def digest(path: Path) -> str | None:
    """Return a file's SHA-256; None if there is no regular file."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(content: bytes, path: Path, mode: int) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchown(descriptor, 0, 0)  # whatever the directory's set-group-ID bit says
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)


def place(content: bytes, path: Path, mode: int) -> None:
    """Give a file its content, whether there was one or not."""
    unfinished = path.with_name(path.name + UNFINISHED)
    _write(content, unfinished, mode)
    unfinished.replace(path)
    sync_directory(path.parent)


def place_link(target: str, path: Path) -> None:
    """Have a symbolic link lead to a target, whether there was one or not."""
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(target)
    unfinished.replace(path)
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Make a directory that everybody can read, in one that is there."""
    path.mkdir(exist_ok=True)
    os.chown(path, 0, 0)
    path.chmod(_DIRECTORY_MODE)


def place_folder(source: Path, target: Path) -> None:
    """Copy a folder of files and directories to a place where there is none, or another."""
    unfinished = target.with_name(UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    make_directory(unfinished)
    for path in sorted(source.rglob("*")):
        copy = unfinished / path.relative_to(source)
        if path.is_dir():
            make_directory(copy)
        else:
            _write(path.read_bytes(), copy, 0o755 if os.access(path, os.X_OK) else 0o644)
    for path in (unfinished, *unfinished.rglob("*")):
        if path.is_dir():
            sync_directory(path)
    if target.exists():
        shutil.rmtree(target)
    unfinished.rename(target)
    sync_directory(target.parent)


def remove_folder(path: Path) -> RunnerError | None:
    """Remove a folder, if it is there, with all that is in it; return what could not be, when all else is gone."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return RunnerError(f"not all of it can be removed: {error.strerror or error}", where=str(path))
    return None


def same_folder(one: Path, other: Path) -> bool:
    """Return whether two folders hold the same files."""
    return other.is_dir() and (one.samefile(other) or _digests(one) == _digests(other))


def _digests(folder: Path) -> dict[Path, str | None]:
    return {path.relative_to(folder): digest(path) for path in folder.rglob("*") if not path.is_dir()}
