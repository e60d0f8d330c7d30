"""Lanes: order within one, independence of all, and what hangs."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from basestation_runner.watch.lanes import Lane, Lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

PATIENCE = 20.0


def on_loop(test: Callable[[Lanes], Coroutine[Any, Any, None]], *, deadline: float = 0.4) -> None:
    async def run() -> None:
        lanes = Lanes(asyncio.get_running_loop(), deadline=deadline)
        try:
            async with asyncio.timeout(PATIENCE):
                await test(lanes)
        finally:
            lanes.close()

    asyncio.run(run())


def plain(lanes: Lanes) -> Lane:
    return lanes.lane(on_hung=print, on_late=print)


def result(lane: Lane, work: Callable[[], object]) -> asyncio.Future[object]:
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    lane.submit(work, future.set_result, future.set_exception)
    return future


def test_tasks_of_one_lane_run_one_at_a_time_in_their_order() -> None:
    async def test(lanes: Lanes) -> None:
        done: list[int] = []
        active = threading.Semaphore(1)

        def task(number: int) -> None:
            assert active.acquire(blocking=False)
            done.append(number)
            active.release()

        lane = plain(lanes)
        await asyncio.gather(*(result(lane, lambda number=number: task(number)) for number in range(200)))  # type: ignore[misc]
        assert done == list(range(200))

    on_loop(test)


def test_an_error_goes_to_its_task_and_the_lane_goes_on() -> None:
    async def test(lanes: Lanes) -> None:
        lane = plain(lanes)
        failed = result(lane, lambda: 1 // 0)
        assert await result(lane, lambda: "next") == "next"
        assert isinstance(failed.exception(), ZeroDivisionError)

    on_loop(test)


def test_lanes_that_hang_delay_no_other_one() -> None:
    async def test(lanes: Lanes) -> None:
        release = threading.Event()
        for _ in range(20):
            plain(lanes).submit(release.wait, print, print)
        try:
            assert await result(plain(lanes), lambda: "here") == "here"
        finally:
            release.set()

    on_loop(test, deadline=PATIENCE)


def test_a_task_that_hangs_makes_its_lane_fall_and_its_late_result_is_told() -> None:
    async def test(lanes: Lanes) -> None:
        release = threading.Event()
        hung: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        late: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        lane = lanes.lane(on_hung=hung.set_result, on_late=late.set_result)
        ran: list[str] = []

        def hangs() -> str:
            lane.progress("the disk")
            release.wait()
            return "at last"

        lane.submit(hangs, ran.append, print)
        lane.submit(lambda: ran.append("second"), print, print)
        assert await hung == "the disk"
        lane.submit(lambda: ran.append("third"), print, print)
        release.set()
        assert await late == "at last"
        assert ran == []

    on_loop(test)


def test_a_slow_task_that_gets_on_does_not_fall() -> None:
    async def test(lanes: Lanes) -> None:
        fell: list[str] = []
        lane = lanes.lane(on_hung=fell.append, on_late=print)
        never = threading.Event()

        def slow() -> str:
            for _ in range(10):
                lane.progress("the rundir")
                never.wait(0.1)
            return "done"

        assert await result(lane, slow) == "done"
        assert not fell

    on_loop(test)


def test_threads_that_replaced_hung_ones_end_when_those_are_back() -> None:
    async def test(lanes: Lanes) -> None:
        release = threading.Event()
        late: list[asyncio.Future[object]] = []
        for _ in range(8):
            future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            late.append(future)
            lane = lanes.lane(on_hung=lambda _: None, on_late=future.set_result)
            lane.submit(release.wait, future.set_result, print)
        assert await result(plain(lanes), lambda: "here") == "here"
        release.set()
        await asyncio.gather(*late)
        while lanes._threads > 2:  # noqa: ASYNC110 - a thread gives no event
            await asyncio.sleep(0.001)

    on_loop(test)
