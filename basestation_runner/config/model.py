"""The configuration as the rest of the program sees it: frozen, complete, checked, picklable.

Each field carries the rule for its value as an annotation; load.py applies the rules to files. Imports only attrs and
the standard library, reads no file and asks nothing of the host.
"""

import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from attrs import Factory, asdict, field, frozen

from basestation_runner import execgroups, tools
from basestation_runner.config import profilerules, rules
from basestation_runner.config.nested import fields_of
from basestation_runner.config.parts import Host, Limits, Sandbox, TaskRange
from basestation_runner.config.resreq import Requirement, requirement
from basestation_runner.config.rules import RuleError

NO_CONTAINERS = "containers are not supported yet"


@frozen(kw_only=True)
class Site:
    """One site: a rundir, the account that its jobs run as, its limits. Defaults are those of a file's entry.

    `applications` is what the site may use, each by its own name, sorted: `all` and the default have been expanded.
    """

    name: str  # the entry's key
    watch_dir: Annotated[str, rules.rundir]
    runner_user: Annotated[str, rules.account]
    groups: Annotated[tuple[str | int, ...] | None, rules.optional(rules.groups)] = None
    jail_root: Annotated[str | None, rules.optional(rules.path)] = None
    jailed: Annotated[bool, rules.flag] = Factory(lambda self: self.jail_root is not None, takes_self=True)
    archive: Annotated[bool, rules.flag] = False
    ignore_lock: Annotated[bool, rules.flag] = False
    python_version: Annotated[str, rules.path] = "/opt/basestation/bin/python"
    basestation_dir: Annotated[str, rules.path] = "/usr/local/basestation3"
    applications: Annotated[tuple[str, ...], rules.application_list] = ()
    queue_scripts: Annotated[bool, rules.flag] = True
    max_running: Annotated[int | None, rules.optional(rules.number(1, rules.MAX_TASKS))] = None
    cpu_quota_pct: Annotated[int | None, rules.optional(rules.number(1, rules.MAX_QUOTA_PCT))] = None
    cpu_weight: Annotated[int | None, rules.optional(rules.number(1, 10000))] = None
    memory_high_mb: Annotated[int | None, rules.optional(rules.number(1, rules.MAX_MEMORY_MB))] = None
    memory_max_mb: Annotated[int | None, rules.optional(rules.number(1, rules.MAX_MEMORY_MB))] = None
    tasks_max: Annotated[int, rules.number(1, rules.MAX_TASKS)] = 4096
    env: Annotated[tuple[tuple[str, str], ...], rules.environment] = ()
    docker_image: Annotated[str, rules.text] = ""
    docker_uid: Annotated[int, rules.number(-1, execgroups.MOST_GID)] = -1
    docker_gid: Annotated[int, rules.number(-1, execgroups.MOST_GID)] = -1
    docker_mount: Annotated[tuple[str, ...], rules.list_of(rules.word, of="mounts", example="[/a:/b:ro]")] = ()
    use_docker_basestation: Annotated[bool, rules.flag] = False

    @property
    def roots(self) -> tuple[str, ...]:
        """The site's tree: what lies at or beneath one of these belongs to the site."""
        return (self.watch_dir,) if self.jail_root is None else (self.watch_dir, self.jail_root)

    @property
    def not_supported(self) -> str | None:
        """Why the site cannot be served although its entry is valid, or None."""
        wants_container = (
            self.docker_image
            or self.docker_uid != -1
            or self.docker_gid != -1
            or self.docker_mount
            or self.use_docker_basestation
        )
        return NO_CONTAINERS if wants_container else None


def conflicts(values: Mapping[str, object]) -> Iterator[RuleError]:
    """Given the valid fields of one site's entry, return what is wrong between them."""
    if values.get("jailed") is True and values.get("jail_root") is None:
        yield RuleError("a jailed site needs jail_root", "name jail_root, or write jailed: false", ("jailed",))
    match values.get("memory_high_mb"), values.get("memory_max_mb"):
        case int(high), int(limit) if high > limit:
            what = f"memory_high_mb ({high}) is above memory_max_mb ({limit})"
            yield RuleError(what, "throttling starts below the maximum", ("memory_high_mb",))


