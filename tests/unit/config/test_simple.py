"""What is read line by line is what the parser of the whole of YAML finds, and most files are read so."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.config import events, simple
from basestation_runner.config.places import OF_A_FILE, Bounds, Place
from basestation_runner.config.profiles import BUILTIN

if TYPE_CHECKING:
    from basestation_runner.config.faults import Fault

README = (Path(__file__).parents[3] / "README.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)

PLAIN = [
    "a",
    "5",
    "-5",
    "0x10",
    "1.5",
    "true",
    "no",
    "/srv/a b/c:d",
    "a  b",
    "12:30",
    "~",
    "2026-11-30",
    "(a)",
    "--a",
]
QUOTED = ["'a: b'", '"{job_id}"', "''", '""', "' a '", '"# no comment"']
SIMPLE = [*PLAIN, *QUOTED, "[]", "{}", "[a, 5]", "[a,b]", "[/a/b]", "['a, b', \"]\", true]", "{a: b}", "{a: 5, b: '}'}"]
OTHER = [
    *(
        "",
        "-",
        "- a",
        "? a",
        ": a",
        "a: b",
        "a:",
        "a :b",
        "a #b",
        "#",
        "&x a",
        "*x",
        "!t a",
        "!!str 5",
        "|",
        ">-",
        "@a",
    ),
    *("`a", "%a", "'a", "'a' b", "'it''s'", '"a', '"\\n"', '"a" "b"', "{a: b}", "{a", "[a", "[a, ]", "[a: b]", "[ a ]"),
    *("[a]b", "[*x]", "[-]", "[a, [b]]", "a\tb", "\ta", "é", "---", "...", "<<", "a, b]", "x" * 1100, "9" * 101),
]
KEYS = [*"abcdefg", "x-y", "a.b", "k/l", "_", "watch_dir"]
OTHER_KEYS = ["5", "true", "null", "'a'", '"a"', "<<", "a b", "é", "[a]", "? a", "-", "~", "a:b", "1.5", "x" * 130]


@st.composite
def documents(draw: st.DrawFn, *, keys: list[str] = KEYS, values: list[str] = SIMPLE) -> str:
    """Mappings, lists, and scalars, as people and programs write them."""
    step = draw(st.sampled_from([2, 4]))
    remark = st.sampled_from(["", "", "", "", " # a remark: of all", "  "])
    between = st.sampled_from(["", "", "", "", "\n", "# - a: remark\n", "  # one more\n", "   \n"])

    def rows(indent: str, depth: int, *, may_be_list: bool = True) -> list[str]:
        is_list = may_be_list and draw(st.booleans())
        found: list[str] = []
        for key in draw(st.lists(st.sampled_from(keys), min_size=1, max_size=4, unique=True)):
            space = draw(st.sampled_from([" ", " ", "   "]))
            lead = f"-{space}" if is_list else f"{key}:{space}"
            if depth < 3 and not is_list and draw(st.booleans()):
                found.append(f"{indent}{key}:{draw(remark)}")
                found += rows(indent + " " * step, depth + 1)
            elif depth < 3 and is_list and draw(st.booleans()):
                inner = rows(indent + " " * len(lead), depth + 1, may_be_list=False)
                found += [indent + lead + inner[0].lstrip(), *inner[1:]]
            else:
                found.append(f"{indent}{lead}{draw(st.sampled_from(values))}{draw(remark)}")
        if is_list and draw(st.booleans()):  # a list may begin where its key does
            found = [row.replace(" " * step, "", 1) for row in found]
        return found

    text = "".join(draw(between) + row + "\n" for row in rows("", 0, may_be_list=False))
    return draw(st.sampled_from(["", "", "---\n"])) + draw(st.sampled_from([text, text.rstrip("\n")]))


@st.composite
def changed(draw: st.DrawFn) -> str:
    """Documents with something in them that may make them another one, or none at all."""
    text = draw(documents(keys=[*KEYS, *OTHER_KEYS], values=[*SIMPLE, *OTHER]))
    place = draw(st.integers(0, len(text)))
    piece = draw(st.sampled_from(["", "", " ", "  ", "\n", "-", "- ", ":", ": ", "#", " #", "\t", *OTHER, *OTHER_KEYS]))
    return text[:place] + piece + text[place + draw(st.integers(0, 2)) :]


def whole(text: str, bounds: Bounds = OF_A_FILE) -> tuple[Any, Place, tuple[Fault, ...]]:
    lengths = tuple(map(len, text.removesuffix("\n").split("\n")))
    return events.read("f", text, lengths, bounds)


def typed(data: object) -> object:
    """Tell 5 from 5.0, true from 1, and one order of keys from another."""
    match data:
        case dict():
            return [(key, typed(value)) for key, value in data.items()]
        case list():
            return [typed(value) for value in data]
    return type(data), data


def require_same(text: str, found: tuple[Any, Place], bounds: Bounds = OF_A_FILE) -> None:
    data, place, faults = whole(text, bounds)
    assert not faults
    assert typed(found[0]) == typed(data)
    assert found[1] == place


@given(documents())
def test_what_is_simple_is_read_as_the_parser_reads_it(text: str) -> None:
    found = simple.read(text, OF_A_FILE)
    assert found is not None
    require_same(text, found)


@given(changed())
def test_whatever_else_there_is_is_read_the_same_or_left_to_the_parser(text: str) -> None:
    if (found := simple.read(text, OF_A_FILE)) is not None:
        require_same(text, found)


@given(st.text(st.sampled_from(" \n-:#ab5'\"[]{},&*!|>?%@`~.<\t\u00e9")))
def test_any_text_is_read_the_same_or_left_to_the_parser(text: str) -> None:
    if (found := simple.read(text, OF_A_FILE)) is not None:
        require_same(text, found)


@given(documents(), st.integers(1, 6), st.integers(1, 30))
def test_what_exceeds_the_bounds_is_left_to_the_parser_to_refuse(text: str, depth: int, nodes: int) -> None:
    bounds = Bounds(depth=depth, nodes=nodes)
    if (found := simple.read(text, bounds)) is not None:
        require_same(text, found, bounds)


@pytest.mark.parametrize(
    "text",
    [
        *EXAMPLES,
        files(events.__package__).joinpath(BUILTIN).read_text(),
        "one:\n  watch_dir: /srv/one/rundir\n  runner_user: runner-one\n  groups: [data, 7]\n",
    ],
)
def test_usual_files_need_no_parser(text: str) -> None:
    assert EXAMPLES
    found = simple.read(text, OF_A_FILE)
    assert found is not None
    require_same(text, found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a remark\n",
        " a: b\n",
        "- a\n",
        "a\n",
        "a:\n",
        "a:\nb: c\n",
        "a:\n  b:\nc: d\n",
        "a: b\n  c\n",
        "a: b\n  c: d\n",
        "a:\n    b: c\n  d: e\n",
        "a:\n  - b\n  c: d\n",
        "a:\n  b: c\n  - d\n",
        "a:\n- - b\n",
        "a: b: c\n",
        "a: 'b'#c\n",
        "a: [b]#c\n",
        "a: 'it''s'\n",
        "a: b\na: c\n",
        "a: {b: c, b: d}\n",
        "a: [b\n",
        "a: [[b]]\n",
        "5: a\n",
        "a: {5: b}\n",
        "<<: a\n",
        "a: b\r\n",
        "a:\tb\n",
        "---\n---\na: b\n",
        "a: b\n---\n",
        "a: b\n...\n",
        "%YAML 1.1\n---\na: b\n",
    ],
)
def test_what_is_rare_or_wrong_or_hard_to_tell_is_left_to_the_parser(text: str) -> None:
    assert simple.read(text, OF_A_FILE) is None
