"""The last results in README.md, between two markers. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from basestation_runner.errors import RunnerError
from bench.book import Book
from bench.table import rows

BEGIN: Final = "<!-- results: written by --record -->"
END: Final = "<!-- end of results -->"
_FACTS: Final = ("time", "program", "cpu", "cores", "kernel", "filesystem", "python", "load")


def filled(page: str, books: Sequence[Book], facts: Mapping[str, Any], floor: str) -> str:
    """Return the page with these results in place of the last ones. Raises RunnerError for one without the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RunnerError("the markers of the results are missing", where="bench/README.md", hint="restore them")
    return "".join([before, begin, "\n\n", "\n".join(_section(books, facts, floor)), "\n\n", end, after])


def _section(books: Sequence[Book], facts: Mapping[str, Any], floor: str) -> Iterator[str]:
    yield "; ".join(f"{name} {facts[name]}" for name in _FACTS) + "."
    yield ""
    yield floor[0].upper() + floor[1:] + "."
    yield ""
    yield "![From drop to exec](results/latency.svg)"
    yield ""
    yield "![Throughput](results/throughput.svg)"
    yield ""
    head, *lines = rows(books, {})
    for cells in ([*head[:-1]], ["---"] * (len(head) - 1), *(line[:-1] for line in lines)):
        yield f"| {' | '.join(cells)} |"
