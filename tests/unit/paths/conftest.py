"""Trees for the tests of paths."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.unit.paths.places import Place
from tests.unit.paths.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["jailed", "unjailed"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    root, outside = tmp_path / "tree", tmp_path / "outside"
    (root / "mission").mkdir(parents=True)
    (root / "mission" / "log").touch()
    outside.mkdir()
    (outside / "log").touch()
    before = os.umask(0o002)
    yield Place(root, outside, jailed=request.param == "jailed")
    os.umask(before)


@pytest.fixture
def jail(tmp_path: Path) -> Iterator[Tree]:
    root = tmp_path / "jail"
    (root / "home" / "sg123" / "mission1").mkdir(parents=True)
    with Tree([str(root)], jailed=True) as tree:
        yield tree
