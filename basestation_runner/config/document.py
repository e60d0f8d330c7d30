"""One YAML 1.2 document, read with the position of every key and value, and bounded in size, depth and node count.

Built straight from the parser's events: ruamel's round-trip loader gives positions too but takes twice as long, and the
core schema of YAML 1.2 is few enough rules to state here (`no` is a text, `010` is ten, nothing is a date).
Left out on purpose, each with its own message: tags, merge keys, keys that are not texts, several documents.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from attrs import Factory, define, field, frozen
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
)

from basestation_runner.config.faults import ConfigErrors, Fault, dotted
from basestation_runner.config.rules import Step, describe
from basestation_runner.text import quoted

MAX_BYTES = 1 << 20
MAX_LINE = 32768  # characters: ruamel's time for a tag grows with the square of its length
MAX_DEPTH = 20
MAX_NODES = 100_000  # counted after aliases are expanded: about five times what 1,000 sites need
MAX_NUMBER = 100  # characters; what is longer stays a text


@frozen(kw_only=True)
class Bounds:
    """What a document may cost. Whoever may not repeat values gets no anchors and no aliases."""

    line: int = MAX_LINE
    depth: int = MAX_DEPTH
    nodes: int = MAX_NODES
    may_repeat: bool = True


Position = tuple[int, int]
Steps = tuple[Step, ...]

# Control characters, and what editors would count as a line break but YAML would not, or the other way round.
UNWANTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|\r(?!\n)")
SURROGATE = re.compile(r"[\ud800-\udfff]")
INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
CONSTANTS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@frozen
class Source:
    """The bytes of a config file and the name that its faults carry."""

    path: str
    text: bytes = field(repr=False)


@define
class Place:
    """Where a value stands, where each of its keys stands, and the places of what it holds."""

    position: Position
    keys: dict[str, Position] = Factory(dict)
    items: dict[Step, "Place"] = Factory(dict)


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
        return _inside(self.lengths, *position)


def parse(source: Source, bounds: Bounds = Bounds()) -> Document:
    """Given a file's bytes, return its document. Raise ConfigErrors with one fault if it cannot be read as YAML."""
    text = _decoded(source)
    lengths = tuple(len(line) for line in text.removesuffix("\n").split("\n"))
    reader = _Reader(source.path, lengths, bounds)
    if max(lengths) > bounds.line:
        at = (lengths.index(max(lengths)) + 1, 1)
        reader.refuse("the line is too long", f"at most {bounds.line} characters", at=at)
    events = YAML(typ="safe", pure=True).parse(text)
    try:
        data, place = reader.document(events)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reader.refuse(*_syntax(error), at=(mark.line + 1, mark.column + 1) if mark else reader.last)
    except (ValueError, OverflowError):  # how ruamel takes "\UFFFFFFFF": without a position
        reader.refuse("not valid YAML: what follows holds a character that does not exist", at=reader.last)
    finally:
        events.close()
    return Document(source.path, data, place, lengths, tuple(reader.faults))


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


def _inside(lengths: tuple[int, ...], line: int, column: int) -> Position:
    """Given a parser's position, return one that is in the file: it may be behind the last line's end."""
    if line > len(lengths):
        return len(lengths), lengths[-1] + 1
    return line, min(column, lengths[line - 1] + 1)


def _start(event: Event) -> Position:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _syntax(error: MarkedYAMLError) -> tuple[str, str]:
    problem = error.problem or error.context or "this is not YAML"
    if "'\\t'" in problem:
        return "a tab where only spaces are allowed", "indent with spaces"
    hint = f"see also line {error.context_mark.line + 1}" if error.context_mark else ""
    return f"not valid YAML: {problem}", hint


def _scalar(event: ScalarEvent) -> str | int | float | bool | None:
    value: str = event.value
    if event.style is not None:
        return value
    if value in CONSTANTS:
        return CONSTANTS[value]
    if value[0] in "+-.0123456789" and len(value) <= MAX_NUMBER:
        if INTEGER.fullmatch(value):
            return int(value, 0 if value[:2] in {"0o", "0x"} else 10)
        if FLOAT.fullmatch(value):
            return float(value)
    return value


@define
class _Value:
    """A value, its place, and what an alias to it costs: its nodes and how deep they go."""

    data: Any
    place: Place
    nodes: int = 1
    height: int = 1


