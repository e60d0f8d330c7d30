"""Tables, the page, the plots."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from basestation_runner.errors import RunnerError
from bench import page, plots
from bench.book import Book, ratios
from bench.figures import Figure, Unit, aim_of
from bench.plots import Bars
from bench.table import table

FACTS = dict.fromkeys(("time", "program", "cpu", "cores", "kernel", "filesystem", "python", "load"), "x")
PAGE = f"# Benchmarks\n\n{page.BEGIN}\n\nold\n\n{page.END}\n\nlast words\n"


def book(name: str, *figures: Figure) -> Book:
    return Book(name, lambda _: None, {figure.key: figure for figure in figures})


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - our own text


OURS = book("runner", Figure("a.p50", "drop to exec", 4.567, Unit.MS), Figure("b.rate", "one queue", 100.0, Unit.RATE))
OTHER = book("peer", Figure("a.p50", "drop to exec", 30.0, Unit.MS))


def test_the_table_shows_programs_side_by_side_with_aims_and_changes() -> None:
    lines = table([OURS, OTHER], {"a.p50": "-3 %"}, with_aims=True).splitlines()
    assert lines[0].split() == ["runner", "peer", "aim", "since", "last"]
    assert lines[1].split() == ["a", "drop", "to", "exec", "4.57", "ms", "30", "ms", "≤", "5", "reached", "-3", "%"]
    assert lines[2].split() == ["b", "one", "queue", "100", "jobs/s", "-", "≥", "180", "missed"]


def test_a_quick_run_is_not_held_against_the_aims() -> None:
    assert "missed" not in table([OURS], {}, with_aims=False)


def test_the_page_keeps_all_but_the_last_results() -> None:
    text = page.filled(PAGE, [OURS, OTHER], FACTS, "floor: 1 ms")
    assert text.startswith(f"# Benchmarks\n\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\n\nlast words\n")
    assert "old" not in text
    assert "| a  drop to exec | 4.57 ms | 30 ms | ≤ 5 | reached |" in text
    assert page.filled(text, [OURS, OTHER], FACTS, "floor: 1 ms") == text


def test_a_page_without_markers_is_left_alone() -> None:
    with pytest.raises(RunnerError, match="markers"):
        page.filled("# Benchmarks\n", [OURS], FACTS, "floor: 1 ms")


def test_what_a_job_costs_is_told_in_floors() -> None:
    assert [(figure.key, figure.value) for figure in ratios(OURS, 2.0)] == [("h.b", 5.0)]


def test_the_plots_are_well_formed_whatever_a_program_is_called() -> None:
    samples = {"runner": [4.0, 5.0, 6.0], "<peer> & co": [30.0]}
    root = parsed(plots.latency(samples, {"aim p50": 5.0}))
    assert {"runner", "<peer> & co", "aim p50"} <= {element.text for element in root.iter()}
    assert sum(element.tag.endswith("polyline") for element in root.iter()) == 2


def test_a_bar_is_as_high_as_its_value() -> None:
    groups = [
        Bars("one queue", {"runner": 200.0, "peer": 1.0}, aim_of("b.rate")),
        Bars("many queues", {"runner": 400.0}, aim_of("c.rate")),
    ]
    root = parsed(plots.throughput(groups))
    heights = [float(bar.attrib["height"]) for bar in root.iter() if bar.tag.endswith("rect")][2:]  # after the legend
    assert heights[2] == pytest.approx(2 * heights[0], rel=0.01)
    assert heights[0] > 100 * heights[1] > 0
