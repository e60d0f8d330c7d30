"""From a legacy unit and what the name service says to an entry of sites.yaml, and all that it cannot hold. Pure."""

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import Factory, define, fields_dict, frozen

from basestation_runner.config.model import Site
from basestation_runner.config.rules import ENV_NAME_PATTERN, RUNNER_ENV
from basestation_runner.errors import RunnerError
from basestation_runner.migrate.legacy import DIRECTIVES, UNKNOWN, command_line
from basestation_runner.migrate.unit import Unit

_MIB: Final = 1 << 20
_SECOND: Final = 1_000_000
_NO_HOMES: Final = frozenset({"", "/", "/nonexistent", "/dev/null", "/root"})
_MOST_SHOWN: Final = 200


@frozen(kw_only=True)
class People:
    """What the name service says about the account of a unit."""

    user: str
    groups: tuple[str | int, ...]  # all of the account's, the effective one first; by name where it has one
    foreign: tuple[str | int, ...]  # those of SupplementaryGroups= that the account is not in
    homes: tuple[str, ...]  # of the account, and of the members of its effective group


@frozen(kw_only=True)
class Variables:
    """The environment of a unit's processes, and what of it cannot be had."""

    values: Mapping[str, str]
    secret: tuple[str, ...] = ()  # files of which not everybody may know the content
    missing: tuple[str, ...] = ()  # files that are not there, or cannot be read


@frozen
class Loss:
    """What is lost: its name, as `--accept` takes it, what it says, and why it cannot be carried."""

    name: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.value[:_MOST_SHOWN]}: {self.why}"


@define
class Proposal:
    """An entry, what is worth knowing about it, what it leaves to others, and what is lost."""

    site: str
    entry: dict[str, Any] = Factory(dict)
    notes: list[str] = Factory(list)
    ours: list[str] = Factory(list)
    losses: list[Loss] = Factory(list)

    @property
    def wants_container(self) -> bool:
        """Whether jobs run in a container, which is not supported."""
        return any("docker" in name for name in self.entry)


def propose(site: str, unit: Unit, people: People, variables: Variables) -> Proposal:
    """Given what there is, return the entry for a site. Raises RunnerError when the unit tells no rundir."""
    proposal = Proposal(site)
    entry = proposal.entry
    told = command_line(unit.expanded(variables.values))
    if not told.watch_dir:
        raise RunnerError("its command names no rundir", where=unit.name)
    entry["watch_dir"] = posixpath.normpath(told.watch_dir)
    if told.jail_root:
        entry["jail_root"] = posixpath.normpath(told.jail_root)
    else:
        _propose_root(proposal, entry["watch_dir"], people.homes)
    entry["runner_user"] = people.user
    entry["groups"] = list(people.groups)
    if told.archive:
        entry["archive"] = True
    if not told.queue_scripts:
        entry["queue_scripts"] = False
    _differing(entry, "python_version", told.python_version)
    _differing(entry, "basestation_dir", told.basestation_dir)
    _limits(proposal, unit)
    entry.update(_docker(told.docker))
    if usable := dict(_usable(proposal, variables.values)):
        entry["env"] = usable
    if told.base_log:
        proposal.ours.append(f"--base_log {told.base_log}: the daemons have logs of their own")
    proposal.losses += [Loss(name, words, "no field of sites.yaml stands for it") for name, words in told.unknown]
    _directives(proposal, unit)
    for group in people.foreign:
        why = "the account is not a member of it, and a job gets no other groups"
        proposal.losses.append(Loss("SupplementaryGroups", f"SupplementaryGroups={group}", why))
    for file in variables.secret:
        why = "what it holds would be readable by everybody in sites.yaml, and is left out of it"
        proposal.losses.append(Loss("EnvironmentFile", f"EnvironmentFile={file}", why))
    for file in variables.missing:
        proposal.losses.append(Loss("EnvironmentFile", f"EnvironmentFile={file}", "it cannot be read"))
    return proposal


