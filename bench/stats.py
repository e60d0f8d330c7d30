"""Percentiles, and what became of requests. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import frozen

from bench.stamps import Stamp


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that `percent` of all values do not exceed. Raises ValueError for no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(values: Iterable[float]) -> float:
    """Return the 50th percentile."""
    return percentile(values, 50)


@frozen
class Verdict:
    """What became of the requests of one measurement."""

    lost: int  # never run
    twice: int  # run more than once
    out_of_order: int  # run after one that was dropped later


def judge(dropped: Sequence[int], stamps: Sequence[Stamp]) -> Verdict:
    """Given requests' numbers in the order of their drop, and runs in the order of their execution, return what became.

    The order counts within one queue; where the requests went to several, `out_of_order` says nothing.
    """
    runs = Counter(stamp.number for stamp in stamps)
    place = {number: index for index, number in enumerate(dropped)}
    highest, out_of_order = -1, 0
    for number in dict.fromkeys(stamp.number for stamp in stamps):
        if place[number] < highest:
            out_of_order += 1
        highest = max(highest, place[number])
    return Verdict(
        lost=sum(runs[number] == 0 for number in dropped),
        twice=sum(runs[number] > 1 for number in dropped),
        out_of_order=out_of_order,
    )
