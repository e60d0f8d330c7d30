"""What a job is run with: its application's profile, the site's own, and what the job adds. Pure.

A job may only add. `effective` is the whole rule; the watcher asks it early, for the answer to whoever dropped the
request, and the helper asks it again, for the truth.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from posixpath import dirname
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from attrs import frozen

from basestation_runner.config.additions import Additions, summary
from basestation_runner.config.environment import is_always_set, runs_code
from basestation_runner.config.model import Application, Site
from basestation_runner.config.parts import limit_text
from basestation_runner.config.resreq import Requirement
from basestation_runner.paths import join_jail, lies_beneath
from basestation_runner.text import quoted

T = TypeVar("T")
Origin: TypeAlias = Literal["site", "profile", "job"]
Add: TypeAlias = Callable[[str, str], None]

_MIB: Final = 1 << 20


@frozen
class Value(Generic[T]):
    """A value, and who says so."""

    value: T
    origin: Origin


@frozen
class Conflict:
    """What a job may not add, as the path to it and a reason that names what stands against it."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class ConflictsError(Exception):
    """A job wants what its application does not allow; the text is one line."""

    def __init__(self, conflicts: Iterable[Conflict]) -> None:
        """Keep every conflict; the text shows the first few."""
        self.conflicts = tuple(conflicts)
        super().__init__(summary(map(str, self.conflicts)))


@frozen(kw_only=True)
class Effective:
    """What a job is run with. Mappings are sorted by name, and are never changed.

    `limits` holds only those that there are. `before` and `after` are the steps in the order in which they are run.
    """

    mode: Value[str]
    launch_type: Value[str]
    network: Value[bool]
    inputs: tuple[Value[str], ...]
    outputs: tuple[Value[str], ...]
    env: Mapping[str, Value[str]]
    groups: Value[tuple[str | int, ...] | None]
    limits: Mapping[str, Value[int]]
    tasks: Value[int]
    select: tuple[Value[str], ...]
    rusage: Mapping[str, Value[int]]
    span: Value[str] | None
    same: Value[str] | None
    order: Value[str] | None
    before: tuple[Value[tuple[str, ...]], ...]
    after: tuple[Value[tuple[str, ...]], ...]


def effective(site: Site, profile: Application, additions: Additions) -> Effective:
    """Given a job's site, its application's profile and what it adds, return what it is run with.

    Raises ConflictsError with everything that the job may not add.
    """
    conflicts: list[Conflict] = []

    def add(path: str, reason: str) -> None:
        conflicts.append(Conflict(path, reason))

    profiles, jobs = profile.resreq, additions.resreq
    made = Effective(
        mode=Value(profile.mode, "profile"),
        launch_type=Value(profile.launch_type, "profile"),
        network=Value(profile.sandbox.network, "profile"),
        inputs=_places("inputs", site, profile, profile.sandbox.inputs, additions.inputs, add),
        outputs=_places("outputs", site, profile, profile.sandbox.outputs, additions.outputs, add),
        env=_env(site, profile, additions, add),
        groups=_groups(site, additions, add),
        limits=_limits(site, profile, additions, add),
        tasks=_tasks(profile, additions, add),
        select=_select(profiles, jobs),
        rusage=_rusage(profile, jobs, add),
        span=_once("span", profile, jobs, add),
        same=_once("same", profile, jobs, add),
        order=_once("order", profile, jobs, add),
        before=_steps(profile.pre_exec, _step("pre_exec", profile, additions, add)),
        after=tuple(reversed(_steps(profile.post_exec, _step("post_exec", profile, additions, add)))),
    )
    if conflicts:
        raise ConflictsError(conflicts)
    return made


def _env(site: Site, profile: Application, additions: Additions, add: Add) -> Mapping[str, Value[str]]:
    """The site's own values stand over the profile's: an admin wrote both."""
    values = {name: Value[str](value, "profile") for name, value in profile.env}
    values |= {name: Value[str](value, "site") for name, value in site.env}
    for name, value in additions.env:
        path = f"env.{name}"
        if is_always_set(name):
            add(path, "the runner sets it for every job")
        elif name in values:
            known = values[name]
            whose = f"site {site.name}" if known.origin == "site" else f"application {profile.name}"
            add(path, f"{whose} sets it to {quoted(known.value)}")
        elif runs_code(name) and name not in profile.job_env:
            allowed = ", ".join(profile.job_env) or "none"
            add(path, f"it can make other code run, and application {profile.name} allows of those: {allowed}")
        else:
            values[name] = Value(value, "job")
    return dict(sorted(values.items()))


def _groups(site: Site, additions: Additions, add: Add) -> Value[tuple[str | int, ...] | None]:
    """Without a list of the site's, the account's own groups are the list, and only the helper can see them."""
    wanted = additions.groups
    if wanted is None:
        return Value(site.groups, "site")
    if site.groups is not None:
        listed = ", ".join(map(str, site.groups))
        if wanted[0] != site.groups[0]:
            add("groups", f"the first must be {site.groups[0]}, the effective group of site {site.name}")
        for entry in wanted[1:]:
            if entry not in site.groups:
                add("groups", f"{quoted(str(entry))} is not one of site {site.name}: {listed}")
    return Value(wanted, "job")


