"""Which directories can be a tree's roots, and which links may lead there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from basestation_runner.paths import PathRefusedError
from tests.process import NOBODY, as_nobody, open_descriptors
from tests.unit.paths.places import Place, inode, inode_of
from tests.unit.paths.tree import Tree


def test_a_root_that_is_missing_or_no_directory_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = open_descriptors()
    with pytest.raises(PathRefusedError, match="not a directory"):
        Tree([str(tmp_path / "file")], jailed=False)
    with pytest.raises(FileNotFoundError):
        Tree([str(tmp_path / "missing")], jailed=False)
    with pytest.raises(NotADirectoryError):
        Tree([str(tmp_path / "file" / "below")], jailed=False)
    assert open_descriptors() == before


def test_the_root_directory_of_the_host_can_be_a_root(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    (tmp_path / "up").symlink_to(tmp_path / "link")
    for jailed in (False, True):
        with Tree(["/"], jailed=jailed) as tree:
            assert inode_of(tree.open_directory(f"{tmp_path}/up")) == inode(Path("/"))
            assert inode_of(tree.open_log(f"{tmp_path}/up/{tmp_path}/log", os.getegid())[0]) == inode(tmp_path / "log")
            assert tree.host_path(str(tmp_path)) == str(tmp_path)


def test_a_tree_holds_nothing_open_after_use(place: Place) -> None:
    before = open_descriptors()
    place.open_directory("mission")
    place.open_log("mission/log")
    with place.tree() as tree:
        tree.host_path(place.named("mission"))
        tree.host_path(place.named("missing"))
    assert open_descriptors() == before


def test_a_tree_stays_the_same_directory_when_its_name_is_given_to_another(place: Place) -> None:
    expected = inode(place.root / "mission")
    with place.tree() as tree:
        place.root.rename(place.root.with_name("moved"))
        place.root.symlink_to(place.outside)
        assert inode_of(tree.open_directory(place.named("mission"))) == expected


@pytest.fixture
def linked(privileged: None, tmp_path: Path) -> Path:  # noqa: ARG001 - only for what it decides
    """A directory that root alone can write, with links in it to a tree."""
    (tmp_path / "real" / "tree" / "mission").mkdir(parents=True)
    links = tmp_path / "links"
    links.mkdir(mode=0o755)
    (links / "absolute").symlink_to(tmp_path / "real" / "tree")
    (links / "relative").symlink_to("../real/./tree")
    (links / "two").symlink_to("absolute")
    (links / "above").symlink_to("../real")
    (links / "here").symlink_to(".")
    (links / "loop").symlink_to("loop")
    return links


@pytest.mark.parametrize("name", ["absolute", "relative", "two", "above/tree", "here/absolute", "absolute/../tree"])
def test_a_root_may_be_reached_through_links_that_root_alone_can_change(linked: Path, name: str) -> None:
    before = open_descriptors()
    with Tree([str(linked / name)], jailed=False) as tree:
        path = str(linked / name / "mission")
        assert inode_of(tree.open_directory(path)) == inode(linked.parent / "real" / "tree" / "mission")
    assert open_descriptors() == before


def test_a_root_may_be_a_link_to_its_own_directory(linked: Path) -> None:
    with Tree([str(linked / "here")], jailed=False) as tree:
        assert inode_of(tree.open_directory(str(linked / "here"))) == inode(linked)


def test_absolute_links_are_followed_in_a_tree_whose_root_is_reached_through_a_link(linked: Path) -> None:
    root = linked / "absolute"
    (root / "link").symlink_to(root / "mission")
    (root / "outside").symlink_to(linked)
    with Tree([str(root)], jailed=False) as tree:
        assert inode_of(tree.open_directory(str(root / "link"))) == inode(root / "mission")
        with pytest.raises(PathRefusedError):
            tree.open_directory(str(root / "outside"))


def test_paths_of_a_jail_whose_root_is_reached_through_a_link_keep_the_roots_name(linked: Path) -> None:
    (linked / "absolute" / "link").symlink_to("mission")
    with Tree([str(linked / "absolute")], jailed=True) as tree:
        assert tree.host_path("/mission") == str(linked / "absolute" / "mission")
        assert tree.host_path("/link") == str(linked.parent / "real" / "tree" / "mission")


@pytest.mark.parametrize("name", ["absolute", "relative", "two", "above/tree"])
@pytest.mark.parametrize(
    ("owner", "mode"), [(NOBODY, 0o755), (0, 0o775), (0, 0o757), (0, 0o777), (0, 0o1777), (NOBODY, 0o1755)]
)
def test_a_root_is_not_reached_through_a_link_that_others_can_change(
    linked: Path, name: str, owner: int, mode: int
) -> None:
    os.chown(linked, owner, -1)
    linked.chmod(mode)
    before = open_descriptors()
    with pytest.raises(PathRefusedError, match="others than root"):
        Tree([str(linked / name)], jailed=False)
    assert open_descriptors() == before


def test_a_root_that_is_a_link_to_itself_is_refused(linked: Path) -> None:
    with pytest.raises(PathRefusedError):
        Tree([str(linked / "loop")], jailed=False)


def test_a_root_is_not_reached_through_a_link_in_a_users_own_directory(anyones: Path) -> None:
    with as_nobody():
        (anyones / "tree").mkdir()
        (anyones / "link").symlink_to("tree")
        with pytest.raises(PathRefusedError, match="others than root"):
            Tree([str(anyones / "link")], jailed=False)
