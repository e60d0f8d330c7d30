"""docs/reliability.md names the tests that prove what it says: they exist, and every promise and fault has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text()
TESTS = frozenset(
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:    )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
)


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of a section's table, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 50
    assert named - TESTS == set()


def test_every_file_that_the_page_names_exists() -> None:
    for path in re.findall(r"`(tests/[\w/.]+|watch/[\w.]+)`", PAGE):
        assert (ROOT / path).exists() or (ROOT / "basestation_runner" / path).exists(), path


@pytest.mark.parametrize("heading", ["The promises", "Faults, and what you see of them"])
def test_every_promise_and_every_fault_has_a_proof(heading: str) -> None:
    rows = rows_of(heading)
    assert len(rows) > 8
    assert [row[0] for row in rows if "`" not in row[-1]] == []
