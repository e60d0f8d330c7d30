"""What a value of a profile, or of what a job adds to one, must look like: as rules.py, for what only they hold."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from basestation_runner.config.environment import is_always_set, runs_code
from basestation_runner.config.rules import (
    ENV_NAME_PATTERN,
    LARGEST_SHOWN,
    MAX_MEMORY_MB,
    MAX_QUOTA_PCT,
    Rule,
    RuleError,
    describe,
    expected,
    line,
    list_of,
    number,
    one_of,
    path,
    raise_all,
    repeated,
    script,
    text,
    word,
)
from basestation_runner.text import quoted

DURATIONS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MEMORY: Final[Mapping[str, int]] = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MAX_SECONDS: Final = 3650 * DURATIONS["d"]
MAX_AMOUNT: Final = (1 << 31) - 1

_DURATION: Final = re.compile(r"([0-9]{1,12})([smhd])", re.ASCII)
_MEMORY: Final = re.compile(r"([0-9]{1,12})([MGT])", re.ASCII)
_PERCENT: Final = re.compile(r"([0-9]{1,12})(%)", re.ASCII)
_RESOURCE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


# Amounts with units


def _amount(value: object, kind: str, pattern: re.Pattern[str], example: str) -> tuple[int, str]:
    """Given a text of a number and a unit, return both."""
    found = pattern.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise expected(kind, value, example)
    return int(found[1]), found[2]


def duration(value: object) -> int:
    """A time with its unit; returns seconds."""
    example = "a number and s, m, h or d, such as 90m or 24h"
    amount, unit = _amount(value, "a duration", _DURATION, example)
    return _in_range(amount * DURATIONS[unit], value, MAX_SECONDS, "from 1s to 3650d")


def memory(value: object) -> int:
    """A size with its unit, in powers of 1024; returns bytes."""
    example = "a number and M, G or T, such as 512M or 128G"
    amount, unit = _amount(value, "an amount of memory", _MEMORY, example)
    return _in_range(amount * MEMORY[unit], value, MAX_MEMORY_MB << 20, f"from 1M to {MAX_MEMORY_MB >> 20}T")


def percentage(value: object) -> int:
    """A part of one processor's time; returns per cent."""
    amount, _ = _amount(value, "per cent of a processor", _PERCENT, "such as 200%, which is two processors")
    return _in_range(amount, value, MAX_QUOTA_PCT, f"from 1% to {MAX_QUOTA_PCT}%")


def _in_range(amount: int, value: object, most: int, hint: str) -> int:
    if not 1 <= amount <= most:
        raise RuleError(f"{describe(value)} is out of range", hint)
    return amount


def with_unit(amount: int, units: Mapping[str, int]) -> str:
    """Given an amount as a rule returns it, write it in the largest of the units that it is whole in."""
    unit = max((unit for unit, size in units.items() if amount % size == 0), key=lambda unit: units[unit])
    return f"{amount // units[unit]}{unit}"


def command(value: object) -> str:
    """The path of a program; requests name it by its last component."""
    checked = path(value)
    script(posixpath.basename(checked))
    return checked


def step(value: object) -> tuple[str, ...]:
    """A program that runs before or after a job, and its arguments."""
    checked = list_of(word, of="a program's path and its arguments", example="[/opt/steps/mount-data, --quiet]")(value)
    if not checked:
        raise RuleError("no program is named", "for example [/opt/steps/mount-data, --quiet]")
    try:
        return (path(checked[0]), *checked[1:])
    except RuleError as error:
        raise error.below(0) from None


def directories(value: object) -> tuple[str, ...]:
    """Directories, sorted: their order means nothing."""
    checked = list_of(path, of="directories", example="[/srv/data]")(value)
    raise_all(repeated(checked))
    return tuple(sorted(checked))


def paths(value: object) -> tuple[str, ...]:
    """Paths, sorted and each once: their order means nothing."""
    return tuple(sorted(set(list_of(path, of="paths", example="[/srv/data/tides.nc]")(value))))


def attributes(value: object) -> tuple[tuple[str, str | int | float | bool], ...]:
    """What a host is, by name; sorted."""
    if not isinstance(value, dict):
        raise expected("a mapping of names to values", value, "for example {os: linux, mem_gb: 64, ssd: true}")
    found = list(_misnamed(value))
    for name_, content in value.items():
        found += [error.below(name_) for error in _raised(_attribute, content)]
    raise_all(found)
    return tuple(sorted(value.items()))


def _attribute(value: object) -> str | int | float | bool:
    if isinstance(value, str):
        return line(value)
    if isinstance(value, bool) or (isinstance(value, int | float) and abs(value) <= LARGEST_SHOWN):
        return value
    raise expected("a text, a number, true or false", value)


def resources(value: object) -> tuple[tuple[str, int], ...]:
    """What a host offers to jobs, by name; sorted."""
    if not isinstance(value, dict):
        raise expected("a mapping of names to amounts", value, "for example {license_foam: 2, scratch_gb: 500}")
    found = list(_misnamed(value))
    for name_, content in value.items():
        found += [error.below(name_) for error in _raised(number(0, MAX_AMOUNT), content)]
    raise_all(found)
    return tuple(sorted(value.items()))


def _misnamed(names: Iterable[str]) -> Iterator[RuleError]:
    for name_ in names:
        if not _RESOURCE_NAME.fullmatch(name_):
            hint = "at most 64 letters, digits and '_', the first not a digit"
            yield RuleError(f"{quoted(name_)} is not a valid name", hint, (name_,), on_key=True)


def _raised(rule: Rule[object], value: object) -> Iterator[RuleError]:
    try:
        rule(value)
    except RuleError as error:
        yield error


def job_variables(value: object) -> tuple[str, ...]:
    """Names of variables that a job may set although they make programs run other code; sorted."""
    checked = list_of(_job_variable, of="names of variables", example="[PYTHONPATH]")(value)
    raise_all(repeated(checked))
    return tuple(sorted(checked))


def _job_variable(value: object) -> str:
    checked = text(value)
    if not ENV_NAME_PATTERN.fullmatch(checked):
        raise RuleError(f"{quoted(checked)} is not a variable's name", "letters, digits and '_', the first not a digit")
    if is_always_set(checked):
        raise RuleError(f"{checked} is always set by the runner", "a job cannot set it")
    if not runs_code(checked):
        raise RuleError(f"a job may set {checked} anyway", "job_env is for names that a job could not set otherwise")
    return checked


def mode(value: object) -> str:
    if value == "container":
        raise RuleError("containers are not supported yet", "write direct or sandbox")
    return one_of("direct", "sandbox")(value)
