"""What a path inside a jail is on the host."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from basestation_runner.paths import PathRefusedError
from tests.process import as_nobody
from tests.unit.paths.tree import Tree, failing

if TYPE_CHECKING:
    from pathlib import Path


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
    jail: Tree, tmp_path: Path
) -> None:
    with failing(errno.EACCES):
        assert jail.host_path("/home/sg123") == f"{tmp_path}/jail/home/sg123"


def test_a_relative_word_is_no_path_of_a_jail(jail: Tree) -> None:
    with pytest.raises(PathRefusedError):
        jail.host_path("home/sg123")
