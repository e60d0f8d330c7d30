"""The part of YAML that most config files keep to, read line by line: many times as fast as a parser of the whole.

Mappings and lists by indentation, lists in brackets, and scalars that end in their line. Whatever is not surely one of
these, and whatever may be a fault, is not read at all but left to that parser: for every text that is read here it
finds the same values in the same places, and no fault.
"""

import re
from typing import Any, Final

from attrs import define

from basestation_runner.config.places import Bounds, Place, Position, scalar

# Each repetition ends where no other may go on: a line that does not fit is found so in one pass.
_KEY: Final = r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}"
_WORD: Final = r"""[!-"$-9;-~]*(?::(?=[!-~])[!-"$-9;-~]*)*"""
_PLAIN: Final = rf"""(?:-{{0,2}}[A-Za-z0-9_.]|[/+$(=~]){_WORD}(?:[ ]+(?=[!-"$-~]){_WORD})*"""
_QUOTED: Final = r"""'[ -&(-~]*' | "[ !#-\[\]-~]*\""""
_ITEM: Final = rf"(?: -{{0,2}}[A-Za-z0-9_./+][A-Za-z0-9_./+@=-]* | {_QUOTED} )"
_PAIR: Final = rf"(?: {_KEY}:[ ]+ {_ITEM} )"
_LINE: Final = re.compile(
    rf"""
    (?P<indent>[ ]*) (?P<dash>-[ ]+)? (?: (?P<key>{_KEY}) : (?: [ ]+ | \Z ) )?
    (?: (?P<plain>{_PLAIN}) | (?P<quoted>{_QUOTED}) | (?P<empty>\[\] | \{{\}})
      | \[ (?P<items>{_ITEM} (?: ,[ ]* {_ITEM} )*) \] | \{{ (?P<pairs>{_PAIR} (?: ,[ ]* {_PAIR} )*) \}} )?
    [ ]* (?: (?<![^ ]) \#.* )?
    """,
    re.VERBOSE,
)
_ITEMS: Final = re.compile(rf"(?: (?P<key>{_KEY}):[ ]+ )? (?P<item>{_ITEM})", re.VERBOSE)


class _LeftError(Exception):
    """What is here is for the parser of the whole."""


@define
class _Open:
    """A mapping or list whose lines begin at a column, counted from 0."""

    column: int
    depth: int
    data: Any
    place: Place


def read(text: str, bounds: Bounds) -> tuple[dict[str, Any], Place] | None:
    """Given a document, return its data and their places; None if it is more than what can be read here."""
    reader = _Reader(bounds)
    lines = text.split("\n")
    first = 1 if lines[0] == "---" else 0
    try:
        for number, line in enumerate(lines[first:], first + 1):
            reader.take(number, line)
        return reader.end()
    except _LeftError:
        return None


class _Reader:
    """Takes one line after the other, and knows what they have opened."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds: Final = bounds
        self._nodes = 0
        self._open: list[_Open] = []
        self._root: _Open | None = None
        self._key: str | None = None  # the last line's, when its value was not in that line

    def take(self, number: int, line: str) -> None:
        found = _LINE.fullmatch(line)
        if found is None:
            raise _LeftError
        indent, dash, key = found.group("indent", "dash", "key")
        if dash is None and key is None:
            if found.lastgroup != "indent":
                raise _LeftError
            return  # empty, or a comment
        column = len(indent)
        self._turn_to(number, column, is_list=dash is not None)
        if dash is not None:
            column += len(dash)
            if key is not None:
                self._begin(number, column, {}, len(self._open[-1].data))
        if key is not None:
            self._add_key(number, column, key)
        self._take_value(number, key, found)

    def _take_value(self, number: int, key: str | None, found: re.Match[str]) -> None:
        kind = found.lastgroup or ""
        written, column = found[kind], found.start(kind) + 1
        match kind:
            case "plain":
                self._add(key, scalar(written), (number, column))
            case "quoted":
                self._add(key, written[1:-1], (number, column))
            case "empty":
                self._add(key, [] if written == "[]" else {}, (number, column))
            case "items" | "pairs":
                self._add_items(key, number, column - 1, written, [] if kind == "items" else {})
            case "key":
                self._key = key
            case _:
                raise _LeftError

    def end(self) -> tuple[dict[str, Any], Place]:
        if self._root is None or self._key is not None or self._nodes > self._bounds.nodes:
            raise _LeftError
        return self._root.data, self._root.place

    def _turn_to(self, number: int, column: int, *, is_list: bool) -> None:
        """Close what a line at a column ends, and open what it begins."""
        if self._root is None:
            if column or is_list:
                raise _LeftError
            self._begin(number, column, {}, None)
            self._root = self._open[0]
            return
        if self._key is not None:
            inner = self._open[-1].column
            if column < inner or (column == inner and not is_list):
                raise _LeftError  # nothing is a value too, but where it stands is hard to tell
            key, self._key = self._key, None
            self._begin(number, column, [] if is_list else {}, key)
            return
        while self._open and (last := self._open[-1]).column >= column:
            if last.column == column and isinstance(last.data, list) is is_list:
                return
            self._open.pop()
        raise _LeftError

    def _begin(self, number: int, column: int, data: Any, step: str | int | None) -> None:  # noqa: ANN401 - a dict or list
        """Open a mapping or list where `step` of the innermost leads."""
        place = Place((number, column + 1))
        depth = 1
        if step is not None:
            depth = self._open[-1].depth + 1
            self._put(step, data, place)
        if depth >= self._bounds.depth:  # what it holds would be too deep
            raise _LeftError
        self._nodes += 1
        self._open.append(_Open(column, depth, data, place))

    def _put(self, step: str | int, data: Any, place: Place) -> None:  # noqa: ANN401 - any value
        into = self._open[-1]
        if isinstance(step, str):
            into.data[step] = data
        else:
            into.data.append(data)
        into.place.items[step] = place

    def _add_key(self, number: int, column: int, key: str) -> None:
        keys = self._open[-1].place.keys
        if key in keys or not isinstance(scalar(key), str):
            raise _LeftError
        keys[key] = (number, column + 1)
        self._nodes += 1

    def _add(self, key: str | None, data: Any, position: Position) -> None:  # noqa: ANN401 - any value
        """Add a value to the innermost mapping, or without a key to the innermost list."""
        self._nodes += 1
        self._put(len(self._open[-1].data) if key is None else key, data, Place(position))

    def _add_items(self, key: str | None, number: int, start: int, written: str, data: Any) -> None:  # noqa: ANN401 - the same
        """Add the list or mapping that is written within brackets, the first of which is at `start`."""
        self._add(key, data, (number, start))
        if self._open[-1].depth + 1 >= self._bounds.depth:
            raise _LeftError
        outer = self._open[-1]
        step = len(outer.data) - 1 if key is None else key
        self._open.append(_Open(start, outer.depth + 1, data, outer.place.items[step]))
        for found in _ITEMS.finditer(written):
            inner, item = found["key"], found["item"]
            if inner is not None:
                self._add_key(number, start + found.start(), inner)
            value = item[1:-1] if item[0] in "'\"" else scalar(item)
            self._add(inner, value, (number, start + found.start("item") + 1))
        self._open.pop()
