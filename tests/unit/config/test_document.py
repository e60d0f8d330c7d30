"""How YAML is read: which scalars are what, where things stand, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from basestation_runner.config.document import MAX_BYTES, Document, Source, parse
from basestation_runner.config.faults import ConfigErrors
from basestation_runner.config.places import MAX_DEPTH, MAX_LINE, MAX_NODES


def read(text: str) -> Document:
    return parse(Source("f", text.encode()))


def refusal(content: str | bytes) -> str:
    with pytest.raises(ConfigErrors) as raised:
        parse(Source("f", content.encode() if isinstance(content, str) else content))
    (fault,) = raised.value.faults
    return str(fault).removeprefix("f:")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("''", ""),
        ("'5'", "5"),
        ("5", 5),
        ("-5", -5),
        ("010", 10),
        ("0o10", 8),
        ("0x10", 16),
        ("1_000", "1_000"),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        (".inf", ".inf"),
        ("2026-11-30", "2026-11-30"),
        ("12:30:45", "12:30:45"),
        ("9" * 101, "9" * 101),
        ("1e999", math.inf),
        ("a b", "a b"),
        ("=", "="),
    ],
)
def test_scalars_are_those_of_yaml_1_2(written: str, value: Any) -> None:  # noqa: ANN401 - any scalar
    found = read(f"a: {written}").data["a"]
    assert found == value
    assert type(found) is type(value)


def test_places_of_keys_and_values_are_exact_at_any_depth() -> None:
    document = read('# c\na:\n  - {b: "c",  d: [1,   2]}\n  -\n    e: |\n      text\nf:   g\n')
    places = {
        ("a",): ((2, 1), (3, 3)),
        ("a", 0): ((3, 5), (3, 5)),
        ("a", 0, "b"): ((3, 6), (3, 9)),
        ("a", 0, "d", 1): ((3, 24), (3, 24)),
        ("a", 1, "e"): ((5, 5), (5, 8)),
        ("f",): ((7, 1), (7, 6)),
    }
    for path, (key, value) in places.items():
        assert document.position(path, on_key=True) == key
        assert document.position(path) == value


def test_the_place_of_what_is_missing_is_its_entry() -> None:
    document = read("a:\n  b: 1\nc: [{d: 1}]\n")
    assert document.position(("a", "x")) == (1, 1)
    assert document.position(("c", 0, "x")) == (3, 5)
    assert document.position(("c", 5, "x")) == (3, 1)
    assert document.position(("x",)) == (1, 1)


def test_an_alias_stands_for_the_same_value_and_place() -> None:
    document = read("a: &x {b: 1}\nc: *x\nd: [*x, *x]\n")
    assert document.data == {"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}, {"b": 1}]}
    assert document.position(("d", 1, "b")) == (1, 11)


def test_a_byte_order_mark_and_windows_line_ends_are_harmless() -> None:
    document = parse(Source("f", b"\xef\xbb\xbfa: 1\r\nb: c\r\n"))
    assert document.data == {"a": 1, "b": "c"}
    assert document.position(("b",)) == (2, 4)


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("a: b\n---\nc: d\n", "2:1: a second document begins here (write one document a file)"),
        ("a:\n\tb: c\n", "2:1: a tab where only spaces are allowed (indent with spaces)"),
        ("a: *b\n", "1:4: the alias '*b' has no anchor before it (write the value itself)"),
        ("a: &b [*b]\n", "1:8: the alias '*b' stands inside its own anchor (write the value itself)"),
        ("a: 'b\n", "1:6: not valid YAML: found unexpected end of stream (see also line 1)"),
        (b"a: b\nc: \xff\n", "2:4: the file is not UTF-8 from here on (save it as UTF-8)"),
        ("a: b\nc: \0\n", "2:4: the character U+0000 is not allowed (remove it)"),
        ("a: b\rc: d", "1:5: the character U+000D is not allowed (remove it)"),
        ("a: b\u2028c", "1:5: the character U+2028 is not allowed (remove it)"),
        ("a: \x1b[0m", "1:4: the character U+001B is not allowed (remove it)"),
        ('b: c\na: "\\UFFFFFFFF"', "2:1: not valid YAML: what follows holds a character that does not exist"),
        ('b: c\na: "\\U00110000"', "2:1: not valid YAML: what follows holds a character that does not exist"),
        ("[" * 30, f"1:{MAX_DEPTH + 1}: the file is nested too deep (at most {MAX_DEPTH} levels)"),
        ("a: " + "b" * MAX_LINE, f"1:1: the line is too long (at most {MAX_LINE} characters)"),
        ("#" * (MAX_BYTES + 1), "1:1: the file is too large (at most 1 MiB)"),
    ],
)
def test_what_cannot_be_read_is_one_fault_with_its_place(content: str | bytes, answer: str) -> None:
    assert refusal(content) == answer


@pytest.mark.parametrize(
    ("content", "answer", "data"),
    [
        (
            "a: 1\nb: 2\na: 3\na: 4\n",
            ["3:1: a: 'a' is there twice (first in line 1)", "4:1: a: 'a' is there twice (first in line 1)"],
            {"a": 1, "b": 2},
        ),
        ("a: {b: 1, b: 2}", ["1:11: a.b: 'b' is there twice (first in line 1)"], {"a": {"b": 1}}),
        ("5: a\nb: c", ['1:1: a key must be a text, found the number 5 (write "5")'], {"b": "c"}),
        ("[a]: b", ["1:1: a key must be a text, found a list (write a text)"], {}),
        (": b", ["1:1: a key must be a text, found nothing (write a text)"], {}),
        (
            "a: &x {b: 1}\nc:\n  <<: *x\n",
            ["3:3: c.'<<': merge keys (<<) are not supported (write the fields out, or alias single values)"],
            {"a": {"b": 1}, "c": {}},
        ),
        ("a: !!str 5", ["1:4: a: the tag 'tag:yaml.org,2002:str' is not supported (remove it)"], {"a": 5}),
        ("a: !x {}", ["1:4: a: the tag '!x' is not supported (remove it)"], {"a": {}}),
        (
            'a: "\\ud800"',
            ["1:4: a: the text contains half of a surrogate pair (write the character itself)"],
            {"a": "\ufffd"},
        ),
    ],
)
def test_what_can_be_left_out_is_a_fault_beside_others(content: str, answer: list[str], data: Any) -> None:  # noqa: ANN401
    document = read(content)
    assert [str(fault).removeprefix("f:") for fault in document.faults] == answer
    assert document.data == data


def test_aliases_that_expand_hugely_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert f"the file holds too many values (at most {MAX_NODES}, aliases expanded)" in refusal("\n".join(lines))


def test_aliases_that_nest_deeply_are_refused() -> None:
    lines = ["a0: &a0 []"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 30)]
    assert f"the file is nested too deep (at most {MAX_DEPTH} levels)" in refusal("\n".join(lines))


def test_a_source_does_not_show_its_content() -> None:
    assert repr(Source("f", b"secret")) == "Source(path='f')"
