"""Where a request's paths lead: real directories, every kind of link, and trees that change while they are walked."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basestation_runner.paths import PathBusyError, PathRefusedError, Tree, join_jail, lies_beneath, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY: Final = 65534
REFUSALS: Final = (PathRefusedError, PathBusyError, OSError)

COMPONENTS = st.lists(
    st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1).filter(
        lambda name: name not in {".", ".."}
    ),
    max_size=5,
)


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


@contextmanager
def as_nobody() -> Iterator[None]:
    """Act as an account without privileges; it changes nothing for whoever has none."""
    if os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A directory that every account can reach and write in."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # pytest keeps its own private
        Path(directory).chmod(0o777)
        yield Path(directory).resolve()


def inode_of(descriptor: int) -> int:
    assert not os.get_inheritable(descriptor)
    inode = os.fstat(descriptor).st_ino
    os.close(descriptor)
    return inode


def inode(path: Path) -> int:
    return path.stat().st_ino


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count


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


# Roots


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


# The log


def test_a_new_log_is_for_its_owner_and_group_to_append_to(place: Place) -> None:
    with place.tree() as tree:
        log, readable = tree.open_log(place.named("mission/new"), os.getegid())
    facts = os.fstat(log)
    assert stat.filemode(facts.st_mode) == "-rw-rw----"
    assert facts.st_gid == os.getegid()
    assert readable
    assert os.get_blocking(log)
    assert path_of(log) == str(place.root / "mission" / "new")
    os.close(log)


def test_an_existing_log_is_appended_to_and_keeps_its_mode(place: Place) -> None:
    path = place.root / "mission" / "log"
    path.write_text("before\n")
    path.chmod(0o644)
    with place.tree() as tree:
        log, readable = tree.open_log(place.named("mission/log"), os.getegid())
    path.write_text("before, and more that somebody else has written\n")
    os.write(log, b"after\n")
    assert path.read_text() == "before, and more that somebody else has written\nafter\n"
    assert os.pread(log, 6, 0) == b"before"
    assert (readable, os.get_blocking(log)) == (True, True)
    assert path.stat().st_mode & 0o777 == 0o644
    os.close(log)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    # A short name: the address of a socket has 108 bytes.
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)
    os.chdir(here)


@pytest.mark.parametrize("make", [make_fifo, make_socket, Path.mkdir])
def test_a_log_that_is_no_regular_file_is_refused_at_once(place: Place, make: Callable[[Path], object]) -> None:
    make(place.root / "mission" / "odd")
    (place.root / "link").symlink_to(place.named("mission/odd"))
    before = open_descriptors()
    for name in ("mission/odd", "link"):
        with pytest.raises((PathRefusedError, IsADirectoryError, OSError)) as error:
            place.open_log(name)
        assert not isinstance(error.value, FileNotFoundError)
    assert open_descriptors() == before


def test_a_fifo_with_a_reader_is_no_log_either(place: Place) -> None:
    make_fifo(place.root / "fifo")
    reader = os.open(place.root / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(PathRefusedError, match="regular"):
        place.open_log("fifo")
    os.close(reader)


def test_a_fifo_that_can_only_be_written_is_not_waited_for(anyones: Path) -> None:
    make_fifo(anyones / "fifo")
    (anyones / "fifo").chmod(0o222)
    with as_nobody(), Tree([str(anyones)], jailed=False) as tree, pytest.raises(OSError, match="No such device"):
        tree.open_log(str(anyones / "fifo"), os.getegid())


@pytest.mark.usefixtures("privileged")
def test_a_device_is_no_log(place: Place) -> None:
    os.mknod(place.root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(PathRefusedError, match="regular"):
        place.open_log("null")


def test_a_log_in_a_missing_directory_is_not_made(place: Place) -> None:
    with pytest.raises((FileNotFoundError, PathRefusedError)):
        place.open_log("missing/log")
    assert not (place.root / "missing").exists()


def test_a_log_that_can_be_written_but_not_read_is_still_a_log(anyones: Path) -> None:
    path = anyones / "log"
    path.touch()
    path.chmod(0o222)
    with as_nobody(), Tree([str(anyones)], jailed=False) as tree:
        log, readable = tree.open_log(str(path), os.getegid())
        assert not readable
        os.write(log, b"line\n")
        os.close(log)
    path.chmod(0o600)
    assert path.read_text() == "line\n"


def test_a_log_that_cannot_be_written_is_an_error(anyones: Path) -> None:
    path = anyones / "log"
    path.touch()
    path.chmod(0o444)
    (anyones / "closed").mkdir(mode=0o555)
    with as_nobody(), Tree([str(anyones)], jailed=False) as tree:
        for refused in (path, anyones / "closed" / "log"):
            with pytest.raises(PermissionError):
                tree.open_log(str(refused), os.getegid())


@pytest.mark.usefixtures("privileged")
def test_a_log_made_in_a_set_group_id_directory_gets_the_sites_group(place: Place) -> None:
    os.chown(place.root / "mission", 0, 4321)
    (place.root / "mission").chmod(0o2775)
    (place.root / "mission" / "mine").touch()
    assert (place.root / "mission" / "mine").stat().st_gid == 4321
    with place.tree() as tree:
        os.close(tree.open_log(place.named("mission/new"), 1234)[0])
        os.close(tree.open_log(place.named("mission/mine"), 1234)[0])
    facts = (place.root / "mission" / "new").stat()
    assert (facts.st_gid, stat.filemode(facts.st_mode)) == (1234, "-rw-rw----")
    assert (place.root / "mission" / "mine").stat().st_gid == 4321


# The host's path


def test_an_unjailed_path_is_the_hosts(tmp_path: Path) -> None:
    with Tree([str(tmp_path)], jailed=False) as tree:
        for path in (str(tmp_path / "missing"), "/etc/passwd", "word"):
            assert tree.host_path(path) == path


@pytest.mark.parametrize(
    "path", ["/home/sg123/mission1", "/home/sg123/mission1/missing", "/home/sg123/a/b/c", "/missing/log", "/"]
)
def test_a_jailed_path_without_links_is_the_jails_root_and_the_path(jail: Tree, tmp_path: Path, path: str) -> None:
    assert jail.host_path(path) == f"{tmp_path}/jail{path}"


@pytest.mark.parametrize(
    ("target", "path", "resolved"),
    [
        ("/home/sg123", "/link", "/home/sg123"),
        ("/home/sg123", "/link/mission1", "/home/sg123/mission1"),
        ("/home/sg123", "/link/new/log", "/home/sg123/new/log"),
        ("home/sg123/mission1", "/link/log", "/home/sg123/mission1/log"),
        ("../../../home", "/link/sg123/new", "/home/sg123/new"),
        ("/", "/link/home/new", "/home/new"),
    ],
)
def test_a_jailed_path_through_a_link_is_where_it_leads_in_the_jail(
    jail: Tree, tmp_path: Path, target: str, path: str, resolved: str
) -> None:
    (tmp_path / "jail" / "link").symlink_to(target)
    assert jail.host_path(path) == f"{tmp_path}/jail{resolved}"


@pytest.mark.parametrize("path", ["/../../../etc", "/home/../../../../etc/passwd", "/home/missing/../../../../etc"])
def test_a_jailed_path_with_steps_upwards_stays_in_the_jail(jail: Tree, tmp_path: Path, path: str) -> None:
    (tmp_path / "jail" / "etc").mkdir()
    assert jail.host_path(path).startswith(f"{tmp_path}/jail/")


def test_a_jailed_path_below_a_directory_that_is_closed_to_the_job_is_the_jails_root_and_the_path(
    anyones: Path,
) -> None:
    (anyones / "closed" / "below").mkdir(parents=True)
    (anyones / "closed").chmod(0)
    with as_nobody(), Tree([str(anyones)], jailed=True) as tree:
        assert tree.host_path("/closed/below/log") == f"{anyones}/closed/below/log"
    (anyones / "closed").chmod(0o700)


def test_a_jailed_path_of_which_nothing_can_be_opened_is_the_jails_root_and_the_path(
    jail: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object, **__: object) -> int:
        raise PermissionError

    monkeypatch.setattr("basestation_runner.syscalls.openat2", closed)
    assert jail.host_path("/home/sg123") == f"{tmp_path}/jail/home/sg123"


def test_a_relative_word_is_no_path_of_a_jail(jail: Tree) -> None:
    with pytest.raises(PathRefusedError):
        jail.host_path("home/sg123")


# Trees that change meanwhile


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, moved = tmp_path / "directory", tmp_path / "moved"
    directory.mkdir()
    (tmp_path / "link").symlink_to(directory)
    real = os.path.realpath

    def realpath(path: str, *, strict: bool) -> str:
        found = real(path, strict=strict)
        if not moved.exists():
            directory.rename(moved)
            directory.symlink_to("moved")
        return found

    with Tree([str(tmp_path)], jailed=False) as tree:
        monkeypatch.setattr(os.path, "realpath", realpath)
        assert inode_of(tree.open_directory(str(tmp_path / "link"))) == inode(moved)


def test_a_path_that_changes_at_every_attempt_is_busy_not_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(*_: object, **__: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "again")

    with place.tree() as tree:
        monkeypatch.setattr("basestation_runner.syscalls.openat2", changing)
        with pytest.raises(PathBusyError):
            tree.open_directory(place.named("mission"))
        with pytest.raises(PathBusyError):
            tree.open_log(place.named("mission/log"), os.getegid())
        if place.jailed:
            with pytest.raises(PathBusyError):
                tree.host_path(place.named("mission"))
