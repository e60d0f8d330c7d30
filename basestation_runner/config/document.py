"""One YAML 1.2 document, read with the position of every key and value, and bounded in size, depth and node count.

`no` is a text, `010` is ten, nothing is a date.
"""

import re
from typing import Any, NoReturn

from attrs import field, frozen

from basestation_runner.config import events
from basestation_runner.config.faults import ConfigErrors, Fault, dotted
from basestation_runner.config.places import OF_A_FILE, Bounds, Place, Position, Steps, inside

MAX_BYTES = 1 << 20

# Control characters, and what editors would count as a line break but YAML would not, or the other way round.
UNWANTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|\r(?!\n)")


@frozen
class Source:
    """The bytes of a config file and the name that its faults carry."""

    path: str
    text: bytes = field(repr=False)


@frozen
class Document:
    """A document as plain data, and the faults that did not keep it from being read."""

    file: str
    data: Any
    place: Place
    lengths: tuple[int, ...]  # of the file's lines
    faults: tuple[Fault, ...]

    def fault(self, path: Steps, what: str, hint: str = "", *, on_key: bool = False) -> Fault:
        """Given a path, return a fault at its value (or its key); at the entry's name if there is no such value."""
        return Fault(self.file, *self.position(path, on_key=on_key), dotted(path), what, hint)

    def position(self, path: Steps, *, on_key: bool = False) -> Position:
        place, position = self.place, self.place.position
        for depth, step in enumerate(path, start=1):
            last = depth == len(path)
            if step not in place.items:
                break
            key = place.keys.get(str(step))
            place = place.items[step]
            position = key if key and (on_key or not last) else place.position
        return inside(self.lengths, *position)


def parse(source: Source, bounds: Bounds = OF_A_FILE) -> Document:
    """Given a file's bytes, return its document. Raise ConfigErrors with one fault if it cannot be read as YAML."""
    text = _decoded(source)
    lengths = tuple(len(line) for line in text.removesuffix("\n").split("\n"))
    if max(lengths) > bounds.line:
        at = (lengths.index(max(lengths)) + 1, 1)
        _refuse(source.path, at, "the line is too long", f"at most {bounds.line} characters")
    data, place, faults = events.read(source.path, text, lengths, bounds)
    return Document(source.path, data, place, lengths, faults)


def _decoded(source: Source) -> str:
    if len(source.text) > MAX_BYTES:
        _refuse(source.path, (1, 1), "the file is too large", f"at most {MAX_BYTES >> 20} MiB")
    try:
        text = source.text.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = source.text[: error.start].decode("utf-8").removeprefix("\ufeff")
        _refuse(source.path, _end_of(before), "the file is not UTF-8 from here on", "save it as UTF-8")
    if found := UNWANTED.search(text):
        what = f"the character U+{ord(found[0]):04X} is not allowed"
        _refuse(source.path, _end_of(text[: found.start()]), what, "remove it")
    return text


def _refuse(file: str, position: Position, what: str, hint: str) -> NoReturn:
    raise ConfigErrors([Fault(file, *position, "", what, hint)])


def _end_of(text: str) -> Position:
    return text.count("\n") + 1, len(text) - text.rfind("\n")
