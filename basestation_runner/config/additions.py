"""What a request adds to its application's profile, typed: from its further lines, and from the wire. Reads no file.

Whether the profile allows it is for effective.py to say.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from attrs import Factory, frozen

from basestation_runner.config import profilerules, rules
from basestation_runner.config.faults import ConfigErrors, Fault, dotted
from basestation_runner.config.nested import fields_of
from basestation_runner.config.parts import Limits, limit_text
from basestation_runner.config.resreq import Requirement, requirement
from basestation_runner.config.rules import RuleError, rule_errors

MAX_BYTES: Final = 16384  # of the lines after a request's first: a parser's time is everybody's
MAX_LINE: Final = 4096  # characters
MAX_DEPTH: Final = 4
MAX_NODES: Final = 2000

_SHOWN: Final = 3
"""How many mistakes a reason names."""
_LONGEST: Final = 420
"""Characters of all of them."""


class AdditionsError(Exception):
    """The additions are not acceptable; the text says in one short line what is wrong."""


@frozen(kw_only=True)
class Additions:
    """What a job wants besides what its profile says; `application` is the name by which its request means one."""

    application: Annotated[str | None, rules.application_name] = None
    env: Annotated[tuple[tuple[str, str], ...], rules.environment] = ()
    pre_exec: Annotated[tuple[str, ...] | None, profilerules.step] = None
    post_exec: Annotated[tuple[str, ...] | None, profilerules.step] = None
    limits: Annotated[Limits, fields_of(Limits)] = Factory(Limits)
    groups: Annotated[tuple[str | int, ...] | None, rules.groups] = None
    tasks: Annotated[int | None, rules.number(1, rules.MAX_TASKS)] = None
    resreq: Annotated[Requirement, requirement] = Factory(Requirement)
    inputs: Annotated[tuple[str, ...], profilerules.paths] = ()
    outputs: Annotated[tuple[str, ...], profilerules.paths] = ()

    @property
    def data(self) -> dict[str, Any]:
        """All but the application, as a request would say it and as ledger and wire hold it; {} if there is nothing."""
        listed = {name: list(value) for name in _LISTS if (value := getattr(self, name))}
        data: dict[str, Any] = {"env": dict(self.env), **listed, "tasks": self.tasks, "resreq": str(self.resreq)}
        data["limits"] = {name: limit_text(name, value) for name, value in self.limits.named.items()}
        return {name: value for name, value in data.items() if value}


_LISTS: Final = ("pre_exec", "post_exec", "groups", "inputs", "outputs")

NOTHING: Final = Additions()

_RULE: Final = fields_of(Additions)


def of_data(data: Mapping[str, Any]) -> Additions:
    """Given what `Additions.data` returned, return the additions. Raise AdditionsError if it is anything else."""
    if not data:
        return NOTHING
    try:
        made = _RULE(data)
    except (RuleError, ExceptionGroup) as error:
        raise AdditionsError(summary(f"{dotted(found.at)}: {found.what}" for found in rule_errors(error))) from None
    if made.application is not None:
        raise AdditionsError("application: it is no addition here")
    return made


def of_lines(text: str) -> Additions:
    """Given a request's text, its first line emptied, return what its other lines say. Raises AdditionsError."""
    encoded = text.encode()
    if len(encoded) > MAX_BYTES:
        raise AdditionsError(f"its lines after the first are longer than {MAX_BYTES >> 10} KiB")
    # Most requests have one line, and most watchers never need the parser.
    from basestation_runner.config.document import Source, parse  # noqa: PLC0415
    from basestation_runner.config.places import Bounds  # noqa: PLC0415

    bounds = Bounds(line=MAX_LINE, depth=MAX_DEPTH, nodes=MAX_NODES, may_repeat=False)
    try:
        document = parse(Source("", encoded), bounds)
    except ConfigErrors as error:
        raise AdditionsError(summary(map(_in_line, error.faults))) from None
    faults = list(document.faults)
    try:
        made = NOTHING if document.data is None else _RULE(document.data)
    except (RuleError, ExceptionGroup) as error:
        faults += (
            document.fault(found.at, found.what, found.hint, on_key=found.on_key) for found in rule_errors(error)
        )
    if faults:
        raise AdditionsError(summary(map(_in_line, sorted(faults, key=lambda fault: (fault.line, fault.column)))))
    return made


def _in_line(fault: Fault) -> str:
    path = f"{fault.path}: " if fault.path else ""
    hint = f" ({fault.hint})" if fault.hint else ""
    return f"line {fault.line}, column {fault.column}: {path}{fault.what}{hint}"


def summary(told: Iterable[str]) -> str:
    """Given sentences about mistakes, return one line: the first few of them, and how many more there are."""
    every = list(told)
    longest = _LONGEST // max(1, min(len(every), _SHOWN))
    shown = [text if len(text) <= longest else text[: longest - 1] + "…" for text in every[:_SHOWN]]
    more = len(every) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
