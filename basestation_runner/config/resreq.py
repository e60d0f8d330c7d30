"""Resource requirements, `select[…] rusage[…] span[…] same[…] order[…]`: parsed, written in one form, evaluated. Pure.

select: conditions on what the host is, `select[os == linux && (ssd || mem_gb >= 64)]`.
rusage: amounts of what the host offers, `rusage[license_foam=1, scratch_gb=20]`.
span: where tasks may go, `span[hosts=1]` or `span[ptile=4]`.
same: attributes that all hosts of a job share, `same[os:model]`.
order: which hosts are better, `order[mem_gb:-load]`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, TypeAlias

from attrs import frozen

from basestation_runner.config.rules import RuleError, line
from basestation_runner.text import quoted

Attribute: TypeAlias = str | float | bool

SECTIONS: Final = ("select", "rusage", "span", "same", "order")
MAX_LENGTH: Final = 2000  # characters
MAX_OPEN: Final = 40  # parentheses around a condition
MAX_HEIGHT: Final = 20  # of a condition: how deep && in || in && … goes; it needs no more parentheses than that
MAX_AMOUNT: Final = (1 << 31) - 1
FORM: Final = "for example select[os == linux] rusage[license_foam=1]"

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<word>[A-Za-z0-9_][A-Za-z0-9_.]*)|(?P<text>'[^']*'|"[^"]*")"""
    r"""|(?P<mark>&&|\|\||==|!=|>=|<=|[><!()=,:{}*+\[\]-])|(?P<end>$)|(?P<other>.))""",
    re.DOTALL,
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# So many digits are the same after they have been a float.
_NUMBER: Final = re.compile(r"[0-9]{1,15}|[0-9]{1,9}\.[0-9]{1,6}")
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": lambda one, other: one >= other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    "<": lambda one, other: one < other,
}


@frozen(kw_only=True)
class Requirement:
    """What a job needs of a host. The texts are in the one form that `parse` writes.

    `select` holds conditions that must all be met; they and `rusage` are sorted.
    """

    select: tuple[str, ...] = ()
    rusage: tuple[tuple[str, int], ...] = ()
    span: str | None = None
    same: str | None = None
    order: str | None = None

    def __str__(self) -> str:
        rusage = ", ".join(f"{name}={amount}" for name, amount in self.rusage)
        bodies = (" && ".join(self.select), rusage, self.span, self.same, self.order)
        return " ".join(f"{name}[{body}]" for name, body in zip(SECTIONS, bodies, strict=True) if body)


def requirement(value: object) -> Requirement:
    """The rule for a field that holds one."""
    return parse(line(value))


def parse(written: str) -> Requirement:
    """Given a requirement's text, return it. Raise RuleError, which says at which character it is wrong."""
    made = _Parser(_bounded(written)).requirement()
    _bounded(str(made))  # what is written out can be parsed again
    return made


def _bounded(written: str) -> str:
    if len(written) > MAX_LENGTH:
        raise RuleError("the resource requirement is too long", f"at most {MAX_LENGTH} characters")
    return written


def holds(condition: str, attributes: Mapping[str, Attribute]) -> bool:
    """Tell whether a host with these attributes meets a condition of a `select`.

    An attribute that the host does not have is false, and equal to nothing.
    """
    return _evaluate(_Parser(condition).condition(), attributes)


# Conditions


@frozen
class _Test:
    """An attribute by itself, or compared with a value."""

    name: str
    operator: str = ""
    value: str | float = ""

    def __str__(self) -> str:
        if not self.operator:
            return self.name
        return f"{self.name} {self.operator} {_shown(self.value)}"


@frozen
class _Not:
    inner: "_Test | _Group"

    def __str__(self) -> str:
        return f"!({self.inner})" if isinstance(self.inner, _Group) else f"!{self.inner}"


@frozen
class _Group:
    """Conditions of which all must hold, or one; there are at least two of them, each once, and sorted."""

    operator: Literal["&&", "||"]
    parts: tuple["_Condition", ...]

    def __str__(self) -> str:
        return f" {self.operator} ".join(f"({part})" if isinstance(part, _Group) else str(part) for part in self.parts)


_Condition: TypeAlias = _Test | _Not | _Group


