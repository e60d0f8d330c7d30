"""What the watcher counts and measures while it works: one update in memory for each thing that happens.

Knows nothing of how that is shown, so that a watcher without `--metrics` holds no library for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

from attrs import Factory, define

SOON: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
"""Seconds from a request's acceptance to its job's start; the long ones waited in a queue."""
RUNS: Final = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
COMMITS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
OTHER: Final = "other"
"""Every script that no application profile lists: whoever drops requests could name any number of them."""


@define(eq=False)
class Times:
    """How long things took: how many of them up to each of `bounds`, beyond the one before; the last have no bound."""

    bounds: tuple[float, ...]
    counts: list[int] = Factory(lambda self: [0] * (len(self.bounds) + 1), takes_self=True)
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one more."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@define(eq=False)
class Tally:
    """Counts since the start of this watcher."""

    ended: Counter[tuple[str, str]] = Factory(Counter)
    """Jobs that have ended, by state and script."""
    errors: Counter[str] = Factory(Counter)
    """Jobs that could not be started, or whose end is not known, by what kept them from it."""
    overflows: int = 0
    starts: Times = Factory(lambda: Times(SOON))
    runs: Times = Factory(lambda: Times(RUNS))
    commits: Times = Factory(lambda: Times(COMMITS))
