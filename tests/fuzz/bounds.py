"""Limits for one call: CPU time and memory. For the main thread of a test process."""

from __future__ import annotations

import contextlib
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY: Final = 256 << 20
"""Bytes that one input may cost, however long or nested it is."""


class TooSlowError(BaseException):
    """An input took longer than it may. Not an Exception: what is tested must not catch it."""


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise TooSlowError in the block after that much CPU time of this process, MemoryError when it takes too much."""

    def too_slow(*_: object) -> None:
        raise TooSlowError(f"more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, too_slow)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_in_use() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _in_use() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