def _group(operator: Literal["&&", "||"], parts: Sequence[_Condition]) -> _Condition:
    flat: list[_Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, _Group) and part.operator == operator else [part]
    distinct = {str(part): part for part in flat}
    ordered = tuple(distinct[key] for key in sorted(distinct))
    return ordered[0] if len(ordered) == 1 else _Group(operator, ordered)


def _shown(value: str | float) -> str:
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else f"'{value}'" if "'" not in value else f'"{value}"'
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _height(condition: _Condition) -> int:
    match condition:
        case _Test():
            return 0
        case _Not(inner):
            return 1 + _height(inner)
        case _Group(_, parts):
            return 1 + max(map(_height, parts))


def _evaluate(condition: _Condition, attributes: Mapping[str, Attribute]) -> bool:
    match condition:
        case _Not(inner):
            return not _evaluate(inner, attributes)
        case _Group(operator, parts):
            return (all if operator == "&&" else any)(_evaluate(part, attributes) for part in parts)
        case _Test(name, "", _):
            return bool(attributes.get(name, False))
        case _Test(name, operator, value):
            return name in attributes and _compare(attributes[name], operator, value)


def _compare(attribute: Attribute, operator: str, value: str | float) -> bool:
    if isinstance(attribute, bool):
        attribute = "true" if attribute else "false"
    if isinstance(attribute, str) != isinstance(value, str):  # a text and a number are never equal
        return operator == "!="
    if operator in {"==", "!="}:
        return (attribute == value) is (operator == "==")
    return not isinstance(attribute, str) and not isinstance(value, str) and _COMPARISONS[operator](attribute, value)


# Parsing


@frozen
class _Token:
    kind: str
    text: str
    at: int  # the character, counted from 1


