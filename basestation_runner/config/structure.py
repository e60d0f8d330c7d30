"""From plain data to the model's classes: cattrs walks a class and applies each field's rule. Knows no positions."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from attrs import NOTHING, AttrsInstance, fields_dict, frozen
from cattrs import Converter
from cattrs.errors import AttributeValidationNote, ClassValidationError, ForbiddenExtraKeysError

from basestation_runner.config.nested import guess
from basestation_runner.config.rules import RuleError, Step, expected, rule_errors

T = TypeVar("T", bound=AttrsInstance)


@frozen
class Outcome(Generic[T]):
    """What became of an entry: the object, or what is wrong; and in both cases the fields that are right."""

    made: T | None
    values: dict[str, Any]
    errors: tuple[RuleError, ...] = ()


def structured(cls: type[T], data: object, **given: object) -> Outcome[T]:
    """Given an entry's data, and fields that an entry cannot name itself, return what becomes of it."""
    names = [name for name in fields_dict(cls) if name not in given]
    if not isinstance(data, dict):
        required = [name for name in names if fields_dict(cls)[name].default is NOTHING]
        hint = f"required fields: {', '.join(required)}" if required else f"known fields: {', '.join(names)}"
        return Outcome(None, {}, (expected("a mapping of fields", data, hint),))
    errors = [
        RuleError("unknown field", "the entry's key says it", (key,), on_key=True) for key in given if key in data
    ]
    try:
        made = _converter().structure({**data, **given}, cls)
    except ClassValidationError as error:
        errors += _flattened(error, names)
    if not errors:
        return Outcome(made, {name: getattr(made, name) for name in data})
    faulty = {error.at[0] for error in errors}
    right = {name: _field(cls, name, value) for name, value in data.items() if name not in faulty}
    return Outcome(None, right, tuple(errors))


@cache
def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True)
    converter.register_structure_hook_factory(
        lambda kind: hasattr(kind, "__metadata__"), lambda kind: lambda value, _: kind.__metadata__[0](value)
    )
    return converter


def _field(cls: type[AttrsInstance], name: str, value: object) -> Any:  # noqa: ANN401 - each field has its own type
    kind: Any = fields_dict(cls)[name].type
    return _converter().structure(value, kind)


def _flattened(error: ClassValidationError, known: Sequence[str]) -> Iterator[RuleError]:
    for inner in error.exceptions:
        if isinstance(inner, ForbiddenExtraKeysError):
            for name in inner.extra_fields:
                yield RuleError("unknown field", guess(name, known), (name,), on_key=True)
            continue
        step = _step(inner)
        if isinstance(inner, KeyError):
            yield RuleError("is missing", "this field is required", (step,))
        else:
            yield from (found.below(step) for found in rule_errors(inner))


def _step(error: BaseException) -> Step:
    return next(note.name for note in error.__notes__ if isinstance(note, AttributeValidationNote))
