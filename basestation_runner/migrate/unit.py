"""A service as systemd has read it, from what `systemctl show` and `systemctl cat` print. Pure.

Values are systemd's own, from `show`: it has joined lines, applied drop-ins and resolved specifiers. `cat` tells which
directives the administrator wrote, and where words begin and end, which `show` does not.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from basestation_runner.errors import RunnerError
from basestation_runner.text import quoted

PROPERTIES: Final = (
    "Id",
    "LoadState",
    "ActiveState",
    "UnitFileState",
    "FragmentPath",
    "Type",
    "MainPID",
    "ControlGroup",
    "ActiveEnterTimestampMonotonic",
    "InactiveEnterTimestampMonotonic",
    "KillMode",
    "ExecStart",
    "User",
    "Group",
    "SupplementaryGroups",
    "Environment",
    "EnvironmentFiles",
    "CPUQuotaPerSecUSec",
    "CPUWeight",
    "MemoryHigh",
    "MemoryMax",
    "TasksMax",
    "NeedDaemonReload",
)
"""What is asked of `systemctl show`."""

INFINITY: Final = "infinity"
_NOT_SET: Final = "[not set]"
_EXEC: Final = re.compile(r"\{ path=(?P<path>.*?) ; argv\[\]=(?P<argv>.*?) ; (?:ignore_errors|flags)=.*\}", re.DOTALL)
_ENVIRONMENT_FILE: Final = re.compile(r"(?P<path>.*) \(ignore_errors=(?P<optional>yes|no)\)", re.DOTALL)
_SPAN: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>us|ms|s|min|h|d|w|month|y)")
_MICROSECONDS: Final = {
    "us": 1,
    "ms": 1000,
    "s": 10**6,
    "min": 60 * 10**6,
    "h": 3600 * 10**6,
    "d": 86400 * 10**6,
    "w": 7 * 86400 * 10**6,
    "month": 2629800 * 10**6,
    "y": 31557600 * 10**6,
}
_ESCAPES: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "s": " ",
    "\\": "\\",
    '"': '"',
    "'": "'",
}
_CODES: Final = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")
_BLANKS: Final = " \t\n\r"
_PREFIXES: Final = "@-:+!|"
_IS_SPECIFIER: Final = re.compile(r"%.")
_SPECIFIER: Final = {"%%": "%"}
_VARIABLE: Final = re.compile(r"\$\$|\$\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)\}|^\$(?P<word>[A-Za-z_][A-Za-z0-9_]*)$")


@frozen
class Directive:
    """A line that somebody wrote: `value` is not resolved."""

    section: str
    name: str
    value: str
    file: str


@frozen
class EnvironmentFile:
    """A file of variables; an optional one may be missing."""

    path: str
    is_optional: bool


@frozen(kw_only=True)
class Unit:
    """One service. Limits are None where there is none; `variables` are those of Environment=."""

    name: str
    is_loaded: bool
    state: str  # systemd's ActiveState
    file_state: str  # systemd's UnitFileState: enabled, disabled, static …
    file: str
    type: str
    main_pid: int
    control_group: str
    active_since_us: int  # of the monotonic clock; 0: never
    inactive_since_us: int
    kill_mode: str
    needs_reload: bool
    argv: tuple[str, ...]
    user: str
    group: str
    supplementary: tuple[str, ...]
    variables: Mapping[str, str]
    environment_files: tuple[EnvironmentFile, ...]
    cpu_quota_us: int | None  # in each second
    cpu_weight: str | None
    memory_high: int | None  # bytes
    memory_max: int | None
    tasks_max: int | None
    directives: tuple[Directive, ...]

    @property
    def is_active(self) -> bool:
        """Whether it runs, or is about to."""
        return self.state in {"active", "activating", "reloading"}

    @property
    def is_enabled(self) -> bool:
        """Whether it starts with the host."""
        return self.file_state in {"enabled", "enabled-runtime"}

    @property
    def is_runtime(self) -> bool:
        """Whether it does so until the host's next start only."""
        return self.file_state == "enabled-runtime"

    def wrote(self, name: str) -> bool:
        """Tell whether somebody wrote a directive of this name."""
        return any(directive.name == name for directive in self.directives)

    def expanded(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """Return its command with variables replaced, as systemd does when it executes it."""
        command = next((each.value for each in self.directives if each.name == "ExecStart"), "")
        if ":" in command[: len(command) - len(command.lstrip(_PREFIXES))]:
            return self.argv
        return tuple(expand(self.argv, variables))


def parse(shown: str, files: str) -> Unit:
    """Given what `show` and `cat` print about a service, return it. Raises RunnerError when they do not agree."""
    values = properties(shown)

    def one(name: str) -> str:
        return values.get(name, [""])[-1]

    name = one("Id")
    written = tuple(directives(files))
    return Unit(
        name=name,
        is_loaded=one("LoadState") == "loaded",
        state=one("ActiveState"),
        file_state=one("UnitFileState"),
        file=one("FragmentPath"),
        type=one("Type"),
        main_pid=int(one("MainPID") or 0),
        control_group=one("ControlGroup"),
        active_since_us=int(one("ActiveEnterTimestampMonotonic") or 0),
        inactive_since_us=int(one("InactiveEnterTimestampMonotonic") or 0),
        kill_mode=one("KillMode"),
        needs_reload=one("NeedDaemonReload") == "yes",
        argv=_argv(name, values.get("ExecStart", []), [each.value for each in written if each.name == "ExecStart"]),
        user=one("User"),
        group=one("Group"),
        supplementary=tuple(listed(one("SupplementaryGroups"))),
        variables=dict(each.partition("=")[::2] for each in listed(one("Environment"))),
        environment_files=tuple(_environment_files(values.get("EnvironmentFiles", []))),
        cpu_quota_us=None if one("CPUQuotaPerSecUSec") in {"", INFINITY} else timespan(one("CPUQuotaPerSecUSec")),
        cpu_weight=None if one("CPUWeight") in {"", _NOT_SET} else one("CPUWeight"),
        memory_high=_number(one("MemoryHigh")),
        memory_max=_number(one("MemoryMax")),
        tasks_max=_number(one("TasksMax")),
        directives=written,
    )


def properties(shown: str) -> dict[str, list[str]]:
    """Given what `show` prints, return each property's values. A line that is no property goes on with the last one."""
    values: dict[str, list[str]] = {}
    last: list[str] = []
    for line in shown.splitlines():
        name, is_property, value = line.partition("=")
        if is_property and name in PROPERTIES:
            last = values.setdefault(name, [])
            last.append(value)
        elif last:
            last[-1] += f"\n{line}"
    return values


def directives(files: str) -> Iterator[Directive]:
    """Given what `cat` prints, yield what is in force of it: an empty value takes back what came before it."""
    found: list[Directive] = []
    file = section = ""
    for line, comment in _lines(files):
        if comment:
            file = comment
            section = ""
        elif line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            name, _, value = (part.strip() for part in line.partition("="))
            if value:
                found.append(Directive(section, name, value, file))
            else:
                found = [each for each in found if (each.section, each.name) != (section, name)]
    yield from found


def _lines(files: str) -> Iterator[tuple[str, str]]:
    """Yield each line with what continues it, and "", or "" and the path that `cat` tells of a file."""
    joined = ""
    is_first = True
    for raw in files.splitlines():
        line = raw.strip()
        if line[:1] in {"#", ";"}:
            # systemctl's own comment: before each file, after an empty line unless it is the first.
            if not joined and is_first and line.startswith("# /"):
                yield "", line.removeprefix("# ")
            is_first = False
            continue
        is_first = not line
        joined += line
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        if joined.strip():
            yield joined.strip(), ""
        joined = ""
    if joined.strip():
        yield joined.strip(), ""


def words(text: str) -> list[str]:
    """Return a value's words as systemd takes them apart: quotes and C escapes, but no specifiers."""
    found: list[str] = []
    word: str | None = None
    quote = ""
    place = 0
    while place < len(text):
        letter = text[place]
        place += 1
        if letter == "\\":
            unescaped, length = _unescaped(text, place)
            word = (word or "") + unescaped
            place += length
        elif quote:
            if letter == quote:
                quote = ""
            else:
                word = (word or "") + letter
        elif letter in "\"'":
            quote = letter
            word = word or ""
        elif letter in _BLANKS:
            if word is not None:
                found.append(word)
            word = None
        else:
            word = (word or "") + letter
    return found if word is None else [*found, word]


def _unescaped(text: str, place: int) -> tuple[str, int]:
    """Return what the escape whose letter is at `place` stands for, and how long that is without the backslash."""
    letter = text[place : place + 1]
    if letter in _ESCAPES:
        return _ESCAPES[letter], 1
    code = _CODES.match(text, place)
    if code is None:
        return "\\", 0
    digits = next(group for group in code.groups() if group)
    number = int(digits, 8 if code[4] else 16)
    return chr(number) if number < 0x110000 else "\N{REPLACEMENT CHARACTER}", len(code[0])  # noqa: PLR2004 - Unicode's end


def listed(shown: str) -> list[str]:
    """Return the entries of a list as `show` prints it: quoted as for a shell where need be."""
    # $'…' has C escapes, as "…" has in words(); inside "…" a shell takes only \\ \" \` and \$ for escapes.
    plain = re.sub(r"(^|(?<= ))\$'", "'", shown)
    plain = re.sub(r"\\([`$])", r"\1", plain)
    return words(plain)


def _argv(name: str, shown: Sequence[str], written: Sequence[str]) -> tuple[str, ...]:
    """Return the one command of a service, with specifiers as systemd has resolved them."""
    if not shown:
        return ()
    if len(shown) > 1:
        raise RunnerError("it has several commands (ExecStart=)", where=name, hint="only one is understood")
    told = _EXEC.fullmatch(shown[0])
    if told is None:
        raise RunnerError(f"what systemctl shows of its command is not understood: {quoted(shown[0])}", where=name)
    if not written:  # made by a generator
        return tuple(told["argv"].split(" "))
    found = resolved(written[-1], told["argv"])
    if found is None:
        raise RunnerError(
            f"systemd runs {quoted(told['argv'])}, which is not what its files say",
            where=name,
            hint="systemctl daemon-reload, if they were changed",
        )
    return found


def resolved(written: str, told: str) -> tuple[str, ...] | None:
    """Given a command as written, and its words joined as systemd tells them, return the words; None if they differ."""
    command = words(written)
    prefixes = ""
    while command and command[0][:1] in _PREFIXES and command[0][:1]:
        prefixes += command[0][0]
        command[0] = command[0][1:]
    if command and not command[0]:  # the prefix stood alone
        command = command[1:]
    if "@" in prefixes:  # the second word is what the program is called
        command = command[1:]
    pattern = " ".join(f"({_pattern(word)})" for word in command)
    match = re.fullmatch(pattern, told, re.DOTALL)
    return None if match is None else match.groups()


def _pattern(word: str) -> str:
    """Return what a word with specifiers may have become."""
    parts = re.split(r"(%.)", word)
    return "".join(_SPECIFIER.get(part, ".*?") if _IS_SPECIFIER.fullmatch(part) else re.escape(part) for part in parts)


def expand(argv: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Replace variables in a command: `${NAME}` anywhere by its value, a word `$NAME` by its value's words."""
    yield from argv[:1]
    for word in argv[1:]:
        alone = _VARIABLE.fullmatch(word)
        if alone is not None and alone["word"]:
            yield from variables.get(alone["word"], "").split()
        else:
            yield _VARIABLE.sub(lambda found: variables.get(found["braced"], "") if found["braced"] else "$", word)


def _environment_files(shown: Sequence[str]) -> Iterator[EnvironmentFile]:
    for line in shown:
        told = _ENVIRONMENT_FILE.fullmatch(line)
        if told is not None:
            yield EnvironmentFile(told["path"], told["optional"] == "yes")


def variables_of(text: str) -> dict[str, str]:
    """Given the content of an EnvironmentFile=, return its variables."""
    found: dict[str, str] = {}
    for line in _joined(text):
        name, is_variable, value = line.partition("=")
        name = name.strip()
        if is_variable and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            found[name] = _unquoted(value.strip())
    return found


def _joined(text: str) -> Iterator[str]:
    """Yield a file's lines without comments; one whose quote is open, or that ends in a backslash, goes on."""
    joined = ""
    for line in text.splitlines():
        if not joined and line.lstrip()[:1] in {"#", ";"}:
            continue
        joined += line
        if _is_open(joined):
            joined += "\n"
        elif len(joined) - len(joined.rstrip("\\")) & 1:
            joined = joined[:-1]
        else:
            yield joined
            joined = ""
    if joined:
        yield joined


def _is_open(line: str) -> bool:
    """Tell whether a variable's value begins with a quote that is not closed."""
    value = line.partition("=")[2].strip()
    quote = value[:1]
    if quote not in {'"', "'"} or not quote:
        return False
    body = re.sub(r"\\.", "", value[1:], flags=re.DOTALL) if quote == '"' else value[1:]
    return quote not in body


def _unquoted(value: str) -> str:
    """Return a variable's value: as in a shell, but nothing is expanded."""
    found = ""
    quote = ""
    place = 0
    while place < len(value):
        letter = value[place]
        place += 1
        following = value[place : place + 1]
        if letter == "\\" and quote != "'" and following:
            place += 1
            if following != "\n":
                found += following if not quote or following in '"\\`$' else letter + following
        elif letter == quote:
            quote = ""
        elif letter in "\"'" and not quote:
            quote = letter
        else:
            found += letter
    return found


def timespan(text: str) -> int:
    """Return microseconds. Raises RunnerError for what is no time span."""
    parts = text.split()
    found = [_SPAN.fullmatch(part) for part in parts]
    if not parts or None in found:
        raise RunnerError(f"{quoted(text)} is no time span")
    return sum(round(float(part["number"]) * _MICROSECONDS[part["unit"]]) for part in found if part is not None)


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) < 1 << 63 else None
