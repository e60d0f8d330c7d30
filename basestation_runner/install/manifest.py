"""What `runner install` has put on a host, so that it can all be found again: /usr/lib/basestation-runner/manifest.

The format is sha256sum's, with what is no file as comments: `cd / && sha256sum -c --quiet FILE` shows what is changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from basestation_runner.errors import RunnerError
from basestation_runner.install import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_HEAD: Final = "# What runner install has put on this host; runner uninstall takes it away."
_DIRECTORY: Final = "# directory "
_FILE: Final = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<path>.+)")


@dataclass(frozen=True)
class Manifest:
    """Paths from the root without its slash: of files with their SHA-256, and of the directories made for them."""

    files: Mapping[str, str] = field(default_factory=dict)
    directories: frozenset[str] = frozenset()

    def with_planned(self, planned: Mapping[str, str], directories: frozenset[str]) -> Manifest:
        """Return what may be on the host until all that is planned has been done."""
        return Manifest({**planned, **self.files}, self.directories | directories)


def dumps(manifest: Manifest) -> str:
    """Given a manifest, return the file's content."""
    return "".join(f"{line}\n" for line in _lines(manifest))


def _lines(manifest: Manifest) -> Iterator[str]:
    yield _HEAD
    for name in sorted(manifest.directories):
        yield _DIRECTORY + name
    for name, digest in sorted(manifest.files.items()):
        yield f"{digest}  {name}"


def loads(text: str) -> Manifest:
    """Given the file's content, return the manifest. Raises ValueError for a line that this program does not write."""
    found: dict[str, str] = {}
    directories = set()
    head, *lines = text.split("\n")
    if head != _HEAD or lines[-1:] != [""]:
        raise ValueError("it does not begin and end as it should")
    for line in lines[:-1]:
        if line.startswith(_DIRECTORY):
            directories.add(_checked(line.removeprefix(_DIRECTORY)))
        elif (file := _FILE.fullmatch(line)) is not None:
            found[_checked(file["path"])] = file["digest"]
        else:
            raise ValueError(f"what is this line? {line}")
    return Manifest(found, frozenset(directories))


def _checked(name: str) -> str:
    """Given a path, return it if it is one that cannot lead out of the root."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or str(path) != name:
        raise ValueError(f"what is this path? {name}")
    return name


def load(path: Path) -> Manifest | None:
    """Return the manifest that is there; None if there is none. Raises RunnerError for a damaged one."""
    try:
        return loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunnerError(str(error), where=str(path), hint="remove it, install again, then uninstall") from error


def save(path: Path, manifest: Manifest) -> None:
    """Write the manifest durably, in one step."""
    files.place(dumps(manifest).encode(), path, 0o644)