def _limits(site: Site, profile: Application, additions: Additions, add: Add) -> Mapping[str, Value[int]]:
    values = {name: Value[int](most, "profile") for name, most in profile.limits.named.items()}
    if site.memory_max_mb is not None:
        most = site.memory_max_mb * _MIB
        if "memory" not in values or most < values["memory"].value:
            values["memory"] = Value(most, "site")
    for name, wanted in additions.limits.named.items():
        known = values.get(name)
        if known is not None and wanted > known.value:
            whose = f"site {site.name}" if known.origin == "site" else f"application {profile.name}"
            what = f"{limit_text(name, wanted)} is above the {limit_text(name, known.value)} of {whose}"
            add(f"limits.{name}", what)
        elif known is None or wanted < known.value:
            values[name] = Value(wanted, "job")
    return dict(sorted(values.items()))


def _tasks(profile: Application, additions: Additions, add: Add) -> Value[int]:
    wanted, allowed = additions.tasks, profile.tasks
    if wanted is None:
        return Value(allowed.min, "profile")
    if not allowed.min <= wanted <= allowed.most:
        span = f"{allowed.min}" if allowed.most == allowed.min else f"{allowed.min} to {allowed.most}"
        add("tasks", f"application {profile.name} runs with {span}")
    return Value(wanted, "job")


def _select(profiles: Requirement, jobs: Requirement) -> tuple[Value[str], ...]:
    """All must be met."""
    origins: dict[str, Origin] = {**dict.fromkeys(jobs.select, "job"), **dict.fromkeys(profiles.select, "profile")}
    return tuple(Value(term, origins[term]) for term in sorted(origins))


def _rusage(profile: Application, jobs: Requirement, add: Add) -> Mapping[str, Value[int]]:
    values = {name: Value[int](amount, "profile") for name, amount in profile.resreq.rusage}
    for name, amount in jobs.rusage:
        if name in values:
            add("resreq", f"application {profile.name} has rusage[{name}={values[name].value}]")
        else:
            values[name] = Value(amount, "job")
    return dict(sorted(values.items()))


def _once(section: str, profile: Application, jobs: Requirement, add: Add) -> Value[str] | None:
    """A section that a job may set only where the profile does not."""
    known: str | None = getattr(profile.resreq, section)
    wanted: str | None = getattr(jobs, section)
    if known is not None:
        if wanted is not None:
            add("resreq", f"application {profile.name} has {section}[{known}]")
        return Value(known, "profile")
    return None if wanted is None else Value(wanted, "job")


def _places(  # noqa: PLR0913, PLR0917 - what inputs and outputs share
    field: str, site: Site, profile: Application, always: Iterable[str], wanted: Iterable[str], add: Add
) -> tuple[Value[str], ...]:
    """Paths on the host; those of a jailed site's job are as seen in the jail."""
    prefixes: tuple[str, ...] = getattr(profile.sandbox, f"job_{field}")
    origins: dict[str, Origin] = {}
    for path in wanted:
        on_host = join_jail(site.jail_root, path) if site.jailed and site.jail_root else path
        if profile.mode != "sandbox":
            add(field, f"application {profile.name} runs jobs in mode {profile.mode}, where there are none")
            break
        if any(lies_beneath(on_host, prefix) for prefix in prefixes):
            origins[on_host] = "job"
        else:
            allowed = ", ".join(prefixes) or "nowhere"
            add(field, f"{quoted(path)} is not where application {profile.name} allows them: {allowed}")
    origins.update(dict.fromkeys(always, "profile"))
    return tuple(Value(path, origins[path]) for path in sorted(origins))


def _step(field: str, profile: Application, additions: Additions, add: Add) -> tuple[str, ...] | None:
    """A job's own step is a program that lies directly in one of the directories that the profile lists."""
    wanted: tuple[str, ...] | None = getattr(additions, field)
    if wanted is None:
        return None
    if profile.job_pre_post_exec == "forbid":
        add(field, f"application {profile.name} has job_pre_post_exec: forbid")
    elif dirname(wanted[0]) not in profile.job_exec_dirs:
        allowed = ", ".join(profile.job_exec_dirs)
        add(field, f"{quoted(wanted[0])} is not directly in a directory of application {profile.name}: {allowed}")
    return wanted


def _steps(outer: tuple[str, ...] | None, inner: tuple[str, ...] | None) -> tuple[Value[tuple[str, ...]], ...]:
    return tuple(_present(Value(outer, "profile"), Value(inner, "job")))


def _present(*steps: Value[tuple[str, ...] | None]) -> Iterator[Value[tuple[str, ...]]]:
    for step in steps:
        if step.value is not None:
            yield Value(step.value, step.origin)
