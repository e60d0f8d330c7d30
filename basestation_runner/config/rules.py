"""What a single value in a config file must look like, as pure functions from a raw YAML value to a checked one.

Each rule returns the value as the model holds it, or raises a RuleError that says in the reader's words what is wrong
and what would be right; a rule for a list or a mapping raises an ExceptionGroup of all of them. Knows no file, no line
and no host.
"""

import posixpath
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from basestation_runner.execgroups import MOST_GID, MOST_GROUPS
from basestation_runner.text import quoted

T = TypeVar("T")
Rule = Callable[[object], T]
Step = str | int

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
ENV_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLACEHOLDER_PATTERN = re.compile(r"\{(job_id|queue_length)\}")
ALL = "all"

MAX_PATH_BYTES = 4095
MAX_COMPONENT_BYTES = 255
MAX_ENV_BYTES = 65536
MAX_MEMORY_MB = 1 << 40
MAX_TASKS = 4194304  # the kernel's PID_MAX_LIMIT: more is refused by pids.max
MAX_QUOTA_PCT = 1000000
LARGEST_SHOWN = 1 << 64  # Python refuses to write out integers of thousands of digits
FLAG_WORDS = {
    **dict.fromkeys(("yes", "y", "on", "true", "1"), "true"),
    **dict.fromkeys(("no", "n", "off", "false", "0"), "false"),
}
# The runner sets these for every job; a value from a file would never be seen.
RUNNER_ENV = frozenset({"RUNNER_JOB_ID", "RUNNER_SITE"})


