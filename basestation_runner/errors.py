"""What can go wrong, as facts; the one place that turns them into text and into an exit status.
Imports the standard library only, since the helper uses it too.
"""

from __future__ import annotations

from typing import ClassVar, Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_INTERNAL: Final = 70
EXIT_TEMPORARY: Final = 75
EXIT_INTERRUPTED: Final = 130


class RunnerError(Exception):
    """A fault that its reader can do something about: what is wrong, where, and what would be right."""

    exit_status: ClassVar[int] = EXIT_FAILED

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return _sentence(self.what, self.where, self.hint)


class TemporaryError(RunnerError):
    """A fault that may pass by itself: the same thing may be tried again."""

    exit_status: ClassVar[int] = EXIT_TEMPORARY


def printable(text: str) -> str:
    """Given any text, return it on one line: what a terminal could act upon, and lone surrogates, become escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def report(error: Exception, *, debug: bool = False) -> tuple[list[str], int]:
    """Given what ended a command, return its lines for stderr, one a fault, and its exit status."""
    faults = _faults(error)
    if faults:
        # A class that holds several faults has a line for each.
        lines = [line for fault in faults for line in str(fault).split("\n")]
        # Temporary, the highest status, only if every fault is.
        return [f"runner: {line}" for line in lines], min(fault.exit_status for fault in faults)
    what = f"internal error: {type(error).__name__}: {error}"
    hint = None if debug else "runner --debug shows where it happened"
    return [f"runner: {_sentence(what, None, hint)}"], EXIT_INTERNAL


def _faults(error: BaseException) -> list[RunnerError]:
    """Given an error, return the faults that it consists of; nothing if any part of it is unforeseen."""
    if isinstance(error, RunnerError):
        return [error]
    if not isinstance(error, BaseExceptionGroup):
        return []
    parts = [_faults(part) for part in error.exceptions]
    return [fault for part in parts for fault in part] if all(parts) else []


def _sentence(what: str, where: str | None, hint: str | None) -> str:
    text = f"{where}: {what}" if where else what
    return printable(f"{text} ({hint})" if hint else text)
