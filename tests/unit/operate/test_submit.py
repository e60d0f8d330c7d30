"""Where a request is written: into the directory that the watcher watches, whole, or nowhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.operate import submit

if TYPE_CHECKING:
    from pathlib import Path


def told(rundir: Path, **changes: object) -> dict[str, Any]:
    """Return what the watcher says of a site with this rundir."""
    status = rundir.stat()
    facts = {"site": "alpha", "rundir": str(rundir), "device": status.st_dev, "inode": status.st_ino, "reason": None}
    return {**facts, **changes}


def test_a_request_appears_whole_and_for_the_sites_group(tmp_path: Path) -> None:
    with submit._rundir(told(tmp_path)) as rundir:
        name = submit._drop(rundir, b"content\n")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"content\n"
    status = (tmp_path / name).stat()
    assert (status.st_mode & 0o777, status.st_gid) == (0o660, tmp_path.stat().st_gid)


def test_a_path_that_leads_to_another_directory_than_the_watched_one_is_not_written_to(tmp_path: Path) -> None:
    watched, other = tmp_path / "watched", tmp_path / "other"
    watched.mkdir()
    other.mkdir()
    facts = told(watched)
    watched.rename(tmp_path / "moved")
    watched.symlink_to(other)
    with pytest.raises(TemporaryError, match="it is not the directory that is watched"), submit._rundir(facts):
        pass
    assert not list(other.iterdir())


def test_nothing_is_written_for_a_pending_site(tmp_path: Path) -> None:
    facts = told(tmp_path, inode=None, device=None, reason="it hangs")
    with pytest.raises(TemporaryError, match="site alpha is pending: it hangs"), submit._rundir(facts):
        pass


def test_a_request_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    with (
        submit._rundir(told(tmp_path)) as rundir,
        pytest.raises(RunnerError, match="the request cannot be written: No space left on device"),
    ):
        submit._drop(rundir, b"content\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("site", "path", "seen"),
    [
        ({"jailed": True, "roots": ["/jail"]}, "/jail/home/sg1/m", "/home/sg1/m"),
        ({"jailed": True, "roots": ["/jail"]}, "/home/sg1/../sg1/m", "/home/sg1/m"),
        ({"jailed": True, "roots": ["/jail"]}, "/jailed/m", "/jailed/m"),
        ({"jailed": False, "roots": ["/srv/a", "/home"]}, "/home/sg1/m", "/home/sg1/m"),
    ],
)
def test_a_path_is_written_as_the_sites_requests_have_it(
    site: dict[str, Any], path: str, seen: str, tmp_path: Path
) -> None:
    assert submit._seen(site, tmp_path / path) == seen
