"""What a job is run with as plain data, for files, wires and people. Pure."""

from collections.abc import Mapping
from typing import Any

from attrs import fields_dict

from basestation_runner.config.effective import Effective, Value
from basestation_runner.config.parts import limit_text


def effective_data(made: Effective) -> dict[str, Any]:
    """Given what a job is run with, return it as plain data, each value with where it is from."""
    fields = {name: getattr(made, name) for name in fields_dict(Effective)}
    fields["limits"] = {name: Value(limit_text(name, limit.value), limit.origin) for name, limit in made.limits.items()}
    return {name: _valued(value) for name, value in fields.items()}


def stated_data(made: Effective) -> dict[str, Any]:
    """Return the same without what there is none of."""
    data = effective_data(made)
    idle = {"groups"} if made.groups.value is None else set()
    idle |= set() if made.mode.value == "sandbox" else {"network"}
    return {name: value for name, value in data.items() if value and name not in idle}


def _valued(value: object) -> Any:  # noqa: ANN401 - JSON
    match value:
        case Value(inner, origin):
            return {"value": list(inner) if isinstance(inner, tuple) else inner, "from": origin}
        case tuple():
            return [_valued(part) for part in value]
        case Mapping():
            return {name: _valued(part) for name, part in value.items()}
    return value