class _Parser:
    """Takes a requirement, or a condition, token by token."""

    def __init__(self, written: str) -> None:
        self._tokens = list(_tokens(written))
        self._next = 0
        self._open = 0

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> _Token | None:
        """Take the next token if it is one of these marks or words."""
        token = self._token
        if token.kind in {"mark", "word"} and token.text in texts:
            self._next += 1
            return token
        return None

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            self._fail(quoted(mark))

    def _fail(self, wanted: str, hint: str = FORM) -> NoReturn:
        token = self._token
        found = "the end" if token.kind == "end" else quoted(token.text)
        raise RuleError(f"character {token.at}: expected {wanted}, found {found}", hint)

    def _refuse(self, what: str, hint: str) -> NoReturn:
        raise RuleError(f"character {self._token.at}: {what}", hint)

    def requirement(self) -> Requirement:
        if self._token.text == "{" or (self._token.text.isdecimal() and self._tokens[self._next + 1].text == "*"):
            self._refuse_several()
        bodies_of: Mapping[str, Callable[[], Any]] = {
            "select": self._select,
            "rusage": self._rusage,
            "span": self._span,
            "same": self._same,
            "order": self._order,
        }
        bodies: dict[str, Any] = {}
        while self._token.kind != "end":
            section = self._section(bodies)
            self._expect("[")
            bodies[section] = bodies_of[section]()
            self._expect("]")
        return Requirement(**bodies)

    def _refuse_several(self) -> NoReturn:
        self._refuse("compound and alternative requirements ({…} || {…}, 2*{…} + …) are not supported", "write one")

    def _section(self, before: Mapping[str, object]) -> str:
        if self._token.text in {"||", "{", "+"}:
            self._refuse_several()
        name = self._token.text
        if name not in SECTIONS:
            self._fail(", ".join(SECTIONS[:-1]) + f" or {SECTIONS[-1]}")
        if name in before:
            self._refuse(f"{name} is there twice", f"write one {name}[…]")
        self._next += 1
        return name

    def condition(self) -> _Condition:
        """Return the whole text as one condition."""
        condition = self._either()
        if self._token.kind != "end":
            self._fail("&& or ||")
        return condition

    def _select(self) -> tuple[str, ...]:
        condition = self._either()
        if _height(condition) > MAX_HEIGHT:
            self._refuse("the condition is nested too deep", f"at most {MAX_HEIGHT} levels")
        if isinstance(condition, _Group) and condition.operator == "&&":
            return tuple(f"({part})" if isinstance(part, _Group) else str(part) for part in condition.parts)
        return (f"({condition})" if isinstance(condition, _Group) else str(condition),)

    def _either(self) -> _Condition:
        parts = [self._both()]
        while self._take("||"):
            parts.append(self._both())
        return _group("||", parts)

    def _both(self) -> _Condition:
        parts = [self._unary()]
        while self._take("&&"):
            parts.append(self._unary())
        return _group("&&", parts)

    def _unary(self) -> _Condition:
        is_negated = False
        while self._take("!"):
            is_negated = not is_negated
        condition = self._plain()
        if not is_negated:
            return condition
        return condition.inner if isinstance(condition, _Not) else _Not(condition)

    def _plain(self) -> _Condition:
        if self._token.text != "(":
            return self._test()
        self._open += 1
        if self._open > MAX_OPEN:
            self._refuse("the condition is nested too deep", f"at most {MAX_OPEN} parentheses")
        self._expect("(")
        condition = self._either()
        self._expect(")")
        self._open -= 1
        return condition

    def _test(self) -> _Test:
        name = self._name()
        operator = self._take("==", "!=", ">=", "<=", ">", "<")
        if operator is None:
            return _Test(name)
        value = self._number_or_text(operator.text)
        if isinstance(value, str) and operator.text in _COMPARISONS:
            self._fail(f"a number after {operator.text}")
        self._next += 1
        return _Test(name, operator.text, value)

    def _number_or_text(self, operator: str) -> str | float:
        """Return the value that the next token is, or the next but one after a minus, and stay at it."""
        sign = -1.0 if self._take("-") else 1.0
        token = self._token
        if token.kind == "word" and _NUMBER.fullmatch(token.text):
            return sign * float(token.text)
        if sign < 0 or token.kind not in {"word", "text"}:
            self._fail(f"a value after {operator}", "put a text with special characters in quotes")
        return token.text if token.kind == "word" else token.text[1:-1]

    def _name(self) -> str:
        token = self._token
        if token.kind != "word" or not _NAME.fullmatch(token.text):
            self._fail("a name", "names have letters, digits and '_', the first not a digit")
        self._next += 1
        return token.text

    def _rusage(self) -> tuple[tuple[str, int], ...]:
        amounts: dict[str, int] = {}
        while True:
            at = self._token
            name = self._name()
            if name in amounts:
                raise RuleError(f"character {at.at}: {name} is there twice", "write one amount")
            self._expect("=")
            amounts[name] = self._number()
            if self._token.text in {"||", ":"}:
                self._refuse("alternatives, durations and decays are not supported", "separate amounts by commas")
            if not self._take(","):
                return tuple(sorted(amounts.items()))

    def _number(self, most: int = MAX_AMOUNT) -> int:
        token = self._token
        if not (token.kind == "word" and token.text.isdecimal()):
            self._fail("a whole number")
        if len(token.text) > len(str(MAX_AMOUNT)) or not 1 <= int(token.text) <= most:
            self._fail(f"a number from 1 to {most}" if most > 1 else "1")
        self._next += 1
        return int(token.text)

    def _span(self) -> str:
        name = self._take("hosts", "ptile")
        if name is None:
            self._fail("hosts or ptile", "for example span[hosts=1]")
        self._expect("=")
        return f"{name.text}={self._number(1 if name.text == 'hosts' else MAX_AMOUNT)}"

    def _same(self) -> str:
        return ":".join(sorted({name for _, name in self._names(signs=False)}))

    def _order(self) -> str:
        return ":".join(sign + name for sign, name in self._names(signs=True))

    def _names(self, *, signs: bool) -> Iterator[tuple[str, str]]:
        while True:
            sign = self._take("-") if signs else None
            yield "-" if sign else "", self._name()
            if not self._take(":"):
                return


def _tokens(written: str) -> Iterator[_Token]:
    position = 0
    while True:
        found = _TOKEN.match(written, position)
        if found is None or found.lastgroup is None:  # the pattern takes anything
            raise AssertionError(written)
        token = _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup) + 1)
        if token.kind == "other":
            raise RuleError(f"character {token.at}: {quoted(token.text)} is not expected here", FORM)
        yield token
        if token.kind == "end":
            return
        position = found.end()
