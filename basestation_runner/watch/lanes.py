"""Runs what may hang for one rundir off the event loop: in order within a lane, lanes independent of each other.

A task that does not get on in time makes its lane fall: its site hears of it, nothing more of that lane runs, and
what the task returns at last goes to the lane's `on_late`. The thread that it holds is replaced: no other lane waits.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from attrs import Factory, define, frozen

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

T = TypeVar("T")

THREADS: Final = 2
"""Threads that are kept for tasks which get on."""
SLOW: Final = 0.05
"""Seconds after which a thread counts as held, and another one takes its place."""
MOST_SLOW: Final = 64
"""Threads that are replaced so although their tasks are still in time."""


@frozen(eq=False)
class _Task:
    lane: Lane
    work: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


@define(eq=False)
class Lane:
    """One site's tasks, one at a time. To be used on the loop, but for `progress`."""

    _lanes: Lanes
    on_hung: Callable[[str], None]
    on_late: Callable[[Any], None]
    doing: str = ""
    since: float | None = None
    has_fallen: bool = False
    _tasks: deque[_Task] = Factory(deque)
    _is_busy: bool = False

    def submit(self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Run `work` on a thread after everything submitted before, then `done` or `failed` on the loop.

        On a lane that has fallen nothing happens at all.
        """
        if not self.has_fallen:
            self._tasks.append(_Task(self, work, done, failed))
            self._go_on()

    def progress(self, doing: str) -> None:
        """Called by the running task: it gets on, and waits for `doing` next. Its time begins anew."""
        self.doing = doing
        self.since = monotonic()

    def abandon(self) -> None:
        """Let the lane fall: nothing that waits will run; what runs has its result go to `on_late`."""
        self.has_fallen = True
        self._tasks.clear()

    def finish(self, task: _Task, result: Any, error: Exception | None) -> None:  # noqa: ANN401 - any task's result
        """Called by Lanes: the running task has returned."""
        self._is_busy = False
        if self.has_fallen:
            self.on_late(result)
            return
        try:
            if error is None:
                task.done(result)
            else:
                task.failed(error)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        if self._tasks and not self._is_busy:
            self._is_busy = True
            self.since = None
            self._lanes.start(self._tasks.popleft())


class Lanes:
    """The threads that all lanes share."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, deadline: float) -> None:
        self._loop = loop
        self._deadline = deadline
        self._ready: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._watched: set[Lane] = set()  # whose running task may still be in time
        self._timer: asyncio.TimerHandle | None = None
        self._kept = THREADS
        self._guard = threading.Lock()  # of all that follows
        self._threads = 0
        self._idle = 0
        self._held: set[Lane] = set()
        self._fallen: set[Lane] = set()  # of those that are held

    def lane(self, *, on_hung: Callable[[str], None], on_late: Callable[[Any], None]) -> Lane:
        """Make a lane. When it falls, `on_hung` gets what it was waiting for; `on_late` gets the late result."""
        return Lane(self, on_hung, on_late)

    def close(self) -> None:
        """Have the threads end; a held one is left alone, it cannot keep the process from ending."""
        if self._timer is not None:
            self._timer.cancel()
        self._kept = 0
        self._dismiss()

    def start(self, task: _Task) -> None:
        """Give a lane's next task to a thread."""
        self._watched.add(task.lane)
        self._ready.put(task)
        self._staff()
        if self._timer is None:
            self._timer = self._loop.call_later(SLOW, self._look)

    @property
    def _most_threads(self) -> int:
        fallen = len(self._fallen)
        return self._kept + fallen + min(MOST_SLOW, len(self._held) - fallen)

    def _staff(self) -> None:
        """Have enough threads for what is ready."""
        with self._guard:
            wanted = self._ready.qsize() - self._idle
            for _ in range(min(wanted, self._most_threads - self._threads)):
                self._threads += 1
                threading.Thread(target=self._work, name="lane", daemon=True).start()

    def _dismiss(self) -> None:
        """Wake threads that are not needed any more: they see that and end."""
        with self._guard:
            for _ in range(self._threads - self._most_threads):
                self._ready.put(None)

    def _look(self) -> None:
        """See which tasks do not get on; again and again, but only while any runs."""
        now = monotonic()
        for lane in tuple(self._watched):
            since = lane.since
            if since is None or now - since < SLOW:
                continue
            with self._guard:
                self._held.add(lane)
            if now - since >= self._deadline:
                self._watched.remove(lane)
                with self._guard:
                    self._fallen.add(lane)
                lane.abandon()
                lane.on_hung(lane.doing)
        self._staff()
        self._timer = self._loop.call_later(SLOW, self._look) if self._watched else None

    def _work(self) -> None:
        """What each thread does."""
        while True:
            with self._guard:
                if self._threads > self._most_threads:
                    self._threads -= 1
                    return
                self._idle += 1
            task = self._ready.get()
            with self._guard:
                self._idle -= 1
            if task is None:
                continue
            task.lane.progress("the rundir")
            result, error = None, None
            try:
                result = task.work()
            except Exception as caught:  # noqa: BLE001 - it is the task's owner's
                error = caught
            try:
                self._loop.call_soon_threadsafe(self._finish, task, result, error)
            except RuntimeError:  # the loop is closed: this process is about to end
                return
            del task, result, error

    def _finish(self, task: _Task, result: Any, error: Exception | None) -> None:  # noqa: ANN401 - any task's result
        self._watched.discard(task.lane)
        with self._guard:
            self._held.discard(task.lane)
            self._fallen.discard(task.lane)
        self._dismiss()
        task.lane.finish(task, result, error)
