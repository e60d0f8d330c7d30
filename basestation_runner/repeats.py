"""What repeats is logged a few times, and then as a number once a minute, for as long as it goes on."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SUMMED_FOR: Final = 60.0


class Repeats:
    """Counts what is not logged."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], object], *, most: int = 1) -> None:
        """`call_later` is the event loop's; `most` is how often something is logged before it is counted."""
        self._call_later = call_later
        self._most = most
        self._said: dict[object, int] = {}
        self._counts: Counter[object] = Counter()

    def say(self, key: object, first: Callable[[], None], again: Callable[[int], None]) -> None:
        """Call `first` unless `key` was said often enough lately; else, a minute after it was, `again` with a count."""
        said = self._said.get(key)
        if said is None:
            said = 0
            self._call_later(SUMMED_FOR, partial(self._sum_up, key, again))
        if said < self._most:
            self._said[key] = said + 1
            first()
        else:
            self._counts[key] += 1

    def _sum_up(self, key: object, again: Callable[[int], None]) -> None:
        count = self._counts.pop(key, 0)
        if count:
            again(count)
            self._call_later(SUMMED_FOR, partial(self._sum_up, key, again))
        else:
            del self._said[key]
