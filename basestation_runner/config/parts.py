"""What profiles hold besides plain values, and what a host is: small classes whose fields have rules. Pure."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from attrs import fields_dict, frozen

from basestation_runner.config import profilerules, rules
from basestation_runner.config.profilerules import DURATIONS, MEMORY, with_unit
from basestation_runner.config.rules import RuleError


@frozen(kw_only=True)
class Limits:
    """The most that a job may use; None where there is no limit."""

    runtime: Annotated[int | None, rules.optional(profilerules.duration)] = None  # seconds
    memory: Annotated[int | None, rules.optional(profilerules.memory)] = None  # bytes
    cpu: Annotated[int | None, rules.optional(profilerules.percentage)] = None  # per cent of one processor
    tasks: Annotated[int | None, rules.optional(rules.number(1, rules.MAX_TASKS))] = None  # processes and threads

    @property
    def named(self) -> Mapping[str, int]:
        """Those that there are."""
        return {name: value for name in fields_dict(Limits) if (value := getattr(self, name)) is not None}


def limit_text(name: str, value: int) -> str | int:
    """Given a limit's name and value, return it as a file would say it."""
    match name:
        case "runtime":
            return with_unit(value, DURATIONS)
        case "memory":
            return with_unit(value, MEMORY)
        case "cpu":
            return f"{value}%"
    return value


@frozen(kw_only=True)
class TaskRange:
    """How many tasks a parallel job may have; one that names no number has the least."""

    min: Annotated[int, rules.number(1, rules.MAX_TASKS)] = 1
    max: Annotated[int | None, rules.optional(rules.number(1, rules.MAX_TASKS))] = None

    @property
    def most(self) -> int:
        """The most tasks; without a `max` that is `min`."""
        return self.min if self.max is None else self.max


@frozen(kw_only=True)
class Sandbox:
    """What a job in a sandbox sees besides a read-only system and its mission directory."""

    network: Annotated[bool, rules.flag] = False
    inputs: Annotated[tuple[str, ...], profilerules.directories] = ()  # always there, read-only
    outputs: Annotated[tuple[str, ...], profilerules.directories] = ()  # always there, writable
    job_inputs: Annotated[tuple[str, ...], profilerules.directories] = ()  # a job may add what lies at or beneath these
    job_outputs: Annotated[tuple[str, ...], profilerules.directories] = ()


@frozen(kw_only=True)
class Host:
    """What this host is, for `select`, and what it offers, for `rusage`."""

    attributes: Annotated[tuple[tuple[str, str | int | float | bool], ...], profilerules.attributes] = ()
    resources: Annotated[tuple[tuple[str, int], ...], profilerules.resources] = ()


def conflicts(values: Mapping[str, object]) -> Iterator[RuleError]:
    """Given the valid fields of one profile's entry, return what is wrong between them."""
    if values.get("scripts") and values.get("command"):
        yield RuleError("a profile has scripts or a command, not both", "make two profiles", ("command",))
    if "sandbox" in values and values.get("mode", "direct") != "sandbox":
        yield RuleError("sandbox is for profiles of mode sandbox", "write mode: sandbox", ("sandbox",))
    match values.get("job_pre_post_exec", "forbid"), values.get("job_exec_dirs", ()):
        case "allow", ():
            hint = "list in job_exec_dirs the directories whose programs a job may name"
            yield RuleError("no directory is listed for it", hint, ("job_pre_post_exec",))
        case "forbid", (_, *_):
            yield RuleError("no job may use it", "write job_pre_post_exec: allow", ("job_exec_dirs",))
    tasks, limits = values.get("tasks"), values.get("limits")
    if isinstance(tasks, TaskRange):
        if tasks.most < tasks.min:
            yield RuleError(f"min ({tasks.min}) is above max ({tasks.max})", "", ("tasks", "min"))
        elif values.get("launch_type", "serial") == "serial" and tasks.most > 1:
            yield RuleError("a serial job is one task", "write launch_type: openmpi or mpich", ("tasks",))
        elif isinstance(limits, Limits) and limits.tasks is not None and limits.tasks < tasks.most:
            what = f"{limits.tasks} processes are not enough for {tasks.most} tasks"
            yield RuleError(what, "limits.tasks counts every process and thread of a job", ("limits", "tasks"))