class RuleError(ValueError):
    """What is wrong with a value and what would be right; `at` is the way from the value to the part meant."""

    def __init__(self, what: str, hint: str = "", at: tuple[Step, ...] = (), *, on_key: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.at = at
        self.on_key = on_key

    def below(self, step: Step) -> "RuleError":
        return RuleError(self.what, self.hint, (step, *self.at), on_key=self.on_key)


def rule_errors(error: BaseException) -> Iterator[RuleError]:
    """Given what a rule raised, return its errors one by one. Raise anything unforeseen again."""
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from rule_errors(inner)
    elif isinstance(error, RuleError):
        yield error
    else:
        raise error


def raise_all(found: Iterable[RuleError]) -> None:
    if collected := list(found):
        raise ExceptionGroup("several parts are wrong", collected)


def describe(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {quoted(value)}"
        case int() if abs(value) > LARGEST_SHOWN:
            return "a very large number"
        case int() | float():
            return f"the number {value}"
    return {type(None): "nothing", list: "a list"}.get(type(value), "a mapping")


def expected(kind: str, value: object, hint: str = "") -> RuleError:
    return RuleError(f"expected {kind}, found {describe(value)}", hint)


# Single values


def text(value: object) -> str:
    if isinstance(value, str):
        return value
    hint = ""
    if isinstance(value, bool | int | float):
        hint = "put the value in quotes if text is meant"
    raise expected("text", value, hint)


def line(value: object) -> str:
    checked = text(value)
    if not checked.isprintable():
        raise RuleError(
            f"{quoted(checked)} contains a character that cannot be printed", "write plain text on one line"
        )
    return checked


def flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    meant = FLAG_WORDS.get(value.lower()) if isinstance(value, str) else None
    raise expected("true or false", value, f"write {meant}, without quotes" if meant else "write true or false")


def number(low: int, high: int, hint: str = "") -> Rule[int]:
    def rule(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise expected("a whole number", value, hint or f"a whole number from {low} to {high}, without a unit")
        if not low <= value <= high:
            raise RuleError(f"{describe(value)} is out of range", hint or f"from {low} to {high}")
        return value

    return rule


def entries(value: object) -> list[object]:
    """A list whose entries are checked elsewhere."""
    if not isinstance(value, list):
        raise expected("a list of entries", value, "begin each entry with '- name: …'")
    return value


def optional(rule: Rule[T]) -> Rule[T | None]:
    return lambda value: None if value is None else rule(value)


def one_of(*choices: str) -> Rule[str]:
    def rule(value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise expected(" or ".join(choices), value)

    return rule


def name(value: object) -> str:
    """Names of sites and applications: they become names of cgroups and of log files."""
    checked = text(value)
    if not NAME_PATTERN.fullmatch(checked):
        raise RuleError(
            f"{quoted(checked)} is not a valid name",
            "at most 64 of a-z, 0-9, '.', '_' and '-', the first a letter or a digit",
        )
    return checked


def application_name(value: object) -> str:
    checked = name(value)
    if checked == ALL:
        raise RuleError("'all' cannot be the name of an application", "in a site's list it means every application")
    return checked


def path(value: object) -> str:
    """An absolute path, normalised without looking at any file system; so `..` cannot be accepted."""
    checked = line(value)
    if not checked.startswith("/"):
        raise RuleError(f"{quoted(checked)} is not an absolute path", "write the whole path from / on")
    if ".." in checked.split("/"):
        raise RuleError(f"{quoted(checked)} contains '..'", "write the path without it")
    encoded = checked.encode()
    if len(encoded) > MAX_PATH_BYTES or any(len(part) > MAX_COMPONENT_BYTES for part in encoded.split(b"/")):
        raise RuleError(f"the path {quoted(checked)} is too long for Linux")
    return posixpath.normpath("/" + checked.lstrip("/"))


def rundir(value: object) -> str:
    checked = path(value)
    if checked == "/":
        raise RuleError("/ cannot be a rundir", "a directory of the site's own")
    return checked


def _directory_name(value: object, kind: str, hint: str) -> str:
    """Names of accounts and groups. What directory services call them is wider than what useradd takes."""
    if isinstance(value, bool | int | float):
        raise expected(kind, value, hint)
    checked = line(value)
    if not checked or checked != checked.strip() or checked[0] in "-." or any(part in checked for part in "/:,"):
        raise RuleError(f"{quoted(checked)} is not {kind}", hint)
    if len(checked.encode()) > MAX_COMPONENT_BYTES:
        raise RuleError(f"{quoted(checked)} is too long for a name")
    return checked


def account(value: object) -> str:
    hint = "the name of an account that only this site's jobs use"
    if isinstance(value, int | str) and not isinstance(value, bool) and value in {0, "0", "root"}:
        raise RuleError("jobs never run as root", hint)
    return _directory_name(value, "an account's name", hint)


def group(value: object) -> str | int:
    hint = f"a group's name, or its number from 1 to {MOST_GID}"
    if isinstance(value, int) and not isinstance(value, bool):
        if value == 0:
            raise RuleError("jobs never run with group 0 (root)", hint)
        if not 1 <= value <= MOST_GID:
            raise RuleError(f"{describe(value)} is not a group's number", hint)
        return value
    if value == "root":
        raise RuleError("jobs never run with group 0 (root)", hint)
    checked = _directory_name(value, "a group's name", hint)
    if checked.isdigit():
        raise RuleError(f"{quoted(checked)} is a number in quotes", "write a group's number without quotes")
    return checked


def script(value: object) -> str:
    """The bare file name of a script: whatever could lead out of its directory or read as an option is refused."""
    checked = line(value)
    if not checked or "/" in checked or checked in {".", ".."} or checked.startswith("-") or " " in checked:
        raise RuleError(f"{quoted(checked)} is not a script's file name", "the file's name alone, without a directory")
    if len(checked.encode()) > MAX_COMPONENT_BYTES:
        raise RuleError(f"{quoted(checked)} is too long for a file's name")
    return checked


def word(value: object) -> str:
    """One argument of a command."""
    if isinstance(value, bool | int | float):
        raise expected("text", value, "put the value in quotes")
    checked = line(value)
    if not checked:
        raise RuleError("an empty argument", "remove it")
    return checked


def template(value: object) -> str:
    """One argument in which {job_id} and {queue_length} stand for the job's own."""
    checked = word(value)
    if any(brace in PLACEHOLDER_PATTERN.sub("", checked) for brace in "{}"):
        raise RuleError(f"{quoted(checked)} contains an unknown placeholder", "{job_id} and {queue_length} are known")
    return checked


# Lists and mappings


def _listed(value: object, rule: Rule[T], found: list[RuleError]) -> Iterator[T]:
    for index, entry in enumerate(value if isinstance(value, list) else ()):
        try:
            yield rule(entry)
        except RuleError as problem:
            found.append(problem.below(index))


def list_of(rule: Rule[T], *, of: str, example: str) -> Rule[tuple[T, ...]]:
    def check(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise expected(f"a list of {of}", value, f"for example {example}")
        found: list[RuleError] = []
        checked = tuple(_listed(value, rule, found))
        raise_all(found)
        return checked

    return check


def repeated(entries: Iterable[Hashable]) -> Iterator[RuleError]:
    seen: dict[Hashable, int] = {}
    for index, entry in enumerate(entries):
        if entry in seen:
            yield RuleError(f"{describe(entry)} is listed twice", "remove one of the two", (index,))
        seen.setdefault(entry, index)


def scripts(value: object) -> tuple[str, ...]:
    checked = list_of(script, of="scripts", example="[Base.py]")(value)
    raise_all(repeated(checked))
    return checked


def groups(value: object) -> tuple[str | int, ...]:
    checked = list_of(group, of="groups", example="[science, 4711]")(value)
    if not checked:
        raise RuleError("the list of groups is empty", "leave groups out to use the account's own groups")
    if len(checked) > MOST_GROUPS:
        raise RuleError(f"{len(checked)} groups are listed", f"at most {MOST_GROUPS}")
    return checked


def application_list(value: object) -> tuple[str, ...]:
    """Names of applications, not yet looked up; the single entry `all` stands for every one of them."""
    hint = "a list such as [base, early-gps], or all"
    if value == ALL:
        return (ALL,)
    if not isinstance(value, list):
        raise expected("a list of application names, or all", value, hint)
    checked = list_of(application_name, of="application names", example="[base]")(value)
    if not checked:
        raise RuleError("the list of applications is empty", hint)
    return checked


def environment(value: object) -> tuple[tuple[str, str], ...]:
    """Variables, sorted by name: their order in a file means nothing."""
    if not isinstance(value, dict):
        hint = "remove the line, or write {}" if value is None else "for example {DATA_DIR: /srv/data}"
        raise expected("a mapping of names to texts", value, hint)
    found: list[RuleError] = []
    for variable, content in value.items():
        if not ENV_NAME_PATTERN.fullmatch(variable):
            problem = RuleError(
                f"{quoted(variable)} is not a variable's name",
                "letters, digits and '_', the first not a digit",
                (variable,),
                on_key=True,
            )
        elif variable in RUNNER_ENV:
            problem = RuleError(f"{variable} is always set by the runner", "use another name", (variable,), on_key=True)
        elif not isinstance(content, str):
            problem = expected("text", content, "put the value in quotes").below(variable)
        elif "\0" in content:
            problem = RuleError("the value contains a NUL character", at=(variable,))
        else:
            continue
        found.append(problem)
    raise_all(found)
    if sum(len(f"{variable}={content}\0".encode()) for variable, content in value.items()) > MAX_ENV_BYTES:
        raise RuleError("the variables are too long together", f"at most {MAX_ENV_BYTES} bytes of names and values")
    return tuple(sorted(value.items()))
