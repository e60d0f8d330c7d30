"""What is read from a document: values, where they stand, and how much of them there may be."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import Factory, define, frozen

from basestation_runner.config.rules import Step

MAX_LINE: Final = 32768  # characters: ruamel's time for a tag grows with the square of its length
MAX_DEPTH: Final = 20
MAX_NODES: Final = 100_000  # counted after aliases are expanded: about five times what 1,000 sites need
MAX_NUMBER: Final = 100  # characters; what is longer stays a text

Position = tuple[int, int]
Steps = tuple[Step, ...]

_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@frozen(kw_only=True)
class Bounds:
    """What a document may cost. Whoever may not repeat values gets no anchors and no aliases."""

    line: int = MAX_LINE
    depth: int = MAX_DEPTH
    nodes: int = MAX_NODES
    may_repeat: bool = True


OF_A_FILE: Final = Bounds()


@define
class Place:
    """Where a value stands, where each of its keys stands, and the places of what it holds."""

    position: Position
    keys: dict[str, Position] = Factory(dict)
    items: dict[Step, "Place"] = Factory(dict)


def inside(lengths: Sequence[int], line: int, column: int) -> Position:
    """Given the lengths of a file's lines and a parser's position, return one in the file: it may be behind an end."""
    if line > len(lengths):
        return len(lengths), lengths[-1] + 1
    return line, min(column, lengths[line - 1] + 1)


def scalar(text: str) -> str | int | float | bool | None:
    """Given a scalar that is written without quotes, return its value by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] in "+-.0123456789" and len(text) <= MAX_NUMBER:
        if _INTEGER.fullmatch(text):
            return int(text, 0 if text[:2] in {"0o", "0x"} else 10)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text
