"""A host of two sites for one scenario, and disks that can be filled."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from basestation_runner.sandbox import HELPER, WATCHER, namespace
from tests.chaos.host import Host
from tests.chaos.verdict import Harm, faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation


@pytest.fixture
def host(installation: Installation) -> Iterator[Host]:
    """Two sites of one mission each; no daemon runs yet."""
    with Host(installation) as host:
        host.add_sites(2, missions=1)
        yield host


class Disk:
    """A small filesystem of its own, mounted over a directory."""

    def __init__(self, path: Path, owner: Account) -> None:
        self._path = path
        self._ballast = path / "ballast"
        options = f"size=3m,mode=0700,uid={owner.uid},gid={owner.gid}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)

    def fill(self) -> None:
        """Leave no room at all."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def free(self) -> None:
        self._ballast.unlink()

    def forbid_writing(self, *, forbid: bool = True) -> None:
        subprocess.run(["mount", "-o", f"remount,{'ro' if forbid else 'rw'}", str(self._path)], check=True)

    def unmount(self) -> None:
        namespace.unmount(self._path)


@pytest.fixture
def watcher_disk(host: Host) -> Iterator[Disk]:
    """The disk of the watcher's state."""
    disk = Disk(host.installation.watcher_state, host.installation.accounts.user(WATCHER))
    yield disk
    disk.unmount()


@pytest.fixture
def helper_disk(host: Host) -> Iterator[Disk]:
    """The disk of the helper's state."""
    disk = Disk(host.installation.helper_state, host.installation.accounts.user(HELPER))
    yield disk
    disk.unmount()


def rest(host: Host, harm: Harm | None = None) -> None:
    """Wait until all has ended; fail unless every promise was kept."""
    assert [*host.come_to_rest(), *faults(host, harm or Harm())] == []
