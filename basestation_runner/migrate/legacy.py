"""The command line of a legacy daemon, and what each directive of its unit means to us. Pure."""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from attrs import Factory, define, frozen

DAEMON: Final = "BaseRunner.py"
MULTI: Final = ("BaseRunnerMulti.py", "BaseRunnerPrivExec.py")
ENDS: Final = ("control-group", "mixed")
"""Values of KillMode= by which a stop ends jobs."""

Fate = Literal["carried", "ours", "lost"]
"""What becomes of a directive: it is in the entry, our units or the watcher see to it, or nothing does."""

_WAITS: Final = "the watcher waits for a rundir by itself"
_OURS: Final = "our units have their own"
_LEGACY: Final = "it is about the legacy daemon alone"
_ALWAYS: Final = "jobs always have it"
_ENTRY: Final = "it is in the entry"

DIRECTIVES: Final[Mapping[str, tuple[Fate, str]]] = {
    **dict.fromkeys(("User", "Group", "SupplementaryGroups"), ("carried", _ENTRY)),
    **dict.fromkeys(("ExecStart", "Environment", "EnvironmentFile"), ("carried", _ENTRY)),
    **dict.fromkeys(("CPUQuota", "CPUWeight", "MemoryHigh", "MemoryMax", "TasksMax"), ("carried", _ENTRY)),
    **dict.fromkeys(("Description", "Documentation"), ("ours", _OURS)),
    **dict.fromkeys(("After", "Before", "Wants", "RequiresMountsFor", "WantsMountsFor"), ("ours", _WAITS)),
    **dict.fromkeys(("StartLimitIntervalSec", "StartLimitInterval", "StartLimitBurst"), ("ours", _OURS)),
    **dict.fromkeys(("WantedBy", "RequiredBy", "DefaultInstance"), ("ours", _OURS)),
    **dict.fromkeys(("Type", "NotifyAccess", "PIDFile", "GuessMainPID", "RemainAfterExit"), ("ours", _OURS)),
    **dict.fromkeys(("Restart", "RestartSec", "RestartSteps", "RestartMaxDelaySec"), ("ours", _OURS)),
    **dict.fromkeys(("WatchdogSec", "WatchdogSignal"), ("ours", _OURS)),
    **dict.fromkeys(("TimeoutSec", "TimeoutStartSec", "TimeoutStopSec", "TimeoutAbortSec"), ("ours", _OURS)),
    **dict.fromkeys(("KillMode", "KillSignal", "SendSIGKILL", "SendSIGHUP", "FinalKillSignal"), ("ours", _OURS)),
    **dict.fromkeys(("ExecReload", "SyslogIdentifier", "SyslogFacility", "SyslogLevel"), ("ours", _LEGACY)),
    **dict.fromkeys(("StandardInput", "StandardOutput", "StandardError", "LogLevelMax"), ("ours", _LEGACY)),
    "UMask": ("ours", "the legacy daemon sets its own, and so do we"),
    **dict.fromkeys(("NoNewPrivileges", "KeyringMode"), ("ours", _ALWAYS)),
    **dict.fromkeys(("CPUAccounting", "MemoryAccounting", "TasksAccounting", "IOAccounting"), ("ours", _ALWAYS)),
    "RuntimeMaxSec": ("lost", "no job is ended after that time: limits.runtime of an application profile does that"),
    "WorkingDirectory": ("lost", "jobs run in their mission directory"),
    **dict.fromkeys(("ExecStartPre", "ExecStartPost", "ExecCondition"), ("lost", "nothing runs before a site's jobs")),
    **dict.fromkeys(("ExecStop", "ExecStopPost"), ("lost", "nothing runs after a site's jobs")),
    **dict.fromkeys(("Nice", "LimitNOFILE", "LimitCORE", "LimitAS", "LimitNPROC"), ("lost", "jobs have stated values")),
    **dict.fromkeys(("PassEnvironment", "UnsetEnvironment"), ("lost", "jobs get nothing of a daemon's environment")),
    **dict.fromkeys(("AmbientCapabilities", "CapabilityBoundingSet"), ("lost", "jobs have no capabilities")),
    **dict.fromkeys(("Slice", "Delegate"), ("lost", "jobs' cgroups are in baserunner.slice")),
    "OnFailure": ("lost", "`runner watch --on-failure` tells of jobs that fail"),
}
"""By name. Whatever is not here is lost: nobody has thought about it."""

UNKNOWN: Final = "nothing of ours does this"


