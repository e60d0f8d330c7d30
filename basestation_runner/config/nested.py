"""Mappings of fields inside an entry, or of a request: each field's rule applied, every error told. Knows no files.

Imports little: watcher and helper use it while they serve.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TypeVar

from attrs import AttrsInstance, fields_dict

from basestation_runner.config.rules import Rule, RuleError, expected, raise_all, rule_errors

T = TypeVar("T", bound=AttrsInstance)

MAX_GUESSED = 64  # characters of a name that is still compared with the known ones
MAX_COMPARED = 40  # known names that are compared with, or listed: a file can hold many faults, and many names


def fields_of(cls: type[T]) -> Rule[T]:
    """Given a class of which each field has a rule and a default, return the rule for a mapping of these fields."""

    def rule(value: object) -> T:
        rules = {name: field.type.__metadata__[0] for name, field in fields_dict(cls).items() if field.type}
        if not isinstance(value, dict):
            raise expected("a mapping of fields", value, f"known fields: {', '.join(rules)}")
        found: list[RuleError] = []
        made = {}
        for name, content in value.items():
            if name not in rules:
                found.append(RuleError("unknown field", guess(name, list(rules)), (name,), on_key=True))
                continue
            try:
                made[name] = rules[name](content)
            except (RuleError, ExceptionGroup) as error:
                found += [inner.below(name) for inner in rule_errors(error)]
        raise_all(found)
        return cls(**made)

    return rule


def guess(name: str, known: Sequence[str]) -> str:
    """Given a name that is not known, return a hint: the most similar known one, else all of them, or the first."""
    compared = known[:MAX_COMPARED] if len(name) <= MAX_GUESSED else ()
    similar = get_close_matches(name.lower().replace("-", "_"), compared, n=1)
    more = ", …" if len(known) > MAX_COMPARED else ""
    return f"did you mean {similar[0]}?" if similar else f"known: {', '.join(known[:MAX_COMPARED])}{more}"
