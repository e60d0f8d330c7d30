"""Resource requirements: what is taken, in which one form it is written, where a mistake is, what a host meets."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.config.resreq import MAX_HEIGHT, MAX_LENGTH, MAX_OPEN, Requirement, holds, parse
from basestation_runner.config.rules import RuleError

HOST: dict[str, str | float | bool] = {"os": "linux", "mem_gb": 64, "load": 0.5, "ssd": True, "tape": False}


def test_each_section_is_taken() -> None:
    written = "select[os == linux && (ssd || mem_gb>=64)] rusage[scratch=20,foam=1] span[ptile=4] same[b:a] order[m:-l]"
    assert parse(written) == Requirement(
        select=("(mem_gb >= 64 || ssd)", "os == linux"),
        rusage=(("foam", 1), ("scratch", 20)),
        span="ptile=4",
        same="a:b",
        order="m:-l",
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("select[a&&b]", "select[ b && (a) && b ]"),
        ("select[!!a]", "select[a]"),
        ("select[a == 'b']", "select[a==b]"),
        ("rusage[a=1] select[b]", "select[b]rusage[a=1]"),
        ("same[a:b:a]", "same[b:a]"),
        ("select[a == 1.50]", "select[a == 1.5]"),
    ],
)
def test_what_means_the_same_is_written_the_same(one: str, other: str) -> None:
    assert str(parse(one)) == str(parse(other))


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("mem>5", "character 1: expected select, rusage, span, same or order, found 'mem'"),
        ("select[a", "character 9: expected ']', found the end"),
        ("select[]", "character 8: expected a name, found ']'"),
        ("select[a b]", "character 10: expected ']', found 'b'"),
        ("select[a ==]", "character 12: expected a value after ==, found ']'"),
        ("select[a > b]", "character 12: expected a number after >, found 'b'"),
        ("select[a = 1]", "character 10: expected ']', found '='"),
        ("select[a; b]", "character 9: ';' is not expected here"),
        ("select[a] select[b]", "character 11: select is there twice"),
        ("rusage[a=0]", "character 10: expected a number from 1 to 2147483647, found '0'"),
        ("rusage[a=9999999999999]", "character 10: expected a number from 1 to 2147483647, found '9999999999999'"),
        ("rusage[a=x]", "character 10: expected a whole number, found 'x'"),
        ("rusage[a=1, a=1]", "character 13: a is there twice"),
        ("rusage[a=1:duration=5]", "character 11: alternatives, durations and decays are not supported"),
        ("rusage[a=1 || b=1]", "character 12: alternatives, durations and decays are not supported"),
        ("span[hosts=2]", "character 12: expected 1, found '2'"),
        ("span[block=2]", "character 6: expected hosts or ptile, found 'block'"),
        ("same[-a]", "character 6: expected a name, found '-'"),
        ("{select[a]} || {select[b]}", "character 1: compound and alternative requirements"),
        ("2*{select[a]}", "character 1: compound and alternative requirements"),
        ("select[a] || select[b]", "character 11: compound and alternative requirements"),
        ("select[" + "(" * (MAX_OPEN + 1), f"character {MAX_OPEN + 8}: the condition is nested too deep"),
        ("a" * (MAX_LENGTH + 1), "the resource requirement is too long"),
    ],
)
def test_a_mistake_is_answered_with_its_place(written: str, answer: str) -> None:
    with pytest.raises(RuleError) as raised:
        parse(written)
    assert raised.value.what.startswith(answer)


def test_what_would_be_too_long_when_it_is_written_out_is_refused() -> None:
    written = "select[" + "&&".join(f"a{number}" for number in range(MAX_LENGTH // 6)) + "]"
    assert len(written) <= MAX_LENGTH
    with pytest.raises(RuleError, match="too long"):
        parse(written)


def test_a_condition_is_nested_so_deep_and_no_deeper() -> None:
    def nested(levels: int) -> str:
        condition = "a"
        for level in range(levels):
            condition = f"({condition}) {('&&', '||')[level % 2]} b{level}"
        return f"select[{condition}]"

    assert parse(nested(MAX_HEIGHT)).select
    with pytest.raises(RuleError, match="nested too deep"):
        parse(nested(MAX_HEIGHT + 1))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("ssd", True),
        ("tape", False),
        ("unheard", False),
        ("!unheard", True),
        ("os == linux", True),
        ("os != linux", False),
        ("os == Linux", False),
        ("unheard != linux", False),
        ("mem_gb >= 64 && mem_gb <= 64", True),
        ("mem_gb > 64 || mem_gb < 64", False),
        ("mem_gb == '64'", False),
        ("os > 5", False),
        ("ssd == true", True),
        ("tape == false", True),
        ("load < 0.75", True),
        ("load > -1", True),
        ("!(os == linux && ssd)", False),
        ("!os == linux", False),
    ],
)
def test_a_condition_is_met_or_not(condition: str, expected: bool) -> None:  # noqa: FBT001 - a table's column
    assert holds(condition, HOST) is expected


NAMES = st.sampled_from(["os", "mem_gb", "ssd", "load", "unheard"])
TESTS = st.one_of(
    NAMES,
    st.tuples(NAMES, st.sampled_from(["==", "!="]), st.sampled_from(["linux", "'a b'", '"it\'s"', "''", "64bit"])),
    st.tuples(NAMES, st.sampled_from([">", "<", ">=", "<=", "=="]), st.integers(-(10**14), 10**14)),
    st.tuples(NAMES, st.just(">="), st.decimals(0, 999999999, places=6)),
).map(lambda test: test if isinstance(test, str) else " ".join(map(str, test)))
CONDITIONS = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        inner.map("!({})".format),
        inner.map("({})".format),
        st.lists(inner, min_size=2, max_size=4).map(lambda parts: "(" + " && ".join(parts) + ")"),
        st.lists(inner, min_size=2, max_size=4).map(lambda parts: "(" + " || ".join(parts) + ")"),
    ),
    max_leaves=12,
)


@given(CONDITIONS)
def test_what_is_written_out_is_taken_again_and_means_the_same(condition: str) -> None:
    first = parse(f"select[{condition}]")
    assert parse(str(first)) == first
    assert all(holds(part, HOST) for part in first.select) is holds(condition, HOST)


@given(st.text(st.sampled_from("select[]()!&|=<> ab1.'\"-:,rusagen{}*\n\u0660"), max_size=60))
def test_any_text_is_taken_or_answered(written: str) -> None:
    with suppress(RuleError):
        made = parse(written)
        assert parse(str(made)) == made
