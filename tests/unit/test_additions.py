"""What the lines after a request's first may say, how anything else is answered, and what that may cost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.config.additions import MAX_BYTES, NOTHING, Additions, AdditionsError, of_data, of_lines
from basestation_runner.config.parts import Limits
from basestation_runner.config.resreq import parse as parse_resreq
from basestation_runner.runfile import Request, RequestError, parse
from tests.fuzz.bounds import bounded

FIRST = "/h /m /l s a\n"
ALL = """
application: solver
env: {CASE: "7", EMPTY: ''}
pre_exec: [/srv/steps/prepare, --quiet]
post_exec: [/srv/steps/tidy]
limits:
  runtime: 90m
  memory: 2048M
  cpu: 150%
  tasks: 20
groups: [science, 4711]
tasks: 4
resreq: >-
  select[mem_gb>=32&&ssd]
  rusage[scratch=5]
inputs: [/data/b, /data/a/, /data/b]
outputs: [/out]
"""


def reason(lines: str) -> str:
    with pytest.raises(RequestError) as raised:
        parse((FIRST + lines).encode())
    return raised.value.reason


def test_further_lines_say_what_the_job_adds() -> None:
    made = parse((FIRST + ALL).encode())
    assert (made.home, made.args) == ("/h", ("a",))
    assert made.additions == Additions(
        application="solver",
        env=(("CASE", "7"), ("EMPTY", "")),
        pre_exec=("/srv/steps/prepare", "--quiet"),
        post_exec=("/srv/steps/tidy",),
        limits=Limits(runtime=5400, memory=2 << 30, cpu=150, tasks=20),
        groups=("science", 4711),
        tasks=4,
        resreq=parse_resreq("select[mem_gb >= 32 && ssd] rusage[scratch=5]"),
        inputs=("/data/a", "/data/b"),
        outputs=("/out",),
    )


@pytest.mark.parametrize("lines", ["", "\n", " \r\n\t", "# a remark\n", "--- \n", "{}", "null"])
def test_lines_that_say_nothing_add_nothing(lines: str) -> None:
    assert parse((FIRST + lines).encode()) == Request("/h", "/m", "/l", "s", ("a",))


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        ("user: root", "line 2, column 1: user: unknown field (known: application, env, pre_exec, "),
        ("imputs: []", "line 2, column 1: imputs: unknown field (did you mean inputs?)"),
        ("mode: direct", "line 2, column 1: mode: unknown field "),
        ("\n\ntasks: 0", "line 4, column 8: tasks: the number 0 is out of range (from 1 to 4194304)"),
        ("tasks: 1\ntasks: 2", "line 3, column 1: tasks: 'tasks' is there twice (first in line 2)"),
        ("env: {A: b\n", "line 2, column 11: not valid YAML: expected ',' or '}'"),
        ("env: {A: 5}", "line 2, column 10: env.A: expected text, found the number 5 (put the value in quotes)"),
        ("env: {RUNNER_SITE: b}", "line 2, column 7: env.RUNNER_SITE: RUNNER_SITE is always set by the runner "),
        ('env: {A: "\\0"}', "line 2, column 10: env.A: the value contains a NUL character"),
        ("a: &x 1\nb: *x", "line 2, column 4: anchors and aliases are not supported (write the value itself)"),
        ("a: *x", "line 2, column 4: anchors and aliases are not supported (write the value itself)"),
        ("tasks: !!int 4", "line 2, column 8: tasks: the tag 'tag:yaml.org,2002:int' is not supported (remove it)"),
        ("tasks: 1\n---\ntasks: 2", "line 3, column 1: a second document begins here (write one document a file)"),
        ("[[[[[]]]]]", "line 2, column 5: the file is nested too deep (at most 4 levels)"),
        ("x" * 4097, "line 2, column 1: the line is too long (at most 4096 characters)"),
        ("# \n" * 6000, "its lines after the first are longer than 16 KiB"),
        ("\x07", "line 2, column 1: the character U+0007 is not allowed (remove it)"),
        ("resreq: select[", "line 2, column 9: resreq: character 8: expected a name, found the end "),
        ("inputs: [data]", "line 2, column 10: inputs[0]: 'data' is not an absolute path "),
        ("inputs: [/data/../etc]", "line 2, column 10: inputs[0]: '/data/../etc' contains '..' "),
        ("groups: []", "line 2, column 9: groups: the list of groups is empty "),
        ("groups: [root]", "line 2, column 10: groups[0]: jobs never run with group 0 (root) "),
        ("limits: {runtime: 5}", "line 2, column 19: limits.runtime: expected a duration, found the number 5 "),
        ("pre_exec: [x]", "line 2, column 12: pre_exec[0]: 'x' is not an absolute path "),
        ("application: ../x", "line 2, column 14: application: '../x' is not a valid name "),
        ("application: null", "line 2, column 14: application: expected text, found nothing"),
    ],
)
def test_anything_else_is_refused_with_its_place(lines: str, answer: str) -> None:
    assert reason(lines).startswith(answer)


def test_the_first_few_of_many_mistakes_are_told_in_one_short_line() -> None:
    told = reason("".join(f"{'x' * 100}{number}: 1\n" for number in range(90)))
    assert told.count("unknown field") <= 3
    assert told.endswith("; and 87 more")
    assert len(told) < 500


def test_a_request_of_one_line_needs_no_yaml_parser() -> None:
    script = f"""
