"""A log is found where its job found it: the two programs that resolve a request's paths agree on every tree."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basestation_runner import paths
from tests.unit.paths.places import REFUSALS, inode_of
from tests.unit.paths.test_tree import LINKS, WALKS, Links, every_name_in, plant
from tests.unit.paths.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.paths.places import Place


def outcome(attempt: Callable[[], int]) -> object:
    """Return which file was opened, or what kind of error there was."""
    try:
        return inode_of(attempt())
    except OSError as error:
        return error.errno
    except (paths.PathRefusedError, paths.PathBusyError) as error:
        return type(error)


@pytest.mark.parametrize("jailed", [False, True])
@settings(max_examples=60)
@given(links=LINKS, walks=st.lists(WALKS, max_size=3))
def test_whoever_looks_at_a_log_is_led_where_the_job_was(*, jailed: bool, links: Links, walks: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory).resolve() / "tree"
        plant(root, links, jailed=jailed)
        for place in ("", "a", "a/b"):
            (root / place / "log").touch()
        flags = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK
        with Tree([str(root)], jailed=jailed) as job, paths.Tree([str(root)], jailed=jailed) as reader:
            for name in ["log", *(f"{name}/log" for name in [*every_name_in(root), *walks])]:
                path = f"/{name}" if jailed else str(root / name)
                shown, opened = partial(reader.open_to_read, path), partial(job.open, path, flags)
                assert outcome(shown) == outcome(opened)


def test_only_a_regular_file_is_shown(place: Place) -> None:
    os.mkfifo(place.root / "fifo")
    with paths.Tree([str(place.root)], jailed=place.jailed) as tree:
        for name in ("fifo", "mission"):
            with pytest.raises(paths.PathRefusedError, match="regular"):
                tree.open_to_read(place.named(name))
        with pytest.raises(paths.PathRefusedError, match="absolute"):
            tree.open_to_read("mission/log")
        with pytest.raises(REFUSALS):
            tree.open_to_read(place.named("missing"))
