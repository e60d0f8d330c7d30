"""The name under which ps and top show this process.

Written here because python-prctl's set_proctitle overwrites Python's heap: it takes copies of the arguments for the
kernel's own, which end at another place, and what lies between is lost.
"""

import ctypes
import functools
import os
from typing import Final

WATCHER: Final = "runner-watch"
"""How the watcher is called, and known from outside."""

_ARG_START: Final = 45  # fields 48 and 49 of /proc/<pid>/stat, counted after the name in parentheses
_ARG_END: Final = 46
_PR_SET_NAME: Final = 15

_libc: Final = ctypes.CDLL(None, use_errno=True)


@functools.cache  # it is the same in every child
def _place() -> tuple[int, int]:
    """Return where the command line begins and ends in this process's memory."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib would be in every keeper's memory
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[_ARG_START]), int(fields[_ARG_END])


def set_title(title: str) -> None:
    """Show `title` in place of the command line, as much of it as fits there, and its beginning as the name."""
    start, end = _place()
    text = os.fsencode(title)
    _libc.prctl(_PR_SET_NAME, text, 0, 0, 0)
    if start < end:
        shown = text[: end - start - 1]
        # The rest must be zero: else the kernel takes the command line to go on into the environment.
        ctypes.memmove(start, shown + bytes(end - start - len(shown)), end - start)
