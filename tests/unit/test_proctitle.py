"""How processes name themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = """
import sys
from basestation_runner.proctitle import set_title
set_title(sys.argv[1])
print(open("/proc/self/cmdline").read().rstrip("\\0"))
print(open("/proc/self/comm").read().rstrip("\\n"))
print(sys.argv[1], *sys.orig_argv[-2:])
"""


def shown(title: str, *more: str, environment: dict[str, str] | None = None) -> list[str]:
    command = [sys.executable, "-c", SHOW, title, *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout.splitlines()


def test_a_title_replaces_the_command_line_and_the_name() -> None:
    assert shown("runner-watch")[:2] == ["runner-watch", "runner-watch"]


def test_a_name_is_cut_where_the_kernel_cuts_it() -> None:
    assert shown("runner-keeper:seaglider")[:2] == ["runner-keeper:seaglider", "runner-keeper:s"]


def test_a_title_longer_than_the_command_line_is_cut() -> None:
    code = SHOW.replace("sys.argv[1]", "'t' * 100_000")
    done = subprocess.run([sys.executable, "-c", code, "x"], check=True, capture_output=True, text=True)
    assert 0 < len(done.stdout.splitlines()[0]) < 10_000


@pytest.mark.parametrize("count", [1, 100])
def test_a_title_changes_nothing_but_what_others_see(count: int) -> None:
    arguments = [f"argument-{number}" for number in range(count)]
    _, _, words = shown("a", *arguments, "last", environment={"PWD": "/", "LANG": "C.UTF-8"})
    assert words == f"a {arguments[-1]} last"


def test_two_titles_in_a_row_leave_nothing_of_the_first() -> None:
    code = SHOW.replace("set_title(sys.argv[1])", "set_title('a much longer title'); set_title(sys.argv[1])")
    done = subprocess.run([sys.executable, "-c", code, "short", "x"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[:2] == ["short", "short"]
