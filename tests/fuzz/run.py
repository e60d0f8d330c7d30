"""`make fuzz`: try new inputs on every target for a stated time, and keep those that one does not take well.

A run prints its seed; with the same seed and the same code it tries the same inputs in the same order. What it finds is
a file below found/: move it to cases/, where `make test` tries it, and mend the code.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import time
import traceback
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Final

import click
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.bounds import TooSlowError
from tests.fuzz.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.targets import Target

FOUND: Final = Path(__file__).parent / "found"
_SHRINKING_SECONDS: Final = 10.0


class _FoundError(BaseException):
    """An input that its target does not take well. Not an Exception: Hypothesis lets it pass."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content


def problem(target: Target, content: bytes) -> str | None:
    """Try one input; return the traceback if the target does not take it well."""
    try:
        target.run(content)
    except (Exception, TooSlowError):  # noqa: BLE001 - whatever it is, it is what is looked for
        return traceback.format_exc()
    return None


def bad_input(target: Target, number: int, deadline: float, count: Callable[[], object]) -> bytes | None:
    """Try as many inputs as the target's share is, or as fit the time; return the first bad one."""

    @seed(number)
    @settings(
        max_examples=target.share,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=True))
    def each(random: Random) -> None:
        if time.monotonic() > deadline:
            return
        count()
        content = target.make(random)
        if problem(target, content):
            raise _FoundError(content)

    try:
        each()
    except _FoundError as found:
        return found.content
    return None


def shortened(target: Target, content: bytes) -> bytes:
    """Return what is left of a bad input when ever smaller parts are taken out of it, as long as it stays bad."""
    deadline = time.monotonic() + _SHRINKING_SECONDS
    size = len(content) // 2
    while size:
        start = 0
        while start < len(content) and time.monotonic() < deadline:
            shorter = content[:start] + content[start + size :]
            if problem(target, shorter):
                content = shorter
            else:
                start += size
        size //= 2
    return content


def keep(name: str, content: bytes) -> Path:
    """Write an input down where it is not forgotten."""
    directory = FOUND / name
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / hashlib.sha256(content).hexdigest()[:16]
    path.write_bytes(content)
    return path


def main() -> int:
    """Fuzz, and return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    click.echo(f"FUZZ_SEED={options.seed} FUZZ_SECONDS={options.seconds:g}")
    deadline = time.monotonic() + options.seconds
    tried: Counter[str] = Counter(dict.fromkeys(TARGETS, 0))
    found: set[tuple[str, str]] = set()
    for number in itertools.count(options.seed):
        for name, target in TARGETS.items():
            content = bad_input(target, number, deadline, partial(tried.update, [name]))
            if content is not None and (kind := (name, kind_of(problem(target, content)))) not in found:
                found.add(kind)
                content = shortened(target, content)
                click.echo(f"{name}: {keep(name, content)}\n{problem(target, content)}")
        if time.monotonic() > deadline:
            break
    counts = ", ".join(f"{name} {count}" for name, count in tried.items())
    click.echo(f"inputs: {counts}; problems found: {len(found)}")
    return 1 if found else 0


def kind_of(trace: str | None) -> str:
    """Tell one problem from another by where and as what it showed, so that each is kept once."""
    lines = (trace or "").strip().splitlines()
    places = [line for line in lines if line.startswith('  File "')]
    return f"{places[-1:]} {lines[-1:]}"[:200]


if __name__ == "__main__":
    sys.exit(main())
