"""Reading config files from disk, and the error that carries their faults."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest

from basestation_runner.config.load import ConfigErrors, Fault, load_files
from basestation_runner.errors import RunnerError, report

if TYPE_CHECKING:
    from pathlib import Path

SITES = "a: {watch_dir: /srv/a, runner_user: b, applications: [extra]}"
APPLICATIONS = "applications: [{name: extra, scripts: [Extra.py]}]"


def test_both_files_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "sites.yaml").write_text(SITES)
    (tmp_path / "applications.yaml").write_text(APPLICATIONS)
    config = load_files(tmp_path / "sites.yaml", tmp_path / "applications.yaml")
    assert config.sites["a"].applications == ("extra",)


def test_a_file_that_cannot_be_read_is_one_line_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(RunnerError) as raised:
        load_files(tmp_path / "sites.yaml", None)
    assert report(raised.value)[0] == [f"runner: {tmp_path}/sites.yaml: cannot be read: No such file or directory"]


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "sites.yaml").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigErrors, match="the file is too large"):
        load_files(tmp_path / "sites.yaml", None)


def test_the_error_is_a_line_for_the_whole_and_one_for_each_fault() -> None:
    error = ConfigErrors(
        [Fault("s.yaml", 1, 2, "a.b", "wrong", "right"), Fault("s.yaml", 3, 4, "", "bad\x1b", "")],
    )
    assert str(error).split("\n") == [
        "the configuration is not valid: 2 faults",
        "s.yaml:1:2: a.b: wrong (right)",
        "s.yaml:3:4: bad\\x1b",
    ]


def test_the_error_can_be_copied_and_pickled() -> None:
    error = ConfigErrors([Fault("s.yaml", 1, 2, "a.b", "wrong")])
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own bytes
        assert (other.faults, str(other)) == (error.faults, str(error))
