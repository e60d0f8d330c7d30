"""Trees that change while they are walked."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from basestation_runner.paths import PathBusyError
from tests.unit.paths.places import REFUSALS, Place, inode, inode_of
from tests.unit.paths.tree import Tree, failing, while_resolving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


EXCHANGE: Final = """
import ctypes, sys
call, first, second = ctypes.CDLL(None).renameat2, sys.argv[1].encode(), sys.argv[2].encode()
print("ready", flush=True)
while call(-100, first, -100, second, 2) == 0:  # RENAME_EXCHANGE, until one of them is gone
    pass
"""


@contextmanager
def exchanging(first: Path, second: Path) -> Iterator[None]:
    """Exchange two names all the time, in another process."""
    command = [sys.executable, "-ISc", EXCHANGE, str(first), str(second)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield
            assert other.poll() is None
        finally:
            other.kill()


def outcomes(attempt: Callable[[], int], *, at_least: int, wanted: int) -> set[int | type[Exception]]:
    """Return the different outcomes of many attempts, of many more while there are fewer different ones than wanted."""
    seen: set[int | type[Exception]] = set()
    for count in range(100 * at_least):
        if count >= at_least and len(seen) >= wanted:
            break
        try:
            seen.add(attempt())
        except REFUSALS as error:
            seen.add(type(error))
    assert len(seen) >= wanted
    return seen


@pytest.mark.parametrize("target", ["{outside}", "../outside"])
@pytest.mark.parametrize("name", ["mission", "mission/log", "mission/new"])
def test_a_directory_that_becomes_a_link_and_back_never_leads_outside(place: Place, target: str, name: str) -> None:
    (place.root / "link").symlink_to(target.format(outside=place.outside))
    attempt = place.open_directory if name == "mission" else place.open_log
    mission = place.root / "mission"
    if name == "mission/new":
        (mission / "new").touch()
    allowed = inode(place.root / name)
    with exchanging(mission, place.root / "link"):
        seen = outcomes(lambda: attempt(name), at_least=2000, wanted=2)
    assert {outcome for outcome in seen if isinstance(outcome, int)} == {allowed}
    assert place.is_untouched_outside()


def test_two_directories_of_the_tree_that_change_places_through_links_are_the_only_ones_opened(place: Place) -> None:
    (place.root / "other").mkdir()
    (place.root / "link").symlink_to(place.named("other"))
    allowed = {inode(place.root / "mission"), inode(place.root / "other")}
    with exchanging(place.root / "mission", place.root / "link"):
        seen = outcomes(lambda: place.open_directory("mission"), at_least=2000, wanted=2)
    assert {outcome for outcome in seen if isinstance(outcome, int)} == allowed


def test_a_directory_that_is_moved_out_of_the_tree_does_not_lead_out_by_its_parent(place: Place) -> None:
    (place.root / "mission" / "deep").mkdir()
    (place.outside.parent / "elsewhere" / "deep").mkdir(parents=True)
    allowed = inode(place.root / "mission" / "log")
    with exchanging(place.root / "mission" / "deep", place.outside / ".." / "elsewhere" / "deep"):
        seen = outcomes(lambda: place.open_log("mission/deep/../log"), at_least=2000, wanted=1)
    assert {outcome for outcome in seen if isinstance(outcome, int)} <= {allowed}
    assert sorted(os.listdir(place.outside.parent / "elsewhere")) == ["deep"]  # noqa: PTH208 - names


def test_a_log_that_becomes_a_link_and_back_never_leads_outside(place: Place) -> None:
    (place.root / "link").symlink_to(place.outside / "log")
    log = place.root / "mission" / "log"
    allowed = inode(log)
    with exchanging(log, place.root / "link"):
        seen = outcomes(lambda: place.open_log("mission/log"), at_least=2000, wanted=2)
    assert {outcome for outcome in seen if isinstance(outcome, int)} == {allowed}
    assert place.is_untouched_outside()


def test_a_directory_that_becomes_a_link_while_an_absolute_link_to_it_is_resolved_is_resolved_again(
    tmp_path: Path,
) -> None:
    directory, moved = tmp_path / "directory", tmp_path / "moved"
    directory.mkdir()
    (tmp_path / "link").symlink_to(directory)

    def move() -> None:
        if not moved.exists():
            directory.rename(moved)
            directory.symlink_to("moved")

    with Tree([str(tmp_path)], jailed=False) as tree, while_resolving(move):
        assert inode_of(tree.open_directory(str(tmp_path / "link"))) == inode(moved)


def test_a_path_that_changes_at_every_attempt_is_busy_not_refused(place: Place) -> None:
    with place.tree() as tree, failing(errno.EAGAIN):
        with pytest.raises(PathBusyError):
            tree.open_directory(place.named("mission"))
        with pytest.raises(PathBusyError):
            tree.open_log(place.named("mission/log"), os.getegid())
        if place.jailed:
            with pytest.raises(PathBusyError):
                tree.host_path(place.named("mission"))