@define
class CommandLine:
    """What a legacy daemon is told. `unknown` are options that it may know and we do not, with their words."""

    interpreter: str = ""
    basestation_dir: str = ""
    watch_dir: str = ""
    jail_root: str | None = None
    base_log: str | None = None
    python_version: str | None = None
    archive: bool = False
    queue_scripts: bool = True
    docker: dict[str, object] = Factory(dict)
    unknown: list[tuple[str, str]] = Factory(list)


@frozen
class _Option:
    """An option: the field that it sets, how many words follow it, and what it sets without one."""

    field: str
    takes: Literal["none", "one", "any"] = "one"
    value: object = True


_OPTIONS: Final[Mapping[str, _Option]] = {
    "--jail_root": _Option("jail_root"),
    "--base_log": _Option("base_log"),
    "--python_version": _Option("python_version"),
    "--archive": _Option("archive", "none"),
    "--no-archive": _Option("archive", "none", value=False),
    "--queue_scripts": _Option("queue_scripts", "none"),
    "--no-queue_scripts": _Option("queue_scripts", "none", value=False),
    "--docker_image": _Option("docker_image"),
    "--docker_uid": _Option("docker_uid"),
    "--docker_gid": _Option("docker_gid"),
    "--docker_mount": _Option("docker_mount", "any"),
    "--use_docker_basestation": _Option("use_docker_basestation", "none"),
    "--no-use_docker_basestation": _Option("use_docker_basestation", "none", value=False),
    "--verbose": _Option("", "none"),
    "-v": _Option("", "none"),
    "--quiet": _Option("", "none"),
    "-q": _Option("", "none"),
    "--debug": _Option("", "none"),
}
"""Those without a field are about the daemon's own log."""


def is_daemon(argv: Sequence[str]) -> bool:
    """Tell whether a command is a legacy daemon of one site."""
    return any(posixpath.basename(word) == DAEMON for word in argv)


def is_multi(argv: Sequence[str]) -> bool:
    """Tell whether a command is one of the two daemons of a BaseRunnerMulti."""
    return any(posixpath.basename(word) in MULTI for word in argv)


def command_line(argv: Sequence[str]) -> CommandLine:
    """Given the command of a legacy daemon, return what it is told. An empty `watch_dir`: it is not told any."""
    script = next(place for place, word in enumerate(argv) if posixpath.basename(word) == DAEMON)
    line = CommandLine(interpreter=argv[0] if script else "", basestation_dir=posixpath.dirname(argv[script]))
    rest = list(argv[script + 1 :])
    bare: list[str] = []
    options_end = False
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if options_end or not word.startswith("-") or word == "-":
            bare.append(word)
        elif word == "--":
            options_end = True
        elif name in _OPTIONS:
            _take(line, _OPTIONS[name], [value] if has_value else None, rest)
        else:
            follow = [] if has_value else _taken(rest)
            line.unknown.append((name, " ".join([word, *follow])))
            bare += [each for each in follow if each.startswith("/")][-1:] if not _paths(bare, rest) else []
    line.watch_dir = next((word for word in reversed(bare) if word.startswith("/")), "")
    return line


def _take(line: CommandLine, option: _Option, given: list[str] | None, rest: list[str]) -> None:
    if option.takes == "none":
        value: object = option.value
    elif option.takes == "one":
        value = given[0] if given else rest.pop(0) if rest else ""
    else:
        value = given if given is not None else _taken(rest)
    if option.field.startswith(("docker", "use_docker")):
        if option.takes == "any" and isinstance(value, list):
            value = [*_mounts(line), *value]
        line.docker[option.field] = value
    elif option.field:
        setattr(line, option.field, value)


def _mounts(line: CommandLine) -> list[str]:
    mounts = line.docker.get("docker_mount", [])
    return mounts if isinstance(mounts, list) else []


def _taken(rest: list[str]) -> list[str]:
    """Take the words up to the next option."""
    taken = []
    while rest and not rest[0].startswith("-"):
        taken.append(rest.pop(0))
    return taken


def _paths(bare: Sequence[str], rest: Sequence[str]) -> bool:
    """Tell whether there is, or comes, a word that may be the rundir."""
    return any(word.startswith("/") for word in (*bare, *rest))


def site_of(unit: str) -> str:
    """Return the site that a unit's name tells: baserunner-NAME@…, baserunnerNAME.service; else its instance."""
    stem = unit.removesuffix(".service")
    prefix, _, instance = stem.partition("@")
    name = prefix.lower().removeprefix("baserunner").lstrip("-_.")
    return name or instance.removeprefix("runner-").lower()
