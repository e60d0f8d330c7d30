"""All looks of `runner doctor`, each in a child that is given up when it hangs, put together to one set of facts."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from basestation_runner import __version__, protocol
from basestation_runner.config import hostfacts, probes
from basestation_runner.config.findings import found, unread
from basestation_runner.config.hostfacts import Absent, daemon_identity
from basestation_runner.config.load import parsed, read
from basestation_runner.config.location import applications_path
from basestation_runner.config.model import Config
from basestation_runner.config.probes import Unseen
from basestation_runner.config.profiles import builtin_profiles, profiles_of
from basestation_runner.config.sites import sites_of
from basestation_runner.doctor import looks, units
from basestation_runner.doctor.facts import NAMES, Cgroups, Configuration, Facts, Socket, Systemd
from basestation_runner.doctor.sites import LEFT_OUT, NOT_ASKED
from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.operate.client import Client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from basestation_runner.config.faults import Fault
    from basestation_runner.config.probes import Question
    from basestation_runner.doctor.facts import Paths, Process, Which

_PATIENCE: Final = 20.0
"""Seconds for one look: systemd is slow to answer while it starts something."""
_PROBE_SECONDS: Final = 60.0
"""For all probes: the helper makes one in some milliseconds."""
_NOTHING: Final = Config(sites={}, applications=builtin_profiles().applications)


def gather(paths: Paths, *, probe: Sequence[str] | None) -> Facts:
    """Look at everything, and have the sites of `probe` probed, or all if it is empty. Ends in some minutes at most."""
    configuration, files = _configuration(paths)
    config = configuration.config
    host = hostfacts.gather(config or _NOTHING, files, watcher_user=paths.watcher_user, helper_user=paths.helper_user)
    watcher, helper = daemon_identity(host.watcher), daemon_identity(host.helper)
    hello = {"request": "hello", "version": protocol.VERSION}
    status = {"request": "status", "since": time.time()}
    directories: dict[Path, tuple[hostfacts.Identity | None, Path | None]] = {
        paths.state_dir: (watcher, None),
        paths.helper_state_dir: (helper, None),
        paths.cache_dir: (helper, None),
        paths.base_log.parent: (watcher, paths.base_log),
        paths.helper_base_log.parent: (helper, paths.helper_base_log),
    }
    written = [paths.sites_config, *([paths.applications_config] if paths.applications_config else [])]
    questions: dict[str, Question] = {
        "helper": partial(looks.look_at_socket, paths.priv_exec_socket, hello, watcher, any_caller=False),
        "watcher": partial(looks.look_at_socket, paths.control_socket, status, None, any_caller=True),
        "ledger": partial(looks.look_at_ledger, paths.state_dir, watcher),
        "system": partial(looks.look_at_system, [*written, paths.base_log, paths.helper_base_log], time.time),
        "systemd": units.look,
        "program": looks.look_at_program,
    }
    for path, (owner, file) in directories.items():
        questions[f"directory {path}"] = partial(looks.look_at_directory, path, owner, file)
    for site in config.sites.values() if config else ():
        if not site.ignore_lock:
            questions[f"lock {site.name}"] = partial(looks.look_at_lock, site.watch_dir)
    answers = dict(zip(questions, probes.ask(list(questions.values()), patience=_PATIENCE), strict=True))
    system, systemd = answers["system"], answers["systemd"]
    sockets: dict[Which, Any] = {"helper": answers["helper"], "watcher": answers["watcher"]}
    listeners = {each.listener for each in sockets.values() if isinstance(each, Socket) and each.listener}
    uids = {identity.uid for identity in (watcher, helper) if identity}
    (processes,) = probes.ask([partial(looks.processes, uids, listeners)])
    (cgroups,) = probes.ask([partial(looks.look_at_cgroups, paths.cgroup_root, _cgroup(processes, sockets), helper)])
    return Facts(
        paths=paths,
        is_root=os.geteuid() == 0,
        program=__version__,
        trusted=answers["program"],
        system=looks.look_at_system((), time.time) if isinstance(system, Unseen) else system,
        systemd=Systemd(None, systemd) if isinstance(systemd, Unseen) else systemd,
        configuration=configuration,
        host=host,
        processes=processes,
        sockets=sockets,
        directories={str(path): answers[f"directory {path}"] for path in directories},
        ledger=answers["ledger"],
        cgroups=cgroups if isinstance(cgroups, Cgroups) else Cgroups(has_version_2=False, unseen=cgroups),
        locks={name.removeprefix("lock "): lock for name, lock in answers.items() if name.startswith("lock ")},
        states=_states(paths.control_socket),
        probes=None if probe is None else _probes(paths.control_socket, probe or list(config.sites if config else ())),
    )


def _configuration(paths: Paths) -> tuple[Configuration, list[str]]:
    """Return what the files say, and the files that there are."""
    faults: list[Fault] = []
    applications = applications_path(paths.applications_config)
    names = [str(path) for path in (paths.sites_config, applications) if path]
    try:
        document = parsed(read(paths.sites_config), faults)
        others = parsed(read(applications), faults) if applications else None
    except RunnerError as error:
        return Configuration(document=None, config=None, faults=(unread(error),)), names
    profiles = builtin_profiles() if applications is None else (profiles_of(others, faults) if others else None)
    sites = sites_of(document, profiles, faults) if document else {}
    if faults or document is None or profiles is None:
        findings = tuple(found(fault) for fault in dict.fromkeys(faults))
        return Configuration(document=None, config=None, faults=findings), names
    config = Config(
        sites=sites, applications=profiles.applications, default_application=profiles.default, host=profiles.host
    )
    return Configuration(document=document, config=config), names


def _cgroup(processes: tuple[Process, ...] | Unseen, sockets: Mapping[Which, Socket | Absent | Unseen]) -> str | None:
    """Return the cgroup of the helper that listens, or of any."""
    if isinstance(processes, Unseen):
        return None
    socket = sockets["helper"]
    listener = socket.listener if isinstance(socket, Socket) else None
    helpers = [process for process in processes if process.name == NAMES["helper"]]
    first = next((each for each in helpers if each.pid == listener), helpers[0] if helpers else None)
    return first.cgroup if first else None


def _states(control_socket: Path) -> Mapping[str, Mapping[str, Any]] | None:
    """Return what the watcher says of each site; None if it does not say so to us."""
    try:
        with Client(control_socket, looks.ANSWER_SECONDS) as client:
            return {site["site"]: site for site in client.all_sites()}
    except RunnerError:
        return None


def _probes(control_socket: Path, sites: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    """Have sites probed, one after the other while there is time; return the answers."""
    told: dict[str, Mapping[str, Any]] = {}
    end = time.monotonic() + _PROBE_SECONDS
    last = ""
    for site in sites:
        left = end - time.monotonic()
        if left <= 0:  # one silence takes all that is left
            reason = f"after that of {last} the {_PROBE_SECONDS:g} s for all probes were over"
            told[site] = {"outcome": LEFT_OUT, "reason": reason}
            continue
        last = site
        try:
            with Client(control_socket, left) as client:
                told[site] = client.ask("probe", site=site)["probe"]
        except RunnerError as error:
            may_pass = isinstance(error, TemporaryError)
            told[site] = {"outcome": NOT_ASKED, "reason": error.what, "may_pass": may_pass}
    return told
