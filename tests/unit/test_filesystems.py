"""Which filesystem something is on, and whether inotify tells of everything there."""

from __future__ import annotations

import os

import pytest

from basestation_runner import filesystems


def test_a_filesystem_is_known_by_its_types_name() -> None:
    descriptor = os.open("/proc/self", os.O_PATH)
    assert filesystems.kind(descriptor) == "proc"
    os.close(descriptor)


def test_what_is_on_no_mounted_filesystem_has_no_kind() -> None:
    reader, writer = os.pipe()
    assert filesystems.kind(reader) == ""
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "fuse", "fuse.sshfs", "cifs", "9p"])
def test_a_filesystem_that_others_can_change_may_be_silent(kind: str) -> None:
    assert filesystems.may_be_silent(kind)


@pytest.mark.parametrize("kind", ["", "ext4", "xfs", "tmpfs", "proc"])
def test_a_filesystem_of_this_kernel_alone_is_not_silent(kind: str) -> None:
    assert not filesystems.may_be_silent(kind)
