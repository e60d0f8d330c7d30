"""How much is measured: all of it, or little enough to see within a minute that it works."""

from typing import Final

from attrs import frozen


@frozen(kw_only=True)
class Plan:
    """The sizes of all measurements, by their letters in README.md."""

    drops: int  # a
    pause: float  # a: seconds of rest before each drop
    queue: int  # b
    sites: int  # c and d
    missions: int
    burst: int  # d
    repeats: int  # of b and c; the median counts
    floor: int  # samples each time


FULL: Final = Plan(drops=200, pause=0.03, queue=1000, sites=8, missions=50, burst=20_000, repeats=3, floor=50)
QUICK: Final = Plan(drops=30, pause=0.03, queue=100, sites=8, missions=5, burst=400, repeats=1, floor=20)
