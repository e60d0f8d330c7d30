"""From an event's fields to the one line that shows it; the rules only, no input or output.
Whatever a field holds, the line stays one line, of bounded length, in which no field can pass for another.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from math import isfinite
from os import PathLike, fsdecode
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from basestation_runner.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from types import TracebackType

Format: TypeAlias = Literal["text", "json"]
Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"

MAX_TEXT: Final = 512  # characters of a value
MAX_TRACEBACK: Final = 8192
MAX_NESTED: Final = 2048  # characters of a list or mapping
MAX_ITEMS: Final = 32  # of a list or mapping
MAX_DEPTH: Final = 2

# A value under one of these names would be taken for the line's own: its name gets an underscore.
OWN_FIELDS: Final = frozenset({"time", "level", "program"})

BARE_VALUE: Final = re.compile(r"[\w./:@%+,*~^-]+")
BARE_KEY: Final = re.compile(r"[\w.-]+")
BARE_SITE: Final = re.compile(r"[\w.-]+")
LOOKS_LIKE_FIELDS: Final = re.compile(r'^\[|[="]')


@dataclass(frozen=True, slots=True)
class Level:
    """A level's name, its number in Python and its number in syslog."""

    name: str
    number: int
    priority: int


LEVELS: Final[Mapping[str, Level]] = {
    level.name: level
    for level in (
        Level("debug", 10, 7),
        Level("info", 20, 6),
        Level("warning", 30, 4),
        Level("error", 40, 3),
        Level("critical", 50, 2),
    )
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line, with its end, and the level it was logged at."""

    level: Level
    data: bytes


@dataclass(frozen=True, slots=True)
class Renderer:
    """How one program's lines look."""

    program: str
    form: Format
    debug: bool

    def line(self, now: datetime, level: Level, fields: Mapping[str, Any]) -> Line:
        """Given a moment in UTC, a level and an event's fields, return its line."""
        time = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03}Z"
        first = {key: fields[key] for key in ("site", "event") if key in fields}
        named = {f"{key}_" if key in OWN_FIELDS else key: value for key, value in {**first, **fields}.items()}
        # Left by `log.exception(…)` and `exc_info=error`.
        named |= self._exception(named.pop("exc_info", None))
        make = _json_line if self.form == "json" else _text_line
        return Line(level, f"{make(time, level.name, self.program, named)}\n".encode())

    def _exception(self, exc_info: object) -> dict[str, Any]:
        """Given structlog's `exc_info`, return what is shown of it: all only with --debug."""
        if exc_info is True:
            exc_info = sys.exc_info()
        error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
        if not isinstance(error, BaseException):
            return {}
        fields = {"error": f"{type(error).__name__}: {error}", "at": _place(error.__traceback__)}
        if self.debug:
            import traceback  # noqa: PLC0415 - for this one case

            fields["traceback"] = "".join(traceback.format_exception(error))
        return fields


def plain(value: object, depth: int = 0) -> Plain:
    """Given any value, return it as JSON can hold it, long texts cut and large collections shortened."""
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, dict | list | tuple | set | frozenset):
        return _scalar(value)
    if depth == MAX_DEPTH:
        return "…"
    beyond = len(value) - MAX_ITEMS
    if isinstance(value, dict):
        mapped = {_cut(str(key)): plain(item, depth + 1) for key, item in islice(value.items(), MAX_ITEMS)}
        return mapped if beyond <= 0 else {**mapped, "…": f"+{beyond}"}
    listed = [plain(item, depth + 1) for item in islice(value, MAX_ITEMS)]
    return listed if beyond <= 0 else [*listed, f"…+{beyond}"]


def _scalar(value: object) -> Plain:
    match value:
        case None | bool():
            return value
        case str():
            return _cut(value)
        case int():
            return value if abs(value) < 1 << 63 else _cut(hex(value))  # long ones have no decimal text
        case float():
            return value if isfinite(value) else str(value)
        case bytes() | PathLike():
            return _cut(fsdecode(value))
        case _:
            return _cut(_repr(value))


def _field(key: str, value: object) -> Plain:
    """Given a field, return its value as a line may hold it."""
    if type(value) is str:  # nearly all are
        return _cut(value, MAX_TRACEBACK if key == "traceback" else MAX_TEXT)
    bounded = plain(value)
    if isinstance(bounded, (list, dict)) and len(encoded := json.dumps(bounded)) > MAX_NESTED:
        return _cut(encoded, MAX_NESTED)
    return bounded


def _json_line(time: str, level: str, program: str, fields: Mapping[str, Any]) -> str:
    shown = {"time": time, "level": level, "program": program}
    # Escapes everything beyond printable ASCII.
    return json.dumps({**shown, **{_cut(key): _field(key, value) for key, value in fields.items()}})


def _text_line(time: str, level: str, _program: str, fields: Mapping[str, Any]) -> str:
    rest = dict(fields)
    site, event = rest.pop("site", None), str(_field("event", rest.pop("event", "")))
    words = [time, f"{level:<5}"]
    if site is not None:
        name = str(_field("site", site))
        words.append(f"[{name if BARE_SITE.fullmatch(name) else _quoted(name)}]")
    words.append(_quoted(event) if LOOKS_LIKE_FIELDS.search(event) else printable(event))
    words += [f"{_text_key(key)}={_text_value(_field(key, value))}" for key, value in rest.items()]
    return " ".join(words)


@functools.lru_cache(maxsize=256)  # the program's own words
def _text_key(key: str) -> str:
    name = _cut(key)
    return name if BARE_KEY.fullmatch(name) else _quoted(name)


def _text_value(value: Plain) -> str:
    if isinstance(value, str):
        return value if BARE_VALUE.fullmatch(value) and value.isprintable() else _quoted(value)
    return printable(json.dumps(value, ensure_ascii=False))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'


def _cut(text: str, length: int = MAX_TEXT) -> str:
    """Given a text, return it, or its beginning and how many characters are missing."""
    return text if len(text) <= length else f"{text[:length]}…+{len(text) - length}"


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - a value's own fault must not cost the line
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _place(frames: TracebackType | None) -> str:
    """Given a traceback, return the file and line where it ends."""
    if frames is None:
        return "?"
    while frames.tb_next is not None:
        frames = frames.tb_next
    return f"{PurePath(frames.tb_frame.f_code.co_filename).name}:{frames.tb_lineno}"
