"""Waiting for a condition: with a deadline, and never longer than it takes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE: Final = 30.0


def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until a condition holds; fail when it does not come to."""
    end = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what or condition}"
        pause.wait(0.005)
