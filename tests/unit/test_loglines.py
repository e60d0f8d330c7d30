"""What a log line looks like, whatever is put into it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.loglines import LEVELS, MAX_ITEMS, MAX_TEXT, Format, Renderer, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW = datetime(2026, 11, 30, 12, 34, 56, 123456, tzinfo=UTC)

# Every character there is, lone surrogates and controls included.
any_text = st.text(st.characters())
texts_within_bounds = st.text(max_size=MAX_TEXT)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.binary()
any_value = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(any_text, inner) | st.tuples(inner), max_leaves=40
)


def render(fields: Mapping[str, object], form: Format = "text", *, debug: bool = False) -> str:
    return Renderer(program="watch", form=form, debug=debug).line(NOW, LEVELS["info"], fields).data.decode()


def text(**fields: object) -> str:
    return render(fields)


def jsonl(**fields: object) -> str:
    return render(fields, "json")


def test_a_line_says_when_how_grave_which_site_what_and_the_facts() -> None:
    assert text(site="seaglider", event="job done", job_id="ab-1", returncode=0, log=Path("/home/a b"), x=None) == (
        '2026-11-30T12:34:56.123Z info  [seaglider] job done job_id=ab-1 returncode=0 log="/home/a b" x=null\n'
    )


def test_site_and_event_come_first_in_json_too() -> None:
    assert jsonl(returncode=0, event="job done", site="seaglider") == (
        '{"time": "2026-11-30T12:34:56.123Z", "level": "info", "program": "watch", "site": "seaglider",'
        ' "event": "job done", "returncode": 0}\n'
    )


@given(event=any_text, site=any_text, key=any_text, value=any_value, form=st.sampled_from(["text", "json"]))
def test_any_content_makes_exactly_one_printable_line(
    event: str, site: str, key: str, value: object, form: Format
) -> None:
    made = render({"event": event, "site": site, key: value}, form)
    assert made.endswith("\n")
    assert made[:-1].isprintable()


@given(value=any_value, form=st.sampled_from(["text", "json"]))
def test_a_line_has_a_bounded_length(value: object, form: Format) -> None:
    assert len(render({"event": "x", "value": value}, form)) < 16_384


@given(value=texts_within_bounds)
def test_a_text_value_can_be_read_back_from_a_text_line(value: str) -> None:
    shown = text(event="x", value=value).removesuffix("\n").partition(" value=")[2]
    if shown.startswith('"'):
        shown = shown[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
    assert shown == value


@given(
    fields=st.dictionaries(
        st.text(max_size=20).filter(lambda key: key not in {"time", "level", "program", "exc_info"}),
        st.none()
        | st.booleans()
        | st.integers(-(2**63) + 1, 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | texts_within_bounds
        | st.lists(st.text(max_size=10), max_size=10),
    )
)
def test_json_gives_the_values_back(fields: dict[str, Any]) -> None:
    read = json.loads(render(fields, "json"))
    assert {key: read[key] for key in fields} == fields


@pytest.mark.parametrize("event", ["done rc=0", "[other] done", 'said "done"'])
def test_an_event_cannot_pass_for_fields_or_a_site(event: str) -> None:
    assert re.fullmatch(r'\S+ info  "[^ ].*"\n', text(event=event))


def test_a_value_cannot_end_its_quotes() -> None:
    assert text(event="x", value='a" rc="0').endswith(' x value="a\\" rc=\\"0"\n')


def test_a_field_cannot_replace_the_lines_own() -> None:
    read = json.loads(jsonl(event="x", level="critical", time="yesterday", program="sshd"))
    assert (read["level"], read["program"], read["level_"], read["time_"]) == ("info", "watch", "critical", "yesterday")


def test_a_long_value_is_cut_and_says_how_much_is_missing() -> None:
    assert plain("x" * 1000) == "x" * MAX_TEXT + "…+488"


def test_a_long_list_is_cut_and_says_how_much_is_missing() -> None:
    assert plain(list(range(100))) == [*range(MAX_ITEMS), "…+68"]


def test_a_mapping_that_refers_to_itself_ends() -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop
    assert plain(loop) == {"again": {"again": "…"}}


def test_a_number_too_long_for_decimal_text_is_shown() -> None:
    assert str(plain(1 << 100_000)).startswith("0x1000")


def test_an_enum_shows_its_value() -> None:
    class State(Enum):
        RUNNING = "running"

    assert plain(State.RUNNING) == "running"


def test_bytes_that_are_not_utf8_are_shown() -> None:
    assert text(event="x", name=b"a\xff").endswith(' name="a\\udcff"\n')


def test_a_value_that_cannot_describe_itself_costs_no_line() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert text(event="x", value=Broken()).endswith(' x value="<Broken: RuntimeError>"\n')


def raised() -> Exception:
    try:
        int("bad\nvalue")
    except ValueError as error:
        return error
    raise AssertionError


def test_an_exception_is_named_with_its_place() -> None:
    assert re.search(r' error="ValueError: [^"]*bad.*" at=test_loglines.py:\d+\n$', text(event="x", exc_info=raised()))


def test_debug_adds_the_traceback_on_the_same_line() -> None:
    made = render({"event": "x", "exc_info": raised()}, "json", debug=True)
    assert "Traceback (most recent call last):\n" in json.loads(made)["traceback"]
