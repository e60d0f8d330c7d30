"""The results as a table for a terminal. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from bench.book import Book
from bench.figures import Figure, aim_of

_LONG: Final = 100  # at three digits nothing follows the point


def table(books: Sequence[Book], changes: Mapping[str, str], *, with_aims: bool) -> str:
    """Return all figures, one line each. Aims are for whole runs, not for quick ones."""
    return "\n".join(_columns(rows(books, changes, with_aims=with_aims)))


def rows(books: Sequence[Book], changes: Mapping[str, str], *, with_aims: bool = True) -> list[list[str]]:
    """Return a heading and one row a figure: each program's value, the aim, whether ours reaches it, its change."""
    ours = books[0]
    known = {figure.key: figure for book in books for figure in book.figures.values()}
    found = [["", *(book.name for book in books), "aim", "", "since last"]]
    for key in sorted(known, key=lambda key: key.partition(".")[0]):
        aim, own = aim_of(key) if with_aims else None, ours.figures.get(key)
        verdict = "" if aim is None or own is None else ("reached" if aim.reached(own.value) else "missed")
        values = [_shown(book.figures.get(key)) for book in books]
        letter = key.partition(".")[0]
        found.append([f"{letter}  {known[key].what}", *values, str(aim or ""), verdict, changes.get(key, "")])
    return found


def _shown(figure: Figure | None) -> str:
    """Return a figure's value, to three digits, with its unit."""
    if figure is None:
        return "-"
    value = figure.value
    digits = f"{value:.0f}" if value >= _LONG or value == int(value) else f"{value:.3g}"
    return f"{digits} {figure.unit}".rstrip()


def _columns(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines with aligned cells, the first to the left and the others to the right."""
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()
