"""The helper's event loop: descriptors, timers and signals, in one thread, with nothing that a framework would add."""

import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable

Callback = Callable[[], object]

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Loop:
    """Calls back when a descriptor is ready, a time has come or a signal has arrived. Callbacks must not block."""

    def __init__(self) -> None:
        """Make an idle loop."""
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()
        self._running = False

    def watch(self, descriptor: int, callback: Callable[[int], None], events: int = READ) -> None:
        """Call `callback` with the ready events whenever the descriptor has any of `events`; replaces what it had."""
        try:
            self._selector.modify(descriptor, events, callback)
        except KeyError:
            self._selector.register(descriptor, events, callback)

    def forget(self, descriptor: int) -> None:
        """Stop watching the descriptor. It must still be open."""
        self._selector.unregister(descriptor)

    def call_later(self, seconds: float, callback: Callback) -> None:
        """Call `callback` once, after that time of the monotonic clock."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), callback))

    def on_signals(self, handlers: dict[signal.Signals, Callback]) -> None:
        """Call a handler from the loop, not from the middle of other work, when its signal arrives."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in handlers:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writer)

        def arrived(_: int) -> None:
            for number in os.read(reader, 64):
                handlers[signal.Signals(number)]()

        self.watch(reader, arrived)

    def stop(self) -> None:
        """Return from `run` after the present callbacks."""
        self._running = False

    def run(self) -> None:
        """Call back until `stop`."""
        self._running = True
        while self._running:
            timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            for key, events in self._selector.select(timeout):
                # An earlier callback of this round may have closed it.
                if self._selector.get_map().get(key.fd) == key:
                    key.data(events)
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()