@define
class _Reader:
    """Builds values from the events of one document, and collects what is wrong with them."""

    file: str
    lengths: tuple[int, ...]
    bounds: Bounds
    faults: list[Fault] = Factory(list)
    anchors: dict[str, _Value | None] = Factory(dict)
    nodes: int = 0
    last: Position = (1, 1)

    def refuse(self, what: str, hint: str = "", *, at: Position) -> NoReturn:
        _refuse(self.file, _inside(self.lengths, *at), what, hint)

    def add(self, event: Event, path: Steps, what: str, hint: str) -> None:
        self.faults.append(Fault(self.file, *_inside(self.lengths, *_start(event)), dotted(path), what, hint))

    def document(self, events: Iterator[Any]) -> tuple[Any, Place]:
        value = _Value(None, Place((1, 1)))
        begun = False
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if begun:
                    self.refuse("a second document begins here", "write one document a file", at=_start(event))
                begun = True
            elif isinstance(event, NodeEvent):
                value = self.value(event, events, (), 1)
        return value.data, value.place

    def value(self, event: Any, events: Iterator[Any], path: Steps, depth: int) -> _Value:  # noqa: ANN401 - ruamel's events share no useful type
        if (isinstance(event, AliasEvent) or event.anchor) and not self.bounds.may_repeat:
            self.refuse("anchors and aliases are not supported", "write the value itself", at=_start(event))
        if isinstance(event, AliasEvent):
            return self.alias(event, depth)
        self.count(event, 1, depth)
        if event.anchor:
            self.anchors[event.anchor] = None
        if event.ctag is not None:
            self.add(event, path, f"the tag {quoted(str(event.ctag))} is not supported", "remove it")
        if isinstance(event, ScalarEvent):
            if SURROGATE.search(event.value):
                self.add(event, path, "the text contains half of a surrogate pair", "write the character itself")
                event.value = SURROGATE.sub("\N{REPLACEMENT CHARACTER}", event.value)  # rules encode what they check
            value = _Value(_scalar(event), Place(_start(event)))
        elif isinstance(event, MappingStartEvent):
            value = self.mapping(event, events, path, depth)
        else:
            value = self.sequence(event, events, path, depth)
        if event.anchor:
            self.anchors[event.anchor] = value
        return value

    def count(self, event: Event, nodes: int, deepest: int) -> None:
        self.last = _start(event)
        self.nodes += nodes
        if self.nodes > self.bounds.nodes:
            hint = f"at most {self.bounds.nodes}" + ", aliases expanded" * self.bounds.may_repeat
            self.refuse("the file holds too many values", hint, at=_start(event))
        if deepest > self.bounds.depth:
            self.refuse("the file is nested too deep", f"at most {self.bounds.depth} levels", at=_start(event))

    def alias(self, event: AliasEvent, depth: int) -> _Value:
        value = self.anchors.get(event.anchor)
        if value is None:
            shown = quoted("*" + event.anchor)
            what = "stands inside its own anchor" if event.anchor in self.anchors else "has no anchor before it"
            self.refuse(f"the alias {shown} {what}", "write the value itself", at=_start(event))
        self.count(event, value.nodes, depth + value.height - 1)
        return value

    def sequence(self, event: NodeEvent, events: Iterator[Any], path: Steps, depth: int) -> _Value:
        place = Place(_start(event))
        data: list[Any] = []
        nodes = height = 1
        for entry in events:
            if isinstance(entry, SequenceEndEvent):
                break
            value = self.value(entry, events, (*path, len(data)), depth + 1)
            place.items[len(data)] = value.place
            data.append(value.data)
            nodes += value.nodes
            height = max(height, value.height + 1)
        return _Value(data, place, nodes, height)

    def mapping(self, event: NodeEvent, events: Iterator[Any], path: Steps, depth: int) -> _Value:
        place = Place(_start(event))
        data: dict[str, Any] = {}
        nodes = height = 1
        for entry in events:
            if isinstance(entry, MappingEndEvent):
                break
            key = self.value(entry, events, path, depth + 1)
            at = (*path, key.data) if isinstance(key.data, str) else path
            value = self.value(next(events), events, at, depth + 1)
            nodes += key.nodes + value.nodes
            height = max(height, key.height + 1, value.height + 1)
            if self.acceptable(entry, key.data, at, place):
                place.keys[key.data] = _start(entry)
                place.items[key.data] = value.place
                data[key.data] = value.data
        return _Value(data, place, nodes, height)

    def acceptable(self, event: Event, key: object, path: Steps, place: Place) -> bool:
        """Given a key, say whether its value is to be kept; if not, note why."""
        if not isinstance(key, str):
            written = event.value if isinstance(event, ScalarEvent) else ""
            hint = f'write "{written}"' if written and len(written) <= MAX_NUMBER else "write a text"
            self.add(event, path, f"a key must be a text, found {describe(key)}", hint)
        elif key == "<<" and isinstance(event, ScalarEvent) and event.style is None:
            self.add(event, path, "merge keys (<<) are not supported", "write the fields out, or alias single values")
        elif key in place.keys:
            self.add(event, path, f"{quoted(key)} is there twice", f"first in line {place.keys[key][0]}")
        else:
            return True
        return False
