"""A fault in a config file as facts, and the one place that turns it into text. Reads nothing."""

import re
from collections.abc import Iterable

from attrs import frozen

from basestation_runner.config.rules import Step
from basestation_runner.errors import RunnerError, printable
from basestation_runner.text import quoted

PLAIN_STEP = re.compile(r"[A-Za-z0-9_.-]{1,80}")


@frozen
class Fault:
    """One fault: `path` is the way to the field, as in `seaglider.groups[1]`; `hint` says what would be right."""

    file: str
    line: int
    column: int
    path: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        path = f"{self.path}: " if self.path else ""
        return printable(f"{self.file}:{self.line}:{self.column}: {path}{self.what}{hint}")


class ConfigErrors(RunnerError):  # noqa: N818 - it holds several
    """All faults of the config files that were read together, in the order of their positions."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        super().__init__(f"the configuration is not valid: {count}")
        self.args = (self.faults,)  # what a copy or a pickle is made from

    def __str__(self) -> str:
        return "\n".join([self.what, *map(str, self.faults)])


def sentences(error: RunnerError) -> list[str]:
    """Given why a configuration cannot be used, return each fault on its own."""
    return [str(fault) for fault in error.faults] if isinstance(error, ConfigErrors) else [str(error)]


def dotted(path: Iterable[Step]) -> str:
    """Given the steps to a field, return them as text: `seaglider.groups[1]`."""
    shown = ""
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]"
        else:
            shown += "." * bool(shown) + (step if PLAIN_STEP.fullmatch(step) else quoted(step))
    return shown
