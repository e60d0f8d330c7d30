"""A fault that repeats is logged once, and then as a number once a minute, for as long as it goes on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

SUMMED_FOR: Final = 60.0


class Repeats:
    """Counts what is not logged."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts: Counter[object] = Counter()

    def say(self, key: object, first: Callable[[], None], again: Callable[[int], None]) -> None:
        """Call `first` unless `key` was said lately; else, a minute after it was, `again` with how often."""
        if key in self._counts:
            self._counts[key] += 1
            return
        self._counts[key] = 0
        self._loop.call_later(SUMMED_FOR, self._sum_up, key, again)
        first()

    def _sum_up(self, key: object, again: Callable[[int], None]) -> None:
        count = self._counts.pop(key)
        if count:
            again(count)
            self._counts[key] = 0
            self._loop.call_later(SUMMED_FOR, self._sum_up, key, again)
