"""What the operators' commands print: plain elsewhere, tables on a terminal, and nothing that could act upon one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.operate import output
from basestation_runner.operate.output import Table, age

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = "[red]x[/red] \x1b]0;title\x07 \x1b[2J \r over"

ON_A_TERMINAL = """
import sys
from basestation_runner.operate.output import Table, show
jobs = Table("Jobs", ("JOB", "WHY"), [("1", sys.argv[1])], "none")
show(["a paragraph", jobs, Table("Sites", ("A",), [], "No site.")])
"""


def shown(capsys: pytest.CaptureFixture[str], *blocks: output.Block) -> str:
    output.show(blocks)
    return capsys.readouterr().out


def on_a_terminal(*words: str) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, *words],
        stdout=theirs,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        text = b"".join(pieces(ours)).decode()
        assert process.wait() == 0
    os.close(ours)
    return text


def pieces(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(terminal, 1 << 16)
        except OSError:  # how a terminal says that nobody writes any more
            return


def test_columns_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Jobs", ("JOB", "STATE", "WHY"), [("1", "queued", "held"), ("22", "ok", "")], "none")
    assert shown(capsys, "first", table) == ("first\n\nJobs:\nJOB  STATE   WHY\n1    queued  held\n22   ok\n")


def test_a_table_without_rows_is_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, Table("Jobs", ("JOB",), [], "No job is running.")) == "No job is running.\n"


@given(st.text(), st.text())
def test_nothing_that_is_shown_can_act_upon_a_terminal(cell: str, paragraph: str) -> None:
    plain = output._plain(Table("Jobs", ("JOB",), [(cell,)], "")) + output._plain(paragraph)
    assert all(character.isprintable() or character == "\n" for character in plain)


def test_a_terminal_gets_a_table_in_which_what_others_wrote_is_text() -> None:
    text = on_a_terminal(HOSTILE)
    assert "a paragraph" in text
    assert "No site." in text
    assert "[red]x[/red] \\x1b]0;title\\x07 \\x1b[2J \\r over" in text
    assert "\x07" not in text
    assert "\x1b[2J" not in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3660, "1 h 1 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_an_age_is_short(seconds: float, words: str) -> None:
    assert age(seconds) == words