@frozen(kw_only=True)
class Application:
    """How a job of one kind runs, and what it must have. A job may only add to it: effective.py says how."""

    name: Annotated[str, rules.application_name]
    description: Annotated[str, rules.text] = ""
    scripts: Annotated[tuple[str, ...], rules.scripts] = ()
    command: Annotated[str | None, rules.optional(profilerules.command)] = None
    mode: Annotated[Literal["direct", "sandbox"], profilerules.mode] = "direct"
    sandbox: Annotated[Sandbox, fields_of(Sandbox)] = Factory(Sandbox)
    launch_type: Annotated[Literal["serial", "openmpi", "mpich"], rules.one_of("serial", "openmpi", "mpich")] = "serial"
    env: Annotated[tuple[tuple[str, str], ...], rules.environment] = ()
    job_env: Annotated[tuple[str, ...], profilerules.job_variables] = ()
    pre_exec: Annotated[tuple[str, ...] | None, rules.optional(profilerules.step)] = None
    post_exec: Annotated[tuple[str, ...] | None, rules.optional(profilerules.step)] = None
    job_pre_post_exec: Annotated[Literal["allow", "forbid"], rules.one_of("allow", "forbid")] = "forbid"
    job_exec_dirs: Annotated[tuple[str, ...], profilerules.directories] = ()
    limits: Annotated[Limits, fields_of(Limits)] = Factory(Limits)
    tasks: Annotated[TaskRange, fields_of(TaskRange)] = Factory(TaskRange)
    resreq: Annotated[Requirement, requirement] = Factory(Requirement)
    append_args: Annotated[
        tuple[str, ...], rules.list_of(rules.template, of="arguments", example="['--job_id', '{job_id}']")
    ] = ()
    strip_args: Annotated[tuple[str, ...], rules.list_of(rules.word, of="arguments", example="['--daemon']")] = ()
    timing_line: Annotated[bool, rules.flag] = False
    visualiser: Annotated[bool, rules.flag] = False
    leftovers: Annotated[Literal["report", "kill"], rules.one_of("report", "kill")] = "report"
    priority: Annotated[Literal["interactive", "normal"], rules.one_of("interactive", "normal")] = "normal"

    @property
    def claims(self) -> tuple[str, ...]:
        """The names by which requests mean this profile: its scripts, or its command's last component."""
        return self.scripts if self.command is None else (posixpath.basename(self.command),)

    @property
    def programs(self) -> Mapping[str, str]:
        """What its jobs need besides scripts, and only root may be able to change: by path, what each is."""
        named = {
            "the command": self.command,
            "the pre_exec": self.pre_exec[0] if self.pre_exec else None,
            "the post_exec": self.post_exec[0] if self.post_exec else None,
            "the launcher": tools.LAUNCHERS.get(self.launch_type),
            "the sandbox": tools.BWRAP if self.mode == "sandbox" else None,
        }
        return {path: what for what, path in named.items() if path is not None}


@frozen(kw_only=True)
class Config:
    """All sites and applications by name. The mappings are never changed: a new file makes a new Config."""

    sites: Mapping[str, Site]
    applications: Mapping[str, Application]
    default_application: str | None = None
    host: Host = Factory(Host)
    _digests: dict[str, str] = field(factory=dict, init=False, repr=False, eq=False)
    _revisions: dict[str, str] = field(factory=dict, init=False, repr=False, eq=False)

    def application_for(self, site: Site, script: str) -> Application | None:
        """Given a script, return the profile that claims it among those that the site may use, else the default one."""
        for name in site.applications:
            if script in self.applications[name].claims:
                return self.applications[name]
        if self.default_application in site.applications:
            return self.applications[self.default_application]
        return None

    def digest(self, site_name: str) -> str:
        """Return a fingerprint of everything that decides how the site's jobs run, the same in every process."""
        if site_name not in self._digests:
            self._digests[site_name] = self._digest(self.sites[site_name])
        return self._digests[site_name]

    def revision(self, application: str) -> str:
        """Return a fingerprint of one profile, the same in every process."""
        if application not in self._revisions:
            self._revisions[application] = _hash(asdict(self.applications[application]))
        return self._revisions[application]

    def _digest(self, site: Site) -> str:
        effective = {
            "site": asdict(site),
            "applications": {name: self.revision(name) for name in site.applications},
            "default_application": self.default_application,
            "host": asdict(self.host),
        }
        return _hash(effective)


def _hash(data: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def fingerprint(digests: Mapping[str, str]) -> str:
    """Given the digests of all sites by name, return one of the whole configuration."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def changed(old: Config, new: Config) -> dict[str, list[str]]:
    """Given two configurations, return the names of the sites that are added, removed, and changed between them."""
    both = old.sites.keys() & new.sites.keys()
    return {
        "added": sorted(new.sites.keys() - old.sites.keys()),
        "removed": sorted(old.sites.keys() - new.sites.keys()),
        "changed": sorted(name for name in both if old.digest(name) != new.digest(name)),
    }
