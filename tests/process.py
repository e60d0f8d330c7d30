"""What tests ask of the process that they run in, and do to it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY: Final = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Act as an account without privileges; it changes nothing for whoever has none."""
    if os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def open_descriptors() -> int:
    """Return how many descriptors are open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
