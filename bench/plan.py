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
    site_counts: tuple[int, ...]  # e
    idle: float  # e: seconds
    validated_sites: int  # f
    validations: int
    commands: int  # g: how often
    growing_sites: tuple[int, ...]  # i
    growing_queues: tuple[int, ...]
    growing_rows: tuple[int, ...]
    growth_jobs: int


FULL: Final = Plan(
    drops=200,
    pause=0.03,
    queue=1000,
    sites=8,
    missions=50,
    burst=20_000,
    repeats=3,
    floor=50,
    site_counts=(1, 20, 200, 1000),
    idle=20,
    validated_sites=1000,
    validations=5,
    commands=20,
    growing_sites=(1, 10, 100),
    growing_queues=(100, 1000, 10_000),
    growing_rows=(1000, 10_000, 100_000, 1_000_000),
    growth_jobs=200,
)
QUICK: Final = Plan(
    drops=30,
    pause=0.03,
    queue=100,
    sites=8,
    missions=5,
    burst=400,
    repeats=1,
    floor=20,
    site_counts=(1, 20),
    idle=2,
    validated_sites=100,
    validations=2,
    commands=5,
    growing_sites=(1, 10),
    growing_queues=(20, 200),
    growing_rows=(100, 1000),
    growth_jobs=40,
)
