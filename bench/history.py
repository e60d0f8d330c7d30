"""The record of earlier runs, one JSON line each, and how a run compares with the last of them.

Two runs saw two machines, or one that others used more or less: what they took is compared in floors, each in its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from basestation_runner.errors import RunnerError
from bench.book import Book
from bench.figures import Figure, Unit, relative


@frozen
class Record:
    """What an earlier run found of this project's program."""

    floor_ms: float
    values: Mapping[str, float]


def last(path: Path) -> Record | None:
    """Return the last record, None if there is none. Raises RunnerError for a file that holds something else."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return None
    if not lines:
        return None
    try:
        record = json.loads(lines[-1])
        return Record(float(record["floor_ms"]), dict(record["figures"]))
    except (ValueError, LookupError, TypeError) as error:
        where = f"{path}:{len(lines)}"
        raise RunnerError(f"not a record: {error}", where=where, hint="restore it, or remove the line") from error


def append(path: Path, facts: Mapping[str, Any], floor_ms: float, books: list[Book]) -> None:
    """Add a run: the first book's figures, and those of other programs that were measured with it."""
    ours, *others = books
    record: dict[str, Any] = {"machine": dict(facts), "floor_ms": _short(floor_ms), "figures": _values(ours)}
    if others:
        record["others"] = {book.name: _values(book) for book in others}
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def changes(figures: Mapping[str, Figure], floor_ms: float, record: Record | None) -> dict[str, str]:
    """Given a run and an earlier one, return each figure's change; of what both have."""
    if record is None:
        return {}
    return {
        key: _change(figure, floor_ms, record.values[key], record.floor_ms)
        for key, figure in figures.items()
        if key in record.values
    }


def _change(figure: Figure, floor_ms: float, earlier: float, earlier_floor_ms: float) -> str:
    then = relative(Figure(figure.key, figure.what, earlier, figure.unit), earlier_floor_ms)
    now = relative(figure, floor_ms)
    if now == then:
        return "="
    if figure.unit is Unit.COUNT or then == 0:
        return f"was {earlier:.3g}"
    return f"{(now / then - 1) * 100:+.0f} %"


def _values(book: Book) -> dict[str, float]:
    return {key: _short(figure.value) for key, figure in book.figures.items()}


def _short(value: float) -> float:
    """Return a value to four digits: more of them would say nothing."""
    return float(f"{value:.4g}")
