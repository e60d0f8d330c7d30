"""What is opened, or made, as a job's log."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from basestation_runner.paths import PathRefusedError, path_of
from tests.process import NOBODY, as_nobody, open_descriptors
from tests.unit.paths.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.paths.places import Place


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


def test_a_new_log_is_appended_to_after_whatever_others_write(place: Place) -> None:
    path = place.root / "mission" / "new"
    with place.tree() as tree:
        log, _ = tree.open_log(place.named("mission/new"), os.getegid())
    os.write(log, b"first\n")
    with path.open("a") as other:
        other.write("by another\n")
    os.write(log, b"last\n")
    assert os.pread(log, 100, 0) == b"first\nby another\nlast\n"
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
def test_a_log_made_in_a_set_group_id_directory_gets_the_sites_group(anyones: Path) -> None:
    os.chown(anyones, 0, 4321)
    anyones.chmod(0o2777)
    with as_nobody(), Tree([str(anyones)], jailed=False) as tree:
        (anyones / "old").touch()
        for name in ("new", "old"):
            os.close(tree.open_log(f"{anyones}/{name}", NOBODY)[0])
    facts = (anyones / "new").stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o7707) == (NOBODY, NOBODY, 0o600)
    assert (anyones / "old").stat().st_gid == 4321
