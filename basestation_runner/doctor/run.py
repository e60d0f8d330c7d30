"""`runner doctor`: look, judge, show."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

import click
from attrs import asdict

from basestation_runner.doctor.checks import judge
from basestation_runner.doctor.gather import gather
from basestation_runner.doctor.points import LEVELS, Level, Point
from basestation_runner.errors import EXIT_FAILED, EXIT_OK, printable
from basestation_runner.operate import output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from basestation_runner.doctor.facts import Paths

_COLOURS: Final[dict[Level, str]] = {"fault": "red", "warning": "yellow", "skipped": "cyan", "ok": "green"}
_WORDS: Final[dict[Level, tuple[str, str]]] = {
    "fault": ("fault", "faults"),
    "warning": ("warning", "warnings"),
    "skipped": ("skipped", "skipped"),
    "ok": ("ok", "ok"),
}

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
    """Yield what a person reads: the most urgent first, each with what mends it, and at the end how many there are."""
    width = max((len(subject) for subject, _ in said), default=0)
    first = max(map(len, LEVELS))
    for level in LEVELS:
        for subject, point in said:
            if point.level != level:
                continue
            shown = click.style(level.ljust(first), fg=_COLOURS[level]) if colour else level.ljust(first)
            of_site = f"site {point.site}: " if point.site else ""
            hint = f" ({point.hint})" if point.hint else ""
            yield f"{shown}  {subject.ljust(width)}  {printable(of_site + point.what + hint)}"
            if point.command:
                yield f"{' ' * first}  {' ' * width}  $ {printable(point.command)}"
    counts = [(level, _count(said, level)) for level in LEVELS]
    told = ", ".join(f"{number} {_WORDS[level][number != 1]}" for level, number in counts if number)
    yield f"{len(said)} points: {told}."


def _count(said: Sequence[Said], level: Level) -> int:
    return Counter(point.level for _, point in said)[level]
