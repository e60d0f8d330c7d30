"""The programs that are measured: this project's runner, and any other one that serves the same sites.yaml.

Another one is described by an adapter, a TOML file (see README.md): how its daemons are started, and which files tell
that they are ready.
"""

import contextlib
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from attrs import frozen

from basestation_runner.errors import RunnerError
from basestation_runner.sandbox import HELPER, WATCHER, Installation
from basestation_runner.sandbox.process import Daemon, Identity

READY_WITHIN: Final = 300.0


@frozen
class Started:
    """A daemon that is ready, and how many seconds that took from the start of its process."""

    daemon: Daemon
    seconds: float


class Subject(Protocol):
    """A program whose daemons can be started on an installation."""

    @property
    def name(self) -> str:
        """What its results are called."""

    def start(self, installation: Installation) -> dict[str, Started]:
        """Start the daemons, one when the one before is ready. Raises RunnerError when one does not get ready."""


@frozen
class Runner:
    """This project's program, as a unit of systemd starts it: its log goes to a file, warnings to stderr."""

    name: str = "runner"
    watcher_arguments: tuple[str, ...] = ()

    def start(self, installation: Installation) -> dict[str, Started]:
        """Start the helper, then the watcher."""
        helper, watcher = _log(installation, "helper"), _log(installation, "watcher")
        return {
            "helper": _timed(lambda: installation.start_helper(*helper, wait=False)),
            "watcher": _timed(lambda: installation.start_watcher(*watcher, *self.watcher_arguments, wait=False)),
        }


@frozen
class _Command:
    """How one daemon of another runner is started; `{…}` in its words stands for what `Other.start` fills in."""

    name: str
    account: str
    capabilities: tuple[str, ...]
    words: tuple[str, ...]
    environment: Mapping[str, str]
    ready: tuple[str, ...]  # files that are all there when it is ready


@frozen
class Other:
    """Another program with the same request format and the same fields in sites.yaml."""

    name: str
    commands: tuple[_Command, ...]

    @classmethod
    def load(cls, name: str, path: Path) -> "Other":
        """Read an adapter. Raises RunnerError."""
        try:
            document = tomllib.loads(path.read_text())
            return cls(name, tuple(map(_command, document["daemon"])))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise RunnerError(f"not an adapter: {error}", where=str(path), hint="see bench/README.md") from error

    def start(self, installation: Installation) -> dict[str, Started]:
        """Start its daemons in their order."""
        run_dir = installation.make_directory(installation.top / "other")
        run_dir.chmod(0o1777)
        known = {
            "sites_config": str(installation.sites_config),
            "run_dir": str(run_dir),
            "socket": str(run_dir / "priv_exec.sock"),
            "cgroup_root": str(installation.cgroup_root),
            "watcher_user": WATCHER,
        }
        rundirs = [str(site.watch_dir) for site in installation.sites.values()]
        return {command.name: _start_other(installation, command, known, rundirs) for command in self.commands}


def _command(entry: Mapping[str, Any]) -> _Command:
    unknown = entry.keys() - {"name", "account", "capabilities", "command", "environment", "ready"}
    if unknown:
        raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
    account = entry["account"]
    if account not in {HELPER, WATCHER}:
        raise ValueError(f"account must be {HELPER} or {WATCHER}, not {account}")
    return _Command(
        entry["name"],
        account,
        tuple(entry.get("capabilities", ())),
        tuple(entry["command"]),
        dict(entry.get("environment", {})),
        tuple(entry["ready"]),
    )


def _start_other(
    installation: Installation, command: _Command, known: Mapping[str, str], rundirs: Sequence[str]
) -> Started:
    words = [_filled(word, known) for word in command.words]
    identity = Identity(installation.account(command.account), command.capabilities)
    waiting = [Path(path) for pattern in command.ready for path in _paths(pattern, known, rundirs)]
    for path in waiting:
        path.unlink(missing_ok=True)  # left by one that was killed
    begin = time.monotonic()
    daemon = installation.start(command.name, words, identity, command.environment)
    daemon.wait_until(lambda: all(path.exists() for path in waiting), READY_WITHIN)
    return Started(daemon, time.monotonic() - begin)


def _paths(pattern: str, known: Mapping[str, str], rundirs: Sequence[str]) -> Iterator[str]:
    """Yield the paths that a pattern stands for: one for each site, if it names the rundir."""
    for rundir in rundirs if "{watch_dir}" in pattern else rundirs[:1]:
        yield _filled(pattern, {**known, "watch_dir": rundir})


def _filled(word: str, known: Mapping[str, str]) -> str:
    try:
        return word.format_map(known)
    except (KeyError, ValueError, IndexError) as error:
        raise RunnerError(f"nothing is known to fill in: {error}", where=word, hint="see bench/README.md") from error


def _timed(start: Callable[[], Daemon]) -> Started:
    begin = time.monotonic()
    daemon = start()
    daemon.wait_ready(READY_WITHIN)
    return Started(daemon, time.monotonic() - begin)


def _log(installation: Installation, name: str) -> tuple[str, str]:
    return "--base-log", str(installation.logs / name / "log")


def stop(daemons: Mapping[str, Started]) -> None:
    """Stop daemons, the last one first."""
    for started in reversed(list(daemons.values())):
        with contextlib.suppress(RunnerError):  # it did not end by itself, and has been killed
            started.daemon.stop()
