"""The system calls that Python lacks, on real files."""

from __future__ import annotations

import errno
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from basestation_runner import syscalls

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def content(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


def error_number(*arguments: object, **options: int) -> int | None:
    with pytest.raises(OSError, match=r"Errno") as error:
        syscalls.openat2(*arguments, **options)  # type: ignore[arg-type]
    assert error.value.filename == arguments[1]
    assert error.value.strerror == os.strerror(error.value.errno or 0)
    return error.value.errno


def test_a_file_below_a_directory_is_opened_and_not_inherited(directory: int, tmp_path: Path) -> None:
    (tmp_path / "näme").write_bytes(b"here")
    descriptor = syscalls.openat2(directory, "näme", os.O_RDONLY, resolve=syscalls.RESOLVE_BENEATH)
    assert not os.get_inheritable(descriptor)
    assert content(descriptor) == b"here"


def test_each_limit_of_resolution_has_its_own_error(directory: int, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    beneath, links, magic = syscalls.RESOLVE_BENEATH, syscalls.RESOLVE_NO_SYMLINKS, syscalls.RESOLVE_NO_MAGICLINKS
    assert error_number(directory, "missing", os.O_RDONLY, resolve=beneath) == errno.ENOENT
    assert error_number(directory, "..", os.O_PATH, resolve=beneath) == errno.EXDEV
    assert error_number(directory, "link", os.O_PATH, resolve=beneath) == errno.EXDEV
    assert error_number(directory, "link", os.O_RDONLY, resolve=links) == errno.ELOOP
    assert error_number(directory, f"/proc/self/fd/{directory}", os.O_RDONLY, resolve=magic) == errno.ELOOP


def opened_in_root(directory: int, path: str) -> int:
    for _ in range(1000):  # a rename anywhere on the host may get in the way of "..", and then it is to be tried again
        with suppress(BlockingIOError):
            return syscalls.openat2(directory, path, os.O_RDONLY, resolve=syscalls.RESOLVE_IN_ROOT)
    raise AssertionError(path)


def test_a_directory_can_stand_for_the_root(directory: int, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/../file")
    (tmp_path / "file").write_bytes(b"inside")
    for path in ("/file", "../../file", "link"):
        assert content(opened_in_root(directory, path)) == b"inside"


def test_a_rename_replaces_nothing(directory: int, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "there").write_text("there")
    with pytest.raises(FileExistsError):
        syscalls.rename_noreplace(directory, "old", directory, "there")
    assert ((tmp_path / "old").read_text(), (tmp_path / "there").read_text()) == ("old", "there")


def test_a_rename_moves_to_a_free_name_in_any_directory(directory: int, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "below").mkdir()
    below = os.open(tmp_path / "below", os.O_PATH)
    syscalls.rename_noreplace(directory, "old", below, "new")
    os.close(below)
    assert (tmp_path / "below" / "new").read_text() == "old"
    assert not (tmp_path / "old").exists()


def test_a_rename_of_what_is_missing_is_an_error(directory: int) -> None:
    with pytest.raises(FileNotFoundError):
        syscalls.rename_noreplace(directory, "missing", directory, "new")


def test_a_dangling_link_is_in_the_way_of_a_rename(directory: int, tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        syscalls.rename_noreplace(directory, "old", directory, "link")


def test_the_birth_time_is_set_once_and_differs_between_files(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        born = syscalls.birth_time_ns(file.fileno())
        os.utime(file.fileno(), ns=(1, 1))
        (tmp_path / "file").chmod(0o600)
        (tmp_path / "file").rename(tmp_path / "moved")
        assert syscalls.birth_time_ns(file.fileno()) == born
        # `stat` is another reader of the same fact; 0 is its word for a filesystem that does not know it.
        seconds = subprocess.run(["stat", "-c", "%W", tmp_path / "moved"], stdout=subprocess.PIPE, check=True)
        assert (born or 0) // 1_000_000_000 == int(seconds.stdout)
        assert (born or 0) <= (tmp_path / "moved").stat().st_ctime_ns


def test_a_filesystem_without_birth_times_says_none() -> None:
    with Path("/proc/self/stat").open("rb") as file:
        assert syscalls.birth_time_ns(file.fileno()) is None


def test_a_descriptor_that_is_not_open_has_no_birth_time() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        syscalls.birth_time_ns(-1)
