"""What jobs are run with, in words: each value with where it is from."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from basestation_runner.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PLACES: Final = frozenset({"span", "same", "order"})
_UNUSED: Final = ", of no use on one host"


def lines(values: Mapping[str, str | None]) -> Iterator[str]:
    """Return a line for each value that there is, beneath a title."""
    shown = {name: value for name, value in values.items() if value}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        yield f"  {name.ljust(width)}  {printable(value)}"


def effective(values: Mapping[str, Any]) -> dict[str, str]:
    """Given what a job is run with as plain data, return each value as a text that says whether the profile, the site
    or the job says so.
    """
    return {name.replace("_", " "): _text(value) + _UNUSED * (name in _PLACES) for name, value in values.items()}


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    match value:
        case {"value": list() as words, "from": origin}:
            return f"{shlex.join(map(str, words))} ({origin})"
        case {"value": bool() as flag, "from": origin}:
            return f"{'yes' if flag else 'no'} ({origin})"
        case {"value": inner, "from": origin}:
            return f"{inner} ({origin})"
        case dict():
            return ", ".join(f"{name}={_text(inner)}" for name, inner in value.items())
        case list():
            return ", ".join(map(_text, value))
    return str(value)
