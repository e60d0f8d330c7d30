"""`python -m bench`: measure, show, and keep what was measured."""

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from basestation_runner.errors import RunnerError, report
from basestation_runner.sandbox import Sandbox, with_accounts
from bench import machine, plan, traffic
from bench.book import Book, floor_as_json, floor_as_text, ratios
from bench.floor import Floor
from bench.session import Session
from bench.stamps import compile_job
from bench.subjects import Other, Runner, Subject
from bench.table import table

MEASUREMENTS: Final = "abcd"
_TRAFFIC: Final = frozenset("abcd")


def _letters(_context: click.Context, _option: click.Parameter, value: str) -> frozenset[str]:
    letters = frozenset(value.replace(",", ""))
    if not letters or letters - set(MEASUREMENTS):
        raise click.BadParameter(f"some of {','.join(MEASUREMENTS)}")
    return letters


def _adapters(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> list[Other]:
    pairs = [value.partition("=") for value in values]
    return [Other.load(name, Path(path)) for name, _, path in pairs]


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--runner",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=Path(sys.executable).with_name("runner"),
    help="The program to measure.  [default: this environment's]",
)
@click.option("--only", callback=_letters, default=MEASUREMENTS, help="Measurements, for instance a,b.  [default: all]")
@click.option("--quick", is_flag=True, help="Small numbers: see within a minute that it works.")
@click.option(
    "--other", "others", multiple=True, callback=_adapters, metavar="NAME=FILE", help="Another runner's adapter."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results there.")
@click.option(
    "--disk",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/var/tmp"),  # noqa: S108 - a new directory of root's is made in it
    show_default=True,
    help="Where state, rundirs and logs are while this runs.",
)
def main(  # noqa: PLR0913, PLR0917 - as many parameters as options
    runner: Path,
    only: frozenset[str],
    quick: bool,  # noqa: FBT001 - click passes it by name
    others: Sequence[Other],
    json_file: Path | None,
    disk: Path,
) -> None:
    """Measure how fast and how small the runner is. Needs root. bench/README.md says what is measured, and how."""
    sizes = plan.QUICK if quick else plan.FULL
    subjects: list[Subject] = [Runner(), *others]
    books = [Book(subject.name, click.echo) for subject in subjects]
    with with_accounts(runner=runner, disk=disk) as sandbox:
        facts = machine.facts(runner, sandbox.root)
        click.echo("\n".join(f"{name}: {value}" for name, value in facts.items()))
        with contextlib.closing(_floor(sandbox)) as floor:
            for subject, book in zip(subjects, books, strict=True):
                click.echo(f"\n{book.name}")
                _measure(Session(sandbox, floor, sizes, only), subject, book)
            floor.sample(sizes.floor)
            for book in books:
                book.note(ratios(book, floor.ms))
            result = _result(facts, floor, books)
            click.echo(f"\n{table(books, {})}\n{floor_as_text(floor)}")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")


def _floor(sandbox: Sandbox) -> Floor:
    job = sandbox.root / "stamp"
    job.write_bytes(compile_job())
    job.chmod(0o755)
    return Floor(sandbox.root / "floor", job)


def _measure(session: Session, subject: Subject, book: Book) -> None:
    if session.only & _TRAFFIC:
        traffic.measure(session, subject, book)


def _result(facts: dict[str, Any], floor: Floor, books: Sequence[Book]) -> dict[str, Any]:
    return {
        "machine": facts,
        "floor": floor_as_json(floor),
        "programs": {book.name: book.as_json() for book in books},
    }


if __name__ == "__main__":
    try:
        main()
    except RunnerError as error:
        lines, status = report(error)
        click.echo("\n".join(lines), err=True)
        sys.exit(status)
