"""The results as plain text for a terminal. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from bench.book import Book
from bench.figures import AIMS, Figure


def table(books: Sequence[Book], changes: dict[str, str]) -> str:
    """Return all figures, one line each: the programs' values side by side, aims, changes since the last record."""
    ours, *others = books
    keys = {figure.key: figure for book in books for figure in book.figures.values()}
    head = ["", ours.name, *(book.name for book in others), "aim", "", "since last"]
    rows = [head]
    for key in sorted(keys, key=lambda key: key.split(".")[0]):
        aim, own = AIMS.get(key), ours.figures.get(key)
        verdict = "" if aim is None or own is None else ("reached" if aim.reached(own.value) else "MISSED")
        values = [shown(book.figures.get(key)) for book in books]
        rows.append([f"{key.split('.')[0]}  {keys[key].what}", *values, str(aim or ""), verdict, changes.get(key, "")])
    return "\n".join(columns(rows))


def shown(figure: Figure | None) -> str:
    """Return a figure's value with its unit, to three digits."""
    if figure is None:
        return "-"
    value = figure.value
    digits = f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits
    return f"{digits} {figure.unit}".rstrip()


def columns(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines with aligned cells, the first to the left and the others to the right."""
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()
