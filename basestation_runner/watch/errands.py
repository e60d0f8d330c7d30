"""Single look-ups off the event loop, a few at a time, for coroutines that can wait for the answer.

What hangs keeps its place until it returns: however many ask, no more threads than that are held.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from basestation_runner.watch.lanes import Lanes

T = TypeVar("T")


class HungError(Exception):
    """What was asked did not answer in time, or too much else is waited for already."""


class Errands:
    """Up to `most` look-ups at once, each on a lane of its own."""

    def __init__(self, lanes: Lanes, *, most: int, patience: float) -> None:
        """`patience` is how many seconds a look-up may wait for its turn."""
        self._lanes = lanes
        self._places = asyncio.Semaphore(most)
        self._patience = patience

    async def run(self, what: str, work: Callable[[], T]) -> T:
        """Call `work` on a thread and return its result. Raises HungError with `what` in it, or what `work` raises."""
        return await self.run_steps(what, lambda _: work())

    async def run_steps(self, what: str, work: Callable[[Callable[[str], None]], T]) -> T:
        """The same for work of many steps: it calls what it is given at each, with what that waits for."""
        try:
            async with asyncio.timeout(self._patience):
                await self._places.acquire()
        except TimeoutError:
            raise HungError(f"{what} does not answer") from None
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def hung(_: str) -> None:
            if not answer.done():
                answer.set_exception(HungError(f"{what} does not answer"))

        def returned(_: Any) -> None:  # noqa: ANN401 - a late result is dropped, whatever it is
            self._places.release()

        def done(result: T) -> None:
            self._places.release()
            if not answer.done():
                answer.set_result(result)

        def failed(error: Exception) -> None:
            self._places.release()
            if not answer.done():
                answer.set_exception(error)

        lane = self._lanes.lane(on_hung=hung, on_late=returned)
        lane.submit(lambda: work(lane.progress), done, failed)
        return await answer
