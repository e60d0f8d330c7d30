"""A site's tree beside what is not the site's, and what tests ask of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from basestation_runner.paths import PathBusyError, PathRefusedError
from tests.unit.paths.tree import Tree

if TYPE_CHECKING:
    from pathlib import Path

REFUSALS: Final = (PathRefusedError, PathBusyError, OSError)


@dataclass(frozen=True)
class Place:
    """A site's tree beside a directory that is not the site's, and how the site's requests name what is in it."""

    root: Path
    outside: Path
    jailed: bool

    def tree(self) -> Tree:
        return Tree([str(self.root)], jailed=self.jailed)

    def named(self, inside: str) -> str:
        return f"/{inside}" if self.jailed else f"{self.root}/{inside}"

    def open_directory(self, inside: str) -> int:
        """Open a directory that a request names; return its inode number."""
        with self.tree() as tree:
            return inode_of(tree.open_directory(self.named(inside)))

    def open_log(self, inside: str) -> int:
        with self.tree() as tree:
            return inode_of(tree.open_log(self.named(inside), os.getegid())[0])

    def is_untouched_outside(self) -> bool:
        return (
            sorted(entry.name for entry in self.outside.iterdir()) == ["log"]
            and not (self.outside / "log").read_bytes()
        )


def inode_of(descriptor: int) -> int:
    assert not os.get_inheritable(descriptor)
    inode = os.fstat(descriptor).st_ino
    os.close(descriptor)
    return inode


def inode(path: Path) -> int:
    return path.stat().st_ino
