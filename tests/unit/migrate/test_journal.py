"""The journal of a migration: on disk at once, and read as far as it goes."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from basestation_runner.errors import RunnerError
from basestation_runner.migrate.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_written_is_known_to_the_next_one(tmp_path: Path) -> None:
    journal = Journal.of(tmp_path / "journals", "alpha")
    assert not journal.is_known
    journal.note(site="alpha", unit="x.service")
    journal.step("stop", "begun")
    journal.step("stop", "done")
    journal.step("join", "begun")
    journal.turn("going back")
    journal.step("join", "undone")
    again = Journal.of(tmp_path / "journals", "alpha")
    assert again.is_known
    assert again.facts == {"site": "alpha", "unit": "x.service"}
    assert again.state == "going back"
    assert again.is_done("stop")
    assert not again.was_begun("join")
    assert stat.S_IMODE((tmp_path / "journals").stat().st_mode) == 0o700
    assert stat.S_IMODE(again.path.stat().st_mode) == 0o600


def test_a_line_that_was_cut_off_counts_as_not_written_and_spoils_none_after_it(tmp_path: Path) -> None:
    journal = Journal.of(tmp_path / "journals", "alpha")
    journal.note(site="alpha")
    journal.step("stop", "begun")
    content = journal.path.read_bytes()
    journal.path.write_bytes(content[:-5])
    again = Journal.of(tmp_path / "journals", "alpha")
    assert not again.was_begun("stop")
    again.step("disable", "begun")
    assert Journal.of(tmp_path / "journals", "alpha").was_begun("disable")


def test_a_journal_of_what_was_undone_is_kept_out_of_the_way(tmp_path: Path) -> None:
    journal = Journal.of(tmp_path / "journals", "alpha")
    journal.note(site="alpha")
    assert Journal.names(tmp_path / "journals") == ["alpha"]
    journal.turn("undone")
    journal.close()
    assert Journal.names(tmp_path / "journals") == []
    assert not Journal.of(tmp_path / "journals", "alpha").is_known
    assert len(list((tmp_path / "journals").iterdir())) == 1


def test_a_directory_that_others_could_enter_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "journals"
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    with pytest.raises(RunnerError, match="not root's alone"):
        Journal.of(directory, "alpha").note(site="alpha")
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "3",
        '{"facts": 3}',
        '{"step": "stop"}',
        '{"step": "stop", "what": "melted"}',
        '{"state": "of a later version"}',
        '{"version": 2}',
        "{}",
    ],
)
def test_a_line_that_is_not_of_this_version_is_told_by_its_number(tmp_path: Path, line: str) -> None:
    directory = tmp_path / "journals"
    journal = Journal.of(directory, "alpha")
    journal.note(site="alpha")
    journal.turn("migrated")
    assert next(line for line in journal.path.read_text().splitlines() if line) == '{"version": 1}'
    number = len(journal.path.read_text().splitlines()) + 1
    journal.path.write_text(f"{journal.path.read_text()}{line}\n")
    with pytest.raises(RunnerError, match=f"line {number} of the journal is not understood"):
        Journal.of(directory, "alpha")


def test_a_line_is_written_whole_however_little_a_write_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    Journal.of(tmp_path / "journals", "alpha").note(site="alpha", new="x" * 100)
    assert Journal.of(tmp_path / "journals", "alpha").facts["new"] == "x" * 100
