"""Where a request's paths lead: real directories and every kind of link, inside and outside."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basestation_runner.paths import PathRefusedError, join_jail, lies_beneath
from tests.process import as_nobody
from tests.unit.paths.places import REFUSALS, Place, inode, inode_of
from tests.unit.paths.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator


COMPONENTS = st.lists(
    st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1).filter(
        lambda name: name not in {".", ".."}
    ),
    max_size=5,
)


# The pure rules


@given(COMPONENTS, COMPONENTS)
def test_a_path_lies_beneath_another_by_components(path: list[str], ancestor: list[str]) -> None:
    expected = path[: len(ancestor)] == ancestor
    assert lies_beneath("/" + "/".join(path), "/" + "/".join(ancestor)) == expected


@given(COMPONENTS, COMPONENTS)
def test_every_path_lies_beneath_its_ancestors_and_itself(ancestor: list[str], more: list[str]) -> None:
    above = "/" + "/".join(ancestor)
    assert lies_beneath(above, above)
    assert lies_beneath("/" + "/".join(ancestor + more), above)


def test_a_common_prefix_is_not_an_ancestor() -> None:
    assert not lies_beneath("/home/sg1234", "/home/sg123")
    assert not lies_beneath("/home/sg123x/log", "/home/sg123")
    assert not lies_beneath("home/sg123", "/home")
    assert lies_beneath("/home/sg123//mission1/", "/home/sg123/")


def test_a_jails_path_is_joined_to_its_root() -> None:
    assert join_jail("/home/seaglider", "/home/sg123") == "/home/seaglider/home/sg123"
    assert join_jail("/home/seaglider/", "/home/sg123") == "/home/seaglider/home/sg123"
    assert join_jail("/", "/home/sg123") == "/home/sg123"


# What is inside


def test_a_directory_in_the_tree_is_opened(place: Place) -> None:
    assert place.open_directory("mission") == inode(place.root / "mission")


def test_the_root_itself_is_opened(place: Place) -> None:
    assert place.open_directory("") == inode(place.root)


def test_links_within_the_tree_are_followed_relative_and_absolute_ones(place: Place) -> None:
    (place.root / "relative").symlink_to("mission")
    (place.root / "absolute").symlink_to(place.named("relative"))
    (place.root / "deep").mkdir()
    (place.root / "deep" / "link").symlink_to("../absolute")
    for name in ("relative", "absolute", "deep/link", "deep/../deep/link"):
        assert place.open_directory(name) == inode(place.root / "mission")
        assert place.open_log(f"{name}/log") == inode(place.root / "mission" / "log")
        assert place.open_log(f"{name}/new") == inode(place.root / "mission" / "new")
        (place.root / "mission" / "new").unlink()


def test_a_directory_that_can_be_walked_but_not_listed_is_opened(anyones: Path) -> None:
    (anyones / "walked").mkdir(mode=0o333)
    (anyones / "walked").chmod(0o333)
    with as_nobody(), Tree([str(anyones)], jailed=False) as tree:
        assert inode_of(tree.open_directory(f"{anyones}/walked")) == inode(anyones / "walked")


def test_a_file_is_no_directory(place: Place) -> None:
    with pytest.raises(NotADirectoryError):
        place.open_directory("mission/log")


def test_an_absolute_link_is_followed_to_another_root_of_the_same_tree(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (second / "mission").mkdir(parents=True)
    first.mkdir()
    (first / "absolute").symlink_to(second / "mission")
    (first / "relative").symlink_to("../second/mission")
    with Tree([str(first), str(second)], jailed=False) as tree:
        for path in (first / "absolute", first / "relative", first / ".." / "second" / "mission", second / "mission"):
            assert inode_of(tree.open_directory(str(path))) == inode(second / "mission")


def test_a_rundir_inside_another_root_of_its_tree_leads_everywhere_in_it(tmp_path: Path) -> None:
    rundir = tmp_path / "home" / "seaglider" / "rundir"
    rundir.mkdir(parents=True)
    (rundir / "link").symlink_to("../../sg123")
    (tmp_path / "home" / "sg123").mkdir()
    with Tree([str(rundir), str(tmp_path / "home")], jailed=False) as tree:
        assert inode_of(tree.open_directory(f"{rundir}/link")) == inode(tmp_path / "home" / "sg123")


# What is outside


def test_a_relative_path_is_refused(place: Place) -> None:
    for path in ("mission", "", ".", "./mission"):
        with place.tree() as tree:
            with pytest.raises(PathRefusedError, match="absolute"):
                tree.open_directory(path)
            with pytest.raises(PathRefusedError, match="absolute"):
                tree.open_log(path, os.getegid())


@pytest.mark.parametrize("path", ["{outside}", "{root}2", "{root}/../outside", "/", "/etc", "{root}/mission/../.."])
def test_a_path_outside_an_unjailed_tree_is_refused(tmp_path: Path, path: str) -> None:
    root, outside = tmp_path / "tree", tmp_path / "outside"
    for directory in (root / "mission", tmp_path / "tree2", outside):
        directory.mkdir(parents=True)
    with Tree([str(root)], jailed=False) as tree, pytest.raises(PathRefusedError, match="outside"):
        tree.open_directory(path.format(root=root, outside=outside))


@pytest.mark.parametrize("target", ["{outside}", "../outside", "../../../../../../../../{outside}"])
def test_a_link_that_leaves_the_tree_is_never_followed(place: Place, target: str) -> None:
    (place.root / "link").symlink_to(target.format(outside=place.outside))
    with pytest.raises(FileNotFoundError if place.jailed else PathRefusedError):
        place.open_directory("link")
    for name in ("link/log", "link/new"):
        with pytest.raises(FileNotFoundError if place.jailed else PathRefusedError):
            place.open_log(name)
    assert place.is_untouched_outside()


def test_a_link_to_a_log_outside_is_refused(place: Place) -> None:
    (place.root / "log").symlink_to(place.outside / "log")
    (place.root / "new").symlink_to(place.outside / "new")
    for name in ("log", "new"):
        with pytest.raises(PathRefusedError):
            place.open_log(name)
    assert place.is_untouched_outside()


@pytest.mark.parametrize("path", ["/../../mission", "/mission/../../../mission", "/link", "/absolute"])
def test_a_jail_is_all_there_is_for_its_paths(tmp_path: Path, path: str) -> None:
    root = tmp_path / "tree"
    for directory in (root / "mission", root / "etc", tmp_path / "mission"):
        directory.mkdir(parents=True)
    (root / "link").symlink_to("../../../mission")
    (root / "absolute").symlink_to("/mission")
    with Tree([str(root)], jailed=True) as tree:
        assert inode_of(tree.open_directory(path)) == inode(root / "mission")
        assert inode_of(tree.open_directory("/etc")) == inode(root / "etc")


@pytest.mark.parametrize("first", ["second", "{named}"])
def test_links_that_lead_to_each_other_are_an_error_for_good(place: Place, first: str) -> None:
    (place.root / "first").symlink_to(first.format(named=place.named("second")))
    (place.root / "second").symlink_to(place.named("first"))
    for attempt in (place.open_directory, place.open_log):
        with pytest.raises(OSError, match="symbolic links") as error:
            attempt("first")
        assert error.value.errno == errno.ELOOP


@pytest.mark.parametrize("target", ["nowhere", "{named}", "mission/nowhere"])
def test_a_link_that_leads_nowhere_is_not_made_to_lead_somewhere(place: Place, target: str) -> None:
    (place.root / "link").symlink_to(target.format(named=place.named("nowhere")))
    with pytest.raises(FileNotFoundError):
        place.open_directory("link")
    with pytest.raises(PathRefusedError, match="nowhere"):
        place.open_log("link")
    assert sorted(os.listdir(place.root)) == ["link", "mission"]  # noqa: PTH208 - names
    assert os.listdir(place.root / "mission") == ["log"]  # noqa: PTH208 - names


@pytest.mark.parametrize("jailed", [False, True])
def test_a_link_of_the_kernel_that_ignores_paths_is_never_followed(jailed: bool) -> None:  # noqa: FBT001
    own = f"/proc/{os.getpid()}"
    prefix = "" if jailed else own
    with Tree([own], jailed=jailed) as tree:
        assert inode_of(tree.open_directory(f"{prefix}/fd")) == inode(Path(own, "fd"))
        for name in ("cwd", "root"):
            with pytest.raises(OSError, match="symbolic links"):
                tree.open_directory(f"{prefix}/{name}")


# Any tree


DIRECTORIES: Final = ("", "a", "b", "a/a", "a/b")
WALKS = st.lists(st.sampled_from(["a", "b", "x", "y", ".."]), min_size=1, max_size=5).map("/".join)
LINKS = st.dictionaries(
    st.tuples(st.sampled_from(DIRECTORIES), st.sampled_from("xy")), st.tuples(st.booleans(), WALKS), max_size=6
)
Links = dict[tuple[str, str], tuple[bool, str]]
"""Where each link is, whether it is absolute, and what it leads to: some leave the tree, some lead nowhere."""


def plant(root: Path, links: Links, *, jailed: bool) -> None:
    """Make a small tree of directories with these links in it."""
    for path in DIRECTORIES:
        (root / path).mkdir(parents=True, exist_ok=True)
    for (directory, name), (absolute, target) in links.items():
        prefix = ("/" if jailed else f"{root}/") if absolute else ""
        (root / directory / name).symlink_to(prefix + target)


def resolve_in_jail(root: Path, path: str) -> Path | None:
    """Return where a path inside the jail `root` leads, None if nowhere: one component after the other."""
    steps, here = path.split("/"), root
    for _ in range(200):
        if not steps:
            return here if here.is_dir() else None
        step = steps.pop(0)
        if step == "..":
            here = root if here == root else here.parent
        elif step and (here / step).is_symlink():
            target = os.readlink(here / step)  # noqa: PTH115 - as it is written
            steps = [*target.split("/"), *steps]
            here = root if target.startswith("/") else here
        elif (here / step).is_dir():
            here /= step
        else:
            return None
    return None


def every_name_in(root: Path) -> Iterator[str]:
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            yield str(PurePosixPath(directory, name).relative_to(root))


@settings(max_examples=60)
@given(LINKS, st.lists(WALKS, max_size=3))
def test_a_jailed_path_leads_where_it_leads_for_whoever_has_the_jail_as_root(links: Links, walks: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory).resolve() / "jail"
        plant(root, links, jailed=True)
        with Tree([str(root)], jailed=True) as tree:
            for path in [*every_name_in(root), *walks]:
                expected = resolve_in_jail(root, path)
                if expected is None:
                    with pytest.raises(OSError, match=r"."):
                        tree.open_directory(f"/{path}")
                else:
                    assert inode_of(tree.open_directory(f"/{path}")) == inode(expected)
                    assert inode(Path(tree.host_path(f"/{path}"))) == inode(expected)


@settings(max_examples=60)
@given(LINKS, st.lists(WALKS, max_size=3))
def test_an_unjailed_path_leads_where_it_leads_for_everybody_if_that_is_inside(links: Links, walks: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory).resolve() / "tree"
        plant(root, links, jailed=False)
        with Tree([str(root)], jailed=False) as tree:
            for name in [*every_name_in(root), *walks]:
                path = root / name
                if path.is_dir() and path.resolve().is_relative_to(root):
                    assert inode_of(tree.open_directory(str(path))) == inode(path)
                else:
                    with pytest.raises(REFUSALS):
                        tree.open_directory(str(path))
