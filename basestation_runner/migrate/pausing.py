"""A unit's main process kept from doing anything for a moment, so that what is seen meanwhile stays so."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from basestation_runner import processes
from basestation_runner.migrate.context import Context
from basestation_runner.migrate.unit import Unit

_PAUSED: Final = frozenset({b"T", b"t"})
_PATIENCE: Final = 1.0


@contextmanager
def paused(context: Context, unit: Unit) -> Iterator[int | None]:
    """Pause a unit's main process; what is yielded is its pidfd, or None if it could not be had."""
    try:
        pidfd = os.pidfd_open(unit.main_pid)
    except ProcessLookupError:
        yield None
        return
    try:
        if context.unit(unit.name).main_pid != unit.main_pid:  # its number may be another's by now
            yield None
            return
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        yield pidfd if _has_paused(unit.main_pid) else None
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        os.close(pidfd)


def wake(unit: Unit) -> None:
    """Let a main process go on, if a kill of an earlier call has left it paused."""
    if unit.main_pid:
        with suppress(ProcessLookupError):
            os.kill(unit.main_pid, signal.SIGCONT)


def _has_paused(pid: int) -> bool:
    end = time.monotonic() + _PATIENCE
    with suppress(OSError):
        while time.monotonic() < end:
            if processes.look(pid)[0] in _PAUSED:
                return True
    return False
