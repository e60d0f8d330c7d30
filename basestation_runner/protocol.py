"""What watcher and helper say to each other: frames, and the one table of requests that the helper takes.

A frame is a 4-byte big-endian length and that many bytes of one JSON object. Nothing here reads a socket.
Requests and events are plain JSON objects; docs/architecture.md lists the exchange.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

VERSION: Final = 1
MAX_FRAME: Final = 1 << 20
"""Bytes in the longest frame's object."""

MOST_JOB_IDS: Final = 1000
"""Ids in one request: one that names more would keep the helper from serving others."""

_MOST_LEVELS: Final = 4  # of lists and mappings in a request's additions

_LENGTH: Final = struct.Struct(">I")

Message = dict[str, Any]


class ProtocolError(Exception):
    """The other side sent what no correct peer sends; the connection is of no use any more."""


class FrameDecoder:
    """Turns the bytes of one connection into its messages, however they were cut into pieces."""

    def __init__(self, *, longest: int = MAX_FRAME) -> None:
        """`longest` is how many bytes a frame's object may have."""
        self._pending = bytearray()
        self._longest = longest

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes. Raises ProtocolError for an oversized or malformed frame."""
        self._pending += data
        messages = []
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > self._longest:
                raise ProtocolError(f"a frame of {length} bytes, the most is {self._longest}")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                break
            messages.append(_decode(bytes(self._pending[_LENGTH.size : end])))
            del self._pending[:end]
        return messages


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the frame of one message. Raises ProtocolError when it is too long to be sent."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a frame of {len(body)} bytes, the most is {MAX_FRAME}")
    return _LENGTH.pack(len(body)) + body


def _decode(body: bytes) -> Message:
    try:
        # Decoded here: json.loads would take UTF-16 and lone surrogates too.
        message = json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ProtocolError(f"a frame that is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError("a frame that is not a JSON object")
    return message


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _is_text(value: object) -> bool:
    """Tell whether `value` can be a path or an argument; what it may say is for the policy, not for the protocol."""
    return isinstance(value, str) and "\0" not in value and not _SURROGATE.search(value)


def _is_words(value: object) -> bool:
    return isinstance(value, list) and all(_is_text(word) for word in value)


def is_additions(value: object) -> bool:
    """Tell whether `value` is a mapping whose texts are all plain; what they may say is for the policy."""
    return isinstance(value, dict) and _is_plain(value, _MOST_LEVELS)


def _is_plain(value: object, levels: int) -> bool:
    match value:
        case dict():
            parts = [*value, *value.values()]
        case list():
            parts = value
        case str():
            return _is_text(value)
        case _:
            return value is None or isinstance(value, int | float)
    return levels > 0 and all(_is_plain(part, levels - 1) for part in parts)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


_JOB_ID: Final = re.compile(r"[0-9a-f-]{1,64}", re.ASCII)


def is_job_id(value: object) -> bool:
    """Tell whether `value` can be a job's id: it becomes part of file and cgroup names."""
    return isinstance(value, str) and _JOB_ID.fullmatch(value) is not None


def _is_job_ids(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MOST_JOB_IDS and all(is_job_id(item) for item in value)


REQUESTS: Final[Mapping[str, Mapping[str, Callable[[object], bool]]]] = {
    "hello": {"version": _is_count},
    "dispatch": {
        "job_id": is_job_id,
        "site": _is_text,
        "digest": _is_text,
        "application": _is_text,
        "home": _is_text,
        "mission_dir": _is_text,
        "log_file": _is_text,
        "script": _is_text,
        "args": _is_words,
        "queue_length": _is_count,
        "additions": is_additions,
    },
    "inquire": {"job_ids": _is_job_ids},
    "cancel": {"job_ids": _is_job_ids},
    "recall": {},
    "reload": {},
    "probe": {"site": _is_text},
    "settled": {"job_ids": _is_job_ids},
}
"""Every request that the helper takes from our own watcher, with exactly its fields."""

LEGACY_REQUESTS: Final[Mapping[str, tuple[Mapping[str, Callable[[object], bool]], ...]]] = {
    "legacy dispatch": (
        {"site": _is_text, "argv": _is_words, "log_file": _is_text},
        {"site": _is_text, "argv": _is_words, "log_file": _is_text, "job_id": is_job_id},
    ),
    "legacy status": ({"query": lambda value: value == "status", "pid": _is_count},),
}
"""Every request that the helper takes from a BaseRunnerMulti, in each of its forms."""


def check_request(message: Message) -> str:
    """Return the name of a well-formed request. Raises ProtocolError that says what is wrong with any other."""
    if "request" not in message:
        return _check_legacy_request(message)
    name = message["request"]
    fields = REQUESTS.get(name) if isinstance(name, str) else None
    if fields is None:
        raise ProtocolError("not a request that the helper knows")
    if message.keys() != fields.keys() | {"request"}:
        raise ProtocolError(f"{name}: its fields must be {', '.join(sorted(fields))}")
    for field, is_valid in fields.items():
        if not is_valid(message[field]):
            raise ProtocolError(f"{name}: {field} is not valid")
    return str(name)


def _check_legacy_request(message: Message) -> str:
    for name, forms in LEGACY_REQUESTS.items():
        for fields in forms:
            if message.keys() == fields.keys() and all(is_valid(message[field]) for field, is_valid in fields.items()):
                return name
    raise ProtocolError("not a request that the helper knows")