def not_accepted(losses: Sequence[Loss], accepted: Collection[str]) -> list[Loss]:
    """Return the losses that nobody has agreed to."""
    return [] if "all" in accepted else [loss for loss in losses if loss.name not in accepted]


def _differing(entry: dict[str, Any], field: str, value: str | None) -> None:
    """Write a field out if it is told and not the default anyway."""
    if value and value != fields_dict(Site)[field].default:
        entry[field] = value


def _propose_root(proposal: Proposal, watch_dir: str, homes: Sequence[str]) -> None:
    """Requests may name only what lies beneath the site's roots: one that holds the rundir and the homes."""
    known = [home for home in homes if home not in _NO_HOMES and home.startswith("/")]
    root = posixpath.commonpath([posixpath.dirname(watch_dir), *known])
    outside: list[str] = []
    if root == "/":
        root = posixpath.dirname(watch_dir)
        outside = [home for home in known if posixpath.commonpath([root, home]) != root]
    if root == "/":
        proposal.notes.append("no jail_root is proposed: requests may name only what lies in the rundir")
        return
    proposal.entry |= {"jail_root": root, "jailed": False}
    proposal.notes.append(f"without --jail_root: {root}, above all that the site is known to use, is proposed")
    if outside:
        proposal.notes.append(f"requests with these homes will be refused, they lie elsewhere: {', '.join(outside)}")


def _limits(proposal: Proposal, unit: Unit) -> None:
    entry = proposal.entry
    if unit.cpu_quota_us is not None:
        entry["cpu_quota_pct"] = max(1, -(-unit.cpu_quota_us * 100 // _SECOND))
    if unit.wrote("CPUWeight") and unit.cpu_weight is not None:
        if unit.cpu_weight.isdigit():
            entry["cpu_weight"] = int(unit.cpu_weight)
        else:
            proposal.losses.append(Loss("CPUWeight", f"CPUWeight={unit.cpu_weight}", "a weight must be a number"))
    memory = {"memory_high_mb": unit.memory_high, "memory_max_mb": unit.memory_max}
    limits = {field: max(1, size // _MIB) for field, size in memory.items() if size is not None}
    if limits:
        entry.update(limits)
        proposal.notes.append("the limits of memory are each job's, not those of all jobs of the site together")
    if unit.wrote("TasksMax") and unit.tasks_max:
        entry["tasks_max"] = unit.tasks_max
    elif unit.wrote("TasksMax"):
        most = fields_dict(Site)["tasks_max"].default
        proposal.notes.append(f"a site has a limit of tasks: in place of TasksMax=infinity it is {most} (tasks_max)")


def _docker(told: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for field, value in told.items():
        number = isinstance(value, str) and value.lstrip("-").isdigit() and field in {"docker_uid", "docker_gid"}
        found = int(str(value)) if number else value
        if found != (-1 if number else fields_dict(Site)[field].default) and found not in ("", []):
            yield field, found


def _usable(proposal: Proposal, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in variables.items():
        if not ENV_NAME_PATTERN.fullmatch(name) or name in RUNNER_ENV:
            why = "the runner sets it itself" if name in RUNNER_ENV else "that is no name of a variable"
            proposal.losses.append(Loss("Environment", f"Environment={name}", why))
        else:
            yield name, value


def _directives(proposal: Proposal, unit: Unit) -> None:
    """Account for every line that somebody wrote: none is lost silently."""
    for directive in dict.fromkeys(unit.directives):
        fate, why = DIRECTIVES.get(directive.name, ("lost", UNKNOWN))
        if directive.section.startswith("X-"):
            continue
        text = f"{directive.name}={directive.value}"
        if fate == "lost":
            proposal.losses.append(Loss(directive.name, text, why))
        elif fate == "ours":
            proposal.ours.append(f"{text[:_MOST_SHOWN]}: {why}")
