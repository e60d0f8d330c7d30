"""`runner doctor`: look, judge, show."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

import click
from attrs import asdict, evolve

from basestation_runner.doctor.checks import judge
from basestation_runner.doctor.gather import gather
from basestation_runner.doctor.points import LEVELS, Level, Point
from basestation_runner.errors import EXIT_FAILED, EXIT_OK, printable
from basestation_runner.operate import output

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from basestation_runner.doctor.facts import Paths

_COLOURS: Final[dict[Level, str]] = {"fault": "red", "warning": "yellow", "skipped": "cyan", "ok": "green"}
_WORDS: Final[dict[Level, tuple[str, str]]] = {
    "fault": ("fault", "faults"),
    "warning": ("warning", "warnings"),
    "skipped": ("skipped", "skipped"),
    "ok": ("ok", "ok"),
}
_MOST_NAMED: Final = 8

Said = tuple[str, Point]


def run(paths: Paths, *, probe: Sequence[str] | None, as_json: bool) -> int:
    """Check this host, with `probe` also these sites or, if it is empty, all by a probe; return the exit status."""
    said = list(judge(gather(paths, probe=probe)))
    is_ok = all(point.level != "fault" for _, point in said)
    if as_json:
        points = [{"subject": subject, **asdict(point)} for subject, point in said]
        output.show_json({"ok": is_ok, "counts": {level: _count(said, level) for level in LEVELS}, "points": points})
    else:
        click.echo("\n".join(lines(said, colour=sys.stdout.isatty())))
    return EXIT_OK if is_ok else EXIT_FAILED


def lines(said: Sequence[Said], *, colour: bool = False) -> Iterator[str]:
    """Yield what a person reads: the most urgent first, each with what mends it, and at the end how many there are.

    What is the same at several sites is one line.
    """
    sites: dict[Said, list[str]] = {}
    for subject, point in said:
        sites.setdefault((subject, evolve(point, site="")), []).append(point.site)
    width = max((len(subject) for subject, _ in sites), default=0)
    first = max(map(len, LEVELS))
    for level in LEVELS:
        for (subject, point), names in sites.items():
            if point.level != level:
                continue
            shown = click.style(level.ljust(first), fg=_COLOURS[level]) if colour else level.ljust(first)
            hint = f" ({point.hint})" if point.hint else ""
            yield f"{shown}  {subject.ljust(width)}  {printable(_of(names) + point.what + hint)}"
            if point.command:
                yield f"{' ' * first}  {' ' * width}  $ {printable(point.command)}"
    counts = [(level, _count(sites, level)) for level in LEVELS]
    told = ", ".join(f"{number} {_WORDS[level][number != 1]}" for level, number in counts if number)
    yield f"{len(sites)} {'point' if len(sites) == 1 else 'points'}: {told}."


def _of(sites: Sequence[str]) -> str:
    """Return the beginning of what is said of these sites, the empty one for the host."""
    named = list(filter(None, sites))
    if not named:
        return ""
    more = len(named) - _MOST_NAMED
    listed = ", ".join(named[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{'site' if len(named) == 1 else 'sites'} {listed}: "


def _count(said: Collection[Said], level: Level) -> int:
    return Counter(point.level for _, point in said)[level]
