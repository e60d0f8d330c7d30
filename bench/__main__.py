"""`python -m bench`: measure, show, and keep what was measured."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from basestation_runner.errors import RunnerError
from basestation_runner.sandbox import Sandbox, program, with_accounts
from bench import commands, growth, history, idle, machine, page, plan, plots, traffic
from bench.book import Book, floor_as_json, floor_as_text, ratios
from bench.figures import aim_of
from bench.floor import Floor
from bench.session import Session
from bench.stamps import compile_job
from bench.subjects import Other, Runner, Subject
from bench.table import table

MEASUREMENTS: Final = "abcdefghi"

_HERE: Final = Path(__file__).parent
_HISTORY: Final = _HERE / "history.jsonl"
_PAGE: Final = _HERE / "README.md"
_RESULTS: Final = _HERE / "results"
_TRAFFIC: Final = frozenset("abcd")
_BARS: Final = {"b.rate": "one queue", "c.rate": "many queues", "d.rate": "burst"}
_NOBODY: Final = 65534
_OURS: Final = "runner"


def _letters(_context: click.Context, _option: click.Parameter, value: str) -> frozenset[str]:
    letters = frozenset(value.replace(",", ""))
    if not letters or letters - set(MEASUREMENTS):
        raise click.BadParameter(f"some of {','.join(MEASUREMENTS)}")
    return letters


def _adapters(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> list[Other]:
    pairs = [value.partition("=") for value in values]
    if any(not (name and path) or name == _OURS for name, _, path in pairs):
        raise click.BadParameter(f"NAME=FILE, with a name that is not {_OURS}")
    return [Other.load(name, Path(path)) for name, _, path in pairs]


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--runner",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The program to measure.  [default: this environment's]",
)
@click.option("--only", callback=_letters, default=MEASUREMENTS, help="Measurements, for instance a,b.  [default: all]")
@click.option("--quick", is_flag=True, help="Small numbers: see within a minute that it works.")
@click.option(
    "--other", "others", multiple=True, callback=_adapters, metavar="NAME=FILE", help="Another runner's adapter."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results there.")
@click.option("--svg", "svg_directory", type=click.Path(file_okay=False, path_type=Path), help="Write the plots there.")
@click.option("--record", is_flag=True, help="Keep the results: in bench/history.jsonl, README.md and results/.")
@click.option(
    "--disk",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/var/tmp"),  # noqa: S108 - a new directory of root's is made in it
    show_default=True,
    help="Where state, rundirs and logs are while this runs.",
)
def main(  # noqa: PLR0913 - as many parameters as options
    *,
    runner: Path | None,
    only: frozenset[str],
    quick: bool,
    others: Sequence[Other],
    json_file: Path | None,
    svg_directory: Path | None,
    record: bool,
    disk: Path,
) -> None:
    """Measure how fast and how small the runner is. Needs root. bench/README.md says what is measured, and how."""
    if record and (quick or only != frozenset(MEASUREMENTS)):
        raise click.UsageError("only a whole run is recorded: leave out --quick and --only")
    if os.geteuid() != 0:
        raise RunnerError("the benchmarks need root", hint="for accounts in a mount namespace of their own")
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # what ends this also ends what it started
    earlier = history.last(_HISTORY)
    books = [Book(_OURS, click.echo), *(Book(other.name, click.echo) for other in others)]
    with with_accounts(runner=runner or _ours(), disk=disk) as sandbox, contextlib.closing(_floor(sandbox)) as floor:
        command = (runner or _default()).absolute()
        facts = machine.facts(command, sandbox.root)
        click.echo("\n".join(f"{name}: {value}" for name, value in facts.items()))
        session = Session(sandbox, floor, plan.QUICK if quick else plan.FULL, only)
        fault = _measure_all(session, command, [Runner(), *others], books)
        floor_text, floor_ms, floor_json = floor_as_text(floor), floor.ms, floor_as_json(floor)
    changes = {} if quick else history.changes(books[0].figures, floor_ms, earlier)
    click.echo(f"\n{table(books, changes, with_aims=not quick)}\n{floor_text}")
    if json_file is not None:
        programs = {book.name: book.as_json() for book in books}
        json_file.write_text(json.dumps({"machine": facts, "floor": floor_json, "programs": programs}, indent=1) + "\n")
    if fault is not None:
        raise fault  # what was measured until then has been shown
    for directory in filter(None, (svg_directory, _RESULTS if record else None)):
        _draw(directory, books)
    if record:
        history.append(_HISTORY, facts, floor_ms, books)
        _PAGE.write_text(page.filled(_PAGE.read_text(), books, facts, floor_text))


def _default() -> Path:
    return Path(sys.executable).with_name("runner")


def _ours() -> Path | None:
    """Return this environment's program if the daemons' accounts can run it; None if a copy must take its place."""
    try:
        program.at(_default(), _NOBODY)
    except RunnerError as error:
        click.echo(f"{error}: its daemons run from a copy")
        return None
    return _default()


def _floor(sandbox: Sandbox) -> Floor:
    job = sandbox.root / "stamp"
    job.write_bytes(compile_job())
    job.chmod(0o755)
    return Floor(sandbox.root / "floor", job)


def _measure_all(
    session: Session, runner: Path, subjects: Sequence[Subject], books: Sequence[Book]
) -> RunnerError | None:
    """Measure all programs, one after the other, and what only ours has; then what all of it is to the floor.

    Return the fault that ended this early: what was measured until then took long, and is worth to be seen.
    """
    fault = None
    try:
        for subject, book in zip(subjects, books, strict=True):
            click.echo(f"\n{book.name}")
            if session.only & _TRAFFIC:
                traffic.measure(session, subject, book)
            if "e" in session.only:
                idle.measure(session, subject, book)
        _measure_ours(session, runner, books[0])
    except RunnerError as error:
        fault = error
    session.floor.sample(session.plan.floor)
    for book in books:
        book.note(ratios(book, session.floor.ms))
    return fault


def _measure_ours(session: Session, runner: Path, book: Book) -> None:
    if "e" in session.only:
        idle.keepers(session, book)
    if "f" in session.only:
        commands.validate(session, runner, book)
    if "g" in session.only:
        commands.small(session, runner, book)
    if "i" in session.only:
        growth.measure(session, book)


def _draw(directory: Path, books: Sequence[Book]) -> None:
    """Write the plots of what was measured."""
    directory.mkdir(parents=True, exist_ok=True)
    samples = {book.name: book.samples["a"] for book in books if book.samples.get("a")}
    if samples:
        aims = {f"aim {name}": aim.bound for name in ("p50", "p99") if (aim := aim_of(f"a.{name}"))}
        (directory / "latency.svg").write_text(plots.latency(samples, aims))
    groups = [plots.Bars(label, _values(books, key), aim_of(key)) for key, label in _BARS.items()]
    if drawn := [group for group in groups if group.values]:
        (directory / "throughput.svg").write_text(plots.throughput(drawn))


def _values(books: Sequence[Book], key: str) -> dict[str, Any]:
    return {book.name: book.figures[key].value for book in books if key in book.figures}


if __name__ == "__main__":
    try:
        main()
    except RunnerError as error:
        click.echo("\n".join([f"bench: {error}", *getattr(error, "__notes__", [])]), err=True)
        sys.exit(error.exit_status)
