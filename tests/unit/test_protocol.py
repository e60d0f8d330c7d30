"""Frames however they are cut, and the one table of requests."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from basestation_runner.protocol import (
    LEGACY_REQUESTS,
    REQUESTS,
    FrameDecoder,
    ProtocolError,
    check_request,
    encode,
    is_job_id,
)

MAX_FRAME: Final = 1_048_576

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.dictionaries(st.text(), JSON, max_size=5)

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
JOB_IDS = st.from_regex(r"[0-9a-f-]{1,64}", fullmatch=True)

DISPATCH: dict[str, Any] = {
    "request": "dispatch",
    "job_id": "c0ffee00-0000-4000-8000-000000000001",
    "site": "seaglider",
    "digest": "ab" * 32,
    "application": "base",
    "home": "/home/sg123",
    "mission_dir": "/home/sg123/mission1",
    "log_file": "/home/sg123/mission1/baselog.log",
    "script": "Base.py",
    "args": ["--mission_dir", "/home/sg123/mission1"],
    "queue_length": 0,
    "additions": {"env": {"CASE": "7"}, "limits": {"tasks": 5}, "groups": ["a", 4711]},
}
WELL_FORMED: dict[str, dict[str, Any]] = {
    "hello": {"request": "hello", "version": 1},
    "dispatch": DISPATCH,
    "inquire": {"request": "inquire", "job_ids": ["a-1", "b-2"]},
    "cancel": {"request": "cancel", "job_ids": ["a-1"]},
    "reload": {"request": "reload"},
    "probe": {"request": "probe", "site": "seaglider"},
    "recall": {"request": "recall"},
    "settled": {"request": "settled", "job_ids": []},
    "legacy dispatch": {"site": "seaglider", "argv": ["/usr/bin/python3", "/opt/Base.py"], "log_file": "/a/log"},
    "legacy status": {"query": "status", "pid": 4711},
}
FIELDS = [(name, field) for name, message in WELL_FORMED.items() for field in message if field != "request"]

TEXT_FIELDS = {"site", "digest", "application", "home", "mission_dir", "log_file", "script"}
LIST_FIELDS = {"args", "argv"}
COUNT_FIELDS = {"version", "queue_length", "pid"}


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def refusal(message: dict[str, Any]) -> str:
    with pytest.raises(ProtocolError) as error:
        check_request(message)
    return str(error.value)


@given(st.lists(MESSAGES, max_size=4), st.data())
def test_messages_are_the_same_however_their_bytes_are_cut(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    stream = b"".join(map(encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder = FrameDecoder()
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [message for piece in pieces for message in decoder.feed(piece)] == messages


def test_messages_come_byte_by_byte_as_soon_as_each_is_complete() -> None:
    decoder = FrameDecoder()
    arrived = [decoder.feed(bytes([byte])) for byte in encode({"a": 1}) + encode({"b": 2})]
    assert [index for index, messages in enumerate(arrived) if messages] == [10, 21]
    assert [message for messages in arrived for message in messages] == [{"a": 1}, {"b": 2}]


def test_the_longest_frame_is_taken_and_one_byte_more_refused() -> None:
    longest = b'{"a":"' + b"x" * (MAX_FRAME - 8) + b'"}'
    assert len(longest) == MAX_FRAME
    assert FrameDecoder().feed(frame(longest)) == [json.loads(longest)]
    with pytest.raises(ProtocolError):
        FrameDecoder().feed(struct.pack(">I", MAX_FRAME + 1))


def test_the_longest_message_can_be_sent_and_a_longer_one_not() -> None:
    longest = {"a": "x" * (MAX_FRAME - 8)}
    assert FrameDecoder().feed(encode(longest)) == [longest]
    with pytest.raises(ProtocolError):
        encode({"a": "x" * (MAX_FRAME - 7)})


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut off"),
        pytest.param(b'{"a":1}{"b":2}', id="two objects"),
        pytest.param(b'{"a":1', id="unclosed"),
        pytest.param(b"[]", id="list"),
        pytest.param(b'"hello"', id="text"),
        pytest.param(b"null", id="null"),
        pytest.param(b"1", id="number"),
        pytest.param(b"[" * 100_000, id="deep nesting"),
        pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, id="deep nesting, well-formed"),
        pytest.param(b'{"a":NaN}', id="NaN"),
        pytest.param(b'{"a":-Infinity}', id="infinity"),
        pytest.param(b'{"a":' + b"1" * 5000 + b"}", id="a number of 5000 digits"),
        pytest.param(b'{"a":"\xff"}', id="not UTF-8"),
        pytest.param(b'{"a":"\xed\xa0\x80"}', id="a surrogate as UTF-8"),
        pytest.param('{"a":1}'.encode("utf-16"), id="UTF-16"),
        pytest.param('{"a":1}'.encode("utf-8-sig"), id="a byte order mark"),
        pytest.param(b"\0\0\0\0", id="zero bytes"),
    ],
)
def test_a_malformed_frame_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameDecoder().feed(frame(body))


@given(st.binary())
@example(b'{"a":1}')
def test_any_bytes_in_a_frame_are_an_object_or_a_protocol_error(body: bytes) -> None:
    try:
        messages = FrameDecoder().feed(frame(body))
    except ProtocolError:
        return
    assert messages == [json.loads(body)]


@given(st.lists(st.binary(), max_size=5))
def test_any_stream_gives_objects_or_a_protocol_error(pieces: list[bytes]) -> None:
    decoder = FrameDecoder()
    with suppress(ProtocolError):
        for piece in pieces:
            assert all(isinstance(message, dict) for message in decoder.feed(piece))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_not_sent(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"a": number})


def test_the_table_has_exactly_the_requests_that_are_designed() -> None:
    assert set(REQUESTS) | set(LEGACY_REQUESTS) == set(WELL_FORMED)


@pytest.mark.parametrize("name", WELL_FORMED)
def test_a_well_formed_request_is_known_by_its_name(name: str) -> None:
    assert check_request(WELL_FORMED[name]) == name


def test_a_legacy_dispatch_may_carry_a_job_id() -> None:
    assert check_request(WELL_FORMED["legacy dispatch"] | {"job_id": "ab-12"}) == "legacy dispatch"
    refusal(WELL_FORMED["legacy dispatch"] | {"job_id": "../ab"})


@pytest.mark.parametrize("name", [None, "", "Hello", "probe ", 1, True, ["hello"], {"hello": 1}, "legacy dispatch"])
def test_an_unknown_request_is_refused(name: object) -> None:
    refusal({"request": name, "version": 1})


@given(MESSAGES)
def test_any_object_is_a_known_request_or_a_protocol_error(message: dict[str, Any]) -> None:
    with suppress(ProtocolError):
        assert check_request(message) in WELL_FORMED


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_request_without_one_of_its_fields_is_refused(name: str, field: str) -> None:
    refusal({key: value for key, value in WELL_FORMED[name].items() if key != field})


@pytest.mark.parametrize("name", WELL_FORMED)
@pytest.mark.parametrize("extra", ["uid", "env", "argv0", "program", ""])
def test_a_request_with_a_field_more_is_refused(name: str, extra: str) -> None:
    refusal(WELL_FORMED[name] | {extra: "0"})


def test_a_request_of_ours_is_never_taken_for_a_legacy_one() -> None:
    refusal(WELL_FORMED["legacy status"] | {"request": "hello"})
    refusal(WELL_FORMED["legacy dispatch"] | {"request": "dispatch"})


@pytest.mark.parametrize(("name", "field"), [pair for pair in FIELDS if pair[1] in TEXT_FIELDS])
@pytest.mark.parametrize("value", [None, 1, True, [], ["a"], {}, "a\0b", "\0", "\ud800", "a\udfff", b"a"])
def test_a_text_is_neither_another_type_nor_holds_what_no_path_can(name: str, field: str, value: object) -> None:
    reason = refusal(WELL_FORMED[name] | {field: value})
    assert field in reason or name.startswith("legacy")


@pytest.mark.parametrize(("name", "field"), [pair for pair in FIELDS if pair[1] in LIST_FIELDS])
@pytest.mark.parametrize("value", [None, 1, "--verbose", {}, [1], [None], ["a", ["b"]], ["a\0b"], ["a", "\udc80"]])
def test_arguments_are_a_list_of_texts(name: str, field: str, value: object) -> None:
    refusal(WELL_FORMED[name] | {field: value})


@pytest.mark.parametrize(("name", "field"), [pair for pair in FIELDS if pair[1] in COUNT_FIELDS])
@pytest.mark.parametrize("value", [None, "1", [], {}, True, False, -1, 1 << 31, 1.0, 0.5])
def test_a_count_is_a_small_whole_number_and_no_boolean(name: str, field: str, value: object) -> None:
    refusal(WELL_FORMED[name] | {field: value})


@pytest.mark.parametrize(("name", "field"), [pair for pair in FIELDS if pair[1] in COUNT_FIELDS])
@pytest.mark.parametrize("value", [0, (1 << 31) - 1])
def test_the_smallest_and_the_largest_count_are_taken(name: str, field: str, value: int) -> None:
    assert check_request(WELL_FORMED[name] | {field: value}) == name


@pytest.mark.parametrize(
    "value",
    [None, [], "x", {"a": "\0"}, {"a\0": 1}, {"a": ["\ud800"]}, {"a": {"b": {"c": {"d": {}}}}}, {"a": [[[[]]]]}],
)
def test_additions_are_a_mapping_of_few_levels_whose_texts_are_plain(value: object) -> None:
    assert "additions" in refusal(DISPATCH | {"additions": value})


@pytest.mark.parametrize("name", ["inquire", "settled"])
@pytest.mark.parametrize("value", [None, "ab", {}, [1], ["ab", "../ab"], [["ab"]], [True]])
def test_job_ids_are_a_list_of_job_ids(name: str, value: object) -> None:
    refusal(WELL_FORMED[name] | {"job_ids": value})


@pytest.mark.parametrize("query", ["Status", "stop", "", None, 1, True, ["status"]])
def test_a_legacy_watcher_can_ask_for_nothing_but_the_status(query: object) -> None:
    refusal({"query": query, "pid": 1})


@given(st.fixed_dictionaries({field: TEXT for field in TEXT_FIELDS if field in DISPATCH}), st.lists(TEXT), JOB_IDS)
def test_a_dispatch_may_hold_any_text_that_a_path_or_argument_can_be(
    texts: dict[str, str], args: list[str], job_id: str
) -> None:
    message = DISPATCH | texts | {"args": args, "job_id": job_id}
    assert check_request(message) == "dispatch"
    assert FrameDecoder().feed(encode(message)) == [message]


@given(JOB_IDS)
def test_a_job_id_is_made_of_lower_case_hexadecimal_digits_and_hyphens(job_id: str) -> None:
    assert is_job_id(job_id)
    assert not is_job_id(job_id + "g")
    assert not is_job_id("/" + job_id)


@given(st.text())
@example("")
@example("a" * 65)
@example("ab\n")
@example("..")
@example("A")
@example("\N{ARABIC-INDIC DIGIT ONE}")
def test_a_job_id_is_nothing_else(text: str) -> None:
    assert is_job_id(text) == (1 <= len(text) <= 64 and set(text) <= set("0123456789abcdef-"))


@pytest.mark.parametrize("value", [None, 1, b"ab", ["a"], True])
def test_a_job_id_is_a_text(value: object) -> None:
    assert not is_job_id(value)
