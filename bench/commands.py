"""Measurements f and g: how long single commands take, from the start of the process to its end."""

import os
import time
from pathlib import Path

from attrs import frozen

from basestation_runner.errors import RunnerError
from bench.book import Book
from bench.figures import Figure, Unit
from bench.host import Host
from bench.session import Session
from bench.stats import median


@frozen
class Took:
    """What one command took."""

    wall_ms: float
    cpu_ms: float


def validate(session: Session, runner: Path, book: Book) -> None:
    """Measure `validate-config` on a large file."""
    sites = session.plan.validated_sites
    with session.sandbox.installation() as installation:
        Host.make(installation, sites)
        command = [str(runner), "validate-config", str(installation.sites_config)]
        took = _timed(command, session.plan.validations)
    what = f"validate-config, {sites} sites"
    book.note(
        [
            Figure(f"f.{sites}.wall", what, median(one.wall_ms for one in took) / 1000, Unit.SECONDS),
            Figure(f"f.{sites}.cpu", f"{what}: CPU", median(one.cpu_ms for one in took) / 1000, Unit.SECONDS),
        ]
    )


def small(session: Session, runner: Path, book: Book) -> None:
    """Measure what does next to nothing: start, a line or a page of text, end."""
    for option in ("help", "version"):
        took = _timed([str(runner), f"--{option}"], session.plan.commands)
        book.note([Figure(f"g.{option}", f"runner --{option}", median(one.wall_ms for one in took), Unit.MS)])


def _timed(command: list[str], repeats: int) -> list[Took]:
    """Run a command again and again; the first time, which may read files from the disk, does not count."""
    return [_run(command) for _ in range(repeats + 1)][1:]


def _run(command: list[str]) -> Took:
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    begin = time.perf_counter_ns()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    wall_ns = time.perf_counter_ns() - begin
    if status != 0:
        code = os.waitstatus_to_exitcode(status)
        raise RunnerError(f"ended with status {code}", where=" ".join(command), hint="it must succeed to be measured")
    return Took(wall_ns / 1e6, (usage.ru_utime + usage.ru_stime) * 1000)
