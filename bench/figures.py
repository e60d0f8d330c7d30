"""What is measured: figures with a unit, and the aim that some of them have. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from attrs import frozen


class Unit(StrEnum):
    """A figure's unit, which also says how it depends on the machine's speed."""

    MS = "ms"
    SECONDS = "s"
    RATE = "jobs/s"
    MB = "MB"
    COUNT = ""
    PER_MINUTE = "/min"
    MS_PER_MINUTE = "ms/min"
    TIMES = "x"


@frozen
class Figure:
    """One result. `key` is its name in the history: the measurement's letter, a dot, and what of it."""

    key: str
    what: str
    value: float
    unit: Unit


@frozen
class Aim:
    """A bound that a figure is to keep to."""

    bound: float
    is_least: bool = False

    def reached(self, value: float) -> bool:
        """Tell whether a value keeps to it."""
        return value >= self.bound if self.is_least else value <= self.bound

    def __str__(self) -> str:
        if self.bound == 0:
            return "none"
        return f"{'≥' if self.is_least else '≤'} {self.bound:g}"


_AIMS: Final[Mapping[str, Aim]] = {
    "a.p50": Aim(5),
    "a.p99": Aim(12),
    "b.rate": Aim(180, is_least=True),
    "b.out_of_order": Aim(0),
    "c.rate": Aim(350, is_least=True),
    "d.lost": Aim(0),
    "d.twice": Aim(0),
    "d.to_c": Aim(1.05),  # no slower, as far as single runs can tell
    "e.200.*.ready": Aim(0.5),
    "e.*.rss": Aim(35),
    "e.*.wakeups": Aim(0),
    "f.1000.wall": Aim(1),
    "g.version": Aim(60),
    "i.rows.growth": Aim(1.1),  # flat, as far as single runs can tell
}
"""What is wanted on a quiet machine, by the figures' keys, or patterns of them."""


def aim_of(key: str) -> Aim | None:
    """Return the aim of the figure with that key."""
    return next((aim for pattern, aim in _AIMS.items() if fnmatchcase(key, pattern)), None)


def relative(figure: Figure, floor_ms: float) -> float:
    """Return a figure as it would be on a machine of any speed: times and rates are told in floors."""
    match figure.unit:
        case Unit.MS:
            return figure.value / floor_ms
        case Unit.SECONDS:
            return figure.value * 1000 / floor_ms
        case Unit.RATE:
            return figure.value * floor_ms / 1000
        case _:
            return figure.value
