"""The whole of YAML 1.2, from the events of ruamel's parser, with the position of every key and value.

Its round-trip loader gives positions too but takes twice as long. Left out on purpose, each with its own message: tags,
merge keys, keys that are not texts, several documents.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from attrs import Factory, define
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
from basestation_runner.config.places import MAX_NUMBER, Bounds, Place, Position, Steps, inside, scalar
from basestation_runner.config.rules import describe
from basestation_runner.text import quoted

_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def read(file: str, text: str, lengths: tuple[int, ...], bounds: Bounds) -> tuple[Any, Place, tuple[Fault, ...]]:
    """Given a document, return its data, their places, and the faults that did not keep it from being read.

    Raise ConfigErrors with one fault if it cannot be.
    """
    reader = _Reader(file, lengths, bounds)
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
    return data, place, tuple(reader.faults)


def _start(event: Event) -> Position:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _syntax(error: MarkedYAMLError) -> tuple[str, str]:
    problem = error.problem or error.context or "this is not YAML"
    if "'\\t'" in problem:
        return "a tab where only spaces are allowed", "indent with spaces"
    hint = f"see also line {error.context_mark.line + 1}" if error.context_mark else ""
    return f"not valid YAML: {problem}", hint


def _value_of(event: ScalarEvent) -> str | int | float | bool | None:
    return scalar(event.value) if event.style is None else str(event.value)


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
        raise ConfigErrors([Fault(self.file, *inside(self.lengths, *at), "", what, hint)])

    def add(self, event: Event, path: Steps, what: str, hint: str) -> None:
        self.faults.append(Fault(self.file, *inside(self.lengths, *_start(event)), dotted(path), what, hint))

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
            if _SURROGATE.search(event.value):
                self.add(event, path, "the text contains half of a surrogate pair", "write the character itself")
                event.value = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", event.value)  # rules encode what they check
            value = _Value(_value_of(event), Place(_start(event)))
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
