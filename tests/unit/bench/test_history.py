"""How a run compares with the last record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from basestation_runner.errors import RunnerError
from bench import history
from bench.book import Book
from bench.figures import Figure, Unit, aim_of, relative
from bench.history import Record

if TYPE_CHECKING:
    from pathlib import Path

    from hypothesis.strategies import SearchStrategy
from hypothesis import given
from hypothesis import strategies as st

POSITIVE: SearchStrategy[float] = st.floats(min_value=1e-3, max_value=1e6)


def book(*figures: Figure) -> Book:
    return Book("runner", lambda _: None, {figure.key: figure for figure in figures})


def changes(figure: Figure, floor_ms: float, record: Record) -> str | None:
    return history.changes({figure.key: figure}, floor_ms, record).get(figure.key)


def test_a_machine_that_is_slower_as_a_whole_changes_neither_times_nor_rates() -> None:
    record = Record(0.5, {"a.p50": 5.0, "b.rate": 200.0, "e.ready": 0.5})
    figures = [
        Figure("a.p50", "", 10.0, Unit.MS),
        Figure("b.rate", "", 100.0, Unit.RATE),
        Figure("e.ready", "", 1.0, Unit.SECONDS),
    ]
    assert [changes(figure, 1.0, record) for figure in figures] == ["=", "=", "="]


@given(POSITIVE, POSITIVE, st.sampled_from([Unit.MS, Unit.SECONDS]))
def test_a_time_and_the_rate_that_it_makes_move_against_each_other(value: float, floor: float, unit: Unit) -> None:
    time = relative(Figure("", "", value, unit), floor)
    rate = relative(Figure("", "", (1000 if unit is Unit.MS else 1) / value, Unit.RATE), floor)
    assert time * rate == pytest.approx(1)


def test_what_grew_or_shrank_is_told_in_per_cent() -> None:
    record = Record(1.0, {"a.p50": 5.0})
    assert changes(Figure("a.p50", "", 6.0, Unit.MS), 1.0, record) == "+20 %"
    assert changes(Figure("a.p50", "", 5.0, Unit.MS), 2.0, record) == "-50 %"


def test_memory_is_compared_whatever_the_floor() -> None:
    record = Record(1.0, {"e.1.helper.rss": 30.0})
    assert changes(Figure("e.1.helper.rss", "", 33.0, Unit.MB), 2.0, record) == "+10 %"


def test_counts_and_what_was_nothing_are_told_as_what_they_were() -> None:
    record = Record(1.0, {"d.lost": 3.0, "e.1.helper.wakeups": 0.0})
    assert changes(Figure("d.lost", "", 0, Unit.COUNT), 1.0, record) == "was 3"
    assert changes(Figure("e.1.helper.wakeups", "", 2.0, Unit.PER_MINUTE), 1.0, record) == "was 0"


def test_a_figure_that_the_record_lacks_has_no_change() -> None:
    assert changes(Figure("a.p50", "", 6.0, Unit.MS), 1.0, Record(1.0, {})) is None


def test_a_run_is_compared_with_the_last_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert history.last(path) is None
    for value in (5.0, 4.0):
        history.append(path, {"cores": 2}, 0.7, [book(Figure("a.p50", "drop to exec", value, Unit.MS))])
    assert history.last(path) == Record(0.7, {"a.p50": 4.0})
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"floor_ms": "fast", "figures": {}}', '{"floor_ms": 1}'])
def test_a_file_that_holds_something_else_is_a_fault_with_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(RunnerError, match="not a record") as caught:
        history.last(path)
    assert caught.value.where == f"{path}:1"


def test_an_aim_is_found_by_key_or_pattern_and_says_whether_it_is_reached() -> None:
    rate, wake_ups = aim_of("b.rate"), aim_of("e.200.watcher.wakeups")
    assert rate is not None
    assert wake_ups is not None
    assert (rate.reached(200), rate.reached(179), wake_ups.reached(0), wake_ups.reached(1)) == (
        True,
        False,
        True,
        False,
    )
    assert aim_of("e.20.watcher.ready") is None