import sys
from basestation_runner import runfile
runfile.parse({(FIRST + chr(10)).encode()!r})
assert "ruamel.yaml" not in sys.modules
runfile.parse({(FIRST + ALL).encode()!r})
assert "ruamel.yaml" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


COSTLY = {
    "brackets": "[" * MAX_BYTES,
    "braces": "{" * MAX_BYTES,
    "keys": "".join(f"a{number}: b\n" for number in range(MAX_BYTES)),
    "items": "[" + "a," * MAX_BYTES,
    "escapes": 'a: "' + "\\x41" * MAX_BYTES,
    "tags": "!" + "a" * MAX_BYTES,
    "directives": "%a\n" * MAX_BYTES,
    "words": "a:\n" + " x\n" * MAX_BYTES,
}


@pytest.mark.parametrize("name", COSTLY)
def test_what_costs_a_parser_most_is_answered_soon(name: str) -> None:
    content = COSTLY[name]
    lines = "\n".join(content[start : start + 4000] for start in range(0, MAX_BYTES - 100, 4000))
    with bounded(2.0):
        reason(lines[: MAX_BYTES - 10])


WORDS = st.text(st.characters(max_codepoint=0xD7FF, exclude_categories=("C", "Z")), min_size=1, max_size=10)
PATHS = st.lists(WORDS.filter(lambda word: "/" not in word and word not in {".", ".."}), min_size=1, max_size=3).map(
    lambda parts: "/" + "/".join(parts)
)
TEXTS = st.characters(min_codepoint=1, max_codepoint=0xD7FF)  # JSON writes others as pairs of halves
DATA = st.fixed_dictionaries(
    {},
    optional={
        "env": st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text(TEXTS)),
        "pre_exec": st.tuples(PATHS, WORDS).map(list),
        "limits": st.fixed_dictionaries(
            {},
            optional={
                "runtime": st.tuples(st.integers(1, 3000), st.sampled_from("smhd")).map(
                    lambda pair: f"{pair[0]}{pair[1]}"
                ),
                "memory": st.tuples(st.integers(1, 5000), st.sampled_from("MGT")).map(
                    lambda pair: f"{pair[0]}{pair[1]}"
                ),
                "cpu": st.integers(1, 500).map("{}%".format),
                "tasks": st.integers(1, 500),
            },
        ),
        "groups": st.lists(st.integers(1, 99) | st.sampled_from(["a", "b"]), min_size=1, max_size=4),
        "tasks": st.integers(1, 99),
        "resreq": st.sampled_from(["select[a||b]", "rusage[a=1,b=2] order[-a]", "", "same[b:a]"]),
        "inputs": st.lists(PATHS, max_size=3),
    },
)


@given(DATA)
def test_additions_are_the_same_after_the_way_through_ledger_and_wire(data: dict[str, object]) -> None:
    made = of_data(data)
    assert of_data(json.loads(json.dumps(made.data))) == made
    assert (made.data == {}) is (made == NOTHING)


@given(DATA)
def test_lines_say_the_same_as_data(data: dict[str, object]) -> None:
    text = "\n" + json.dumps(data)  # JSON is YAML, but for lines that are too long
    if len(text) <= 4000:
        assert of_lines(text) == of_data(data)


@pytest.mark.parametrize(
    "data", [{"env": []}, {"tasks": "4"}, {"limits": {"x": 1}}, {"more": 1}, {"application": "a"}, {"env": {"A": "\0"}}]
)
def test_what_no_watcher_writes_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(AdditionsError):
        of_data(data)


@given(st.text(st.sampled_from("abenvtasks:[]{}&*!-?|>%#'\",\n \t\u2028\x85\ud7ff0"), max_size=200))
def test_any_lines_are_taken_or_answered_in_one_short_line(lines: str) -> None:
    try:
        parse((FIRST + lines).encode())
    except RequestError as error:
        short = error.reason.isprintable() and len(error.reason) < 500
        assert short, error.reason  # noqa: PT017 - that it is raised is not what is tested
