"""The results of one run, as they come in, and as JSON."""

from collections.abc import Callable, Iterable
from typing import Any

from attrs import define, field

from bench.figures import Figure, Unit
from bench.floor import Floor
from bench.stats import median, percentile


@define
class Book:
    """The results of one program. `samples` holds a measurement's single values, for plots."""

    name: str
    say: Callable[[str], None]
    figures: dict[str, Figure] = field(factory=dict)
    samples: dict[str, list[float]] = field(factory=dict)

    def note(self, figures: Iterable[Figure]) -> None:
        """Take in results, and tell of each."""
        for figure in figures:
            self.figures[figure.key] = figure
            self.say(f"  {figure.what}: {figure.value:.4g} {figure.unit}")

    def as_json(self) -> dict[str, Any]:
        """Return everything that is known."""
        return {
            "figures": {
                key: {"what": f.what, "value": f.value, "unit": str(f.unit)} for key, f in self.figures.items()
            },
            "samples": self.samples,
        }


def ratios(book: Book, floor_ms: float) -> Iterable[Figure]:
    """Yield what a job costs where many are waiting, as multiples of the floor."""
    for key, what in (("b", "one queue"), ("c", "many queues")):
        rate = book.figures.get(f"{key}.rate")
        if rate is not None and rate.value > 0:
            yield Figure(f"h.{key}", f"cost per job to the floor, {what}", 1000 / rate.value / floor_ms, Unit.TIMES)


def floor_as_text(floor: Floor) -> str:
    """Return the floor and its parts as one line."""
    commit, spawn, file = (
        f"{median(values):.3f} ms (p99 {percentile(values, 99):.3f})"
        for values in (floor.commits, floor.spawns, floor.files)
    )
    return (
        f"floor: {floor.ms:.3f} ms, of it a durable commit {commit} and a fork and exec {spawn};"
        f" besides, a small durable file and its rename {file}"
    )


def floor_as_json(floor: Floor) -> dict[str, Any]:
    """Return the floor and its parts, in milliseconds."""
    parts = {"commit": floor.commits, "spawn": floor.spawns, "fsync_rename": floor.files}
    found = {
        name: {"p50": median(values), "p99": percentile(values, 99), "samples": len(values)}
        for name, values in parts.items()
    }
    return {"ms": floor.ms, **found}
