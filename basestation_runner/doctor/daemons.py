"""Checks of the two daemons: their accounts, processes, sockets, directories, and the ledger. Pure."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from basestation_runner import tools
from basestation_runner.config import host
from basestation_runner.config.hostfacts import Absent
from basestation_runner.config.model import fingerprint
from basestation_runner.config.probes import Unseen
from basestation_runner.doctor.facts import UNITS, Directory, Facts, Ledger, Process, Socket
from basestation_runner.doctor.points import Point, at_once, fault, of_finding, ok, skipped, unseen, warning
from basestation_runner.errors import RunnerError
from basestation_runner.nss import Account
from basestation_runner.watch import schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from basestation_runner.doctor.facts import Which

SETGID: Final = 6
SETUID: Final = 7
NEEDED: Final = 1 << SETGID | 1 << SETUID

MIB: Final = 1 << 20
NO_CONFIG: Final = "without a valid configuration no site is known"
LOW_BYTES: Final = 256 * MIB
FULL_BYTES: Final = 16 * MIB
LOW_FILES: Final = 1000

_BECOME: Final = "setpriv --reuid {0} --regid {0} --init-groups"
_TWO: Final = "--inh-caps=+setuid,+setgid --ambient-caps=+setuid,+setgid --bounding-set=-all,+setuid,+setgid"
_PACKAGES: Final = {"mode sandbox": tools.PACKAGES[tools.BWRAP]} | {
    f"launch_type {name}": tools.PACKAGES[path] for name, path in tools.LAUNCHERS.items()
}
_OTHERS_WRITE: Final = 0o022
_SHARED: Final = 0o1777


def restart(facts: Facts, which: Which) -> str:
    """Return the command that restarts a daemon; "" where no systemd can."""
    return f"systemctl restart {UNITS[which]}" if facts.systemd else ""


def start(facts: Facts, which: Which) -> str:
    """Return the command that starts a daemon; without systemd it may need more options."""
    if facts.systemd:
        return f"systemctl start {UNITS[which]}"
    watcher_user, helper_user = facts.paths.watcher_user, facts.paths.helper_user
    if which == "watcher":
        return f"{_BECOME.format(watcher_user)} runner watch"
    return f"{_BECOME.format(helper_user)} {_TWO} runner privexec --watcher-user {watcher_user}"


def program(facts: Facts) -> Iterator[Point]:
    """Root alone can write the program that the helper runs with its capabilities."""
    match facts.trusted:
        case None:
            yield ok(f"version {facts.program}, which root alone can write")
        case Unseen():
            yield unseen("who can write this program's files", facts.trusted)
        case RunnerError(what=what, where=where, hint=hint):
            yield fault(f"{where}: {what}: it does not start with capabilities", hint or "")


# Accounts


def accounts(facts: Facts) -> Iterator[Point]:
    """Both daemons have an account, and the helper is in the watcher's group, for its socket."""
    found = [point for finding in host.daemons(facts.host, helper_level="fault") if (point := of_finding(finding))]
    yield from found
    watcher, helper = facts.host.watcher, facts.host.helper
    if isinstance(watcher.account, Account) and isinstance(helper.account, Account):
        for process in facts.running("helper"):
            if watcher.account.gid in helper.groups and watcher.account.gid not in process.groups:
                what = (
                    f"the running helper (pid {process.pid}) is not in the watcher's group (GID {watcher.account.gid})"
                )
                yield fault(what, "restart it: a running process gains no group", restart(facts, "helper"))
                return
        if not found:
            who = f"{watcher.name} (uid {watcher.account.uid}), {helper.name} (uid {helper.account.uid})"
            yield ok(f"{who}, which is in the group of {watcher.name}")


# Processes


def helper(facts: Facts) -> Iterator[Point]:
    """One helper runs, answers, and is this program."""
    yield from _daemon(facts, "helper", facts.paths.helper_user)


def watcher(facts: Facts) -> Iterator[Point]:
    """One watcher runs, answers, and is this program."""
    yield from _daemon(facts, "watcher", facts.paths.watcher_user)


def _daemon(facts: Facts, which: Which, user: str) -> Iterator[Point]:
    if isinstance(facts.processes, Unseen):
        yield unseen("which processes run", facts.processes)
        return
    running = facts.running(which)
    if not running and facts.is_inactive(which):
        yield skipped(f"{UNITS[which]} does not run, see units")
        return
    if not running:
        yield fault(f"no {which} runs as account {user}", command=start(facts, which))
        return
    if len(running) > 1:
        pids = [str(process.pid) for process in running]
        what = f"{len(running)} {which}s run as account {user} (pids {', '.join(pids)}), and none of them listens"
        yield warning(what, f"jobs go on without them; end them, then: {start(facts, which)}", f"kill {' '.join(pids)}")
        return
    (process,) = running
    found = list(_version(facts, which, process))
    account = (facts.host.helper if which == "helper" else facts.host.watcher).account
    if isinstance(account, Account) and process.uid != account.uid:
        what = f"the {which} (pid {process.pid}) runs as uid {process.uid}, not as account {user}"
        found.append(fault(what, f"mend User= of its unit, or --{which}-user", restart(facts, which)))
    yield from found
    if not found:
        yield ok(f"pid {process.pid}, version {facts.program}")


def _version(facts: Facts, which: Which, process: Process) -> Iterator[Point]:
    if process.has_old_program:
        what = f"the program of the {which} (pid {process.pid}) has been replaced since it started"
        yield warning(what, "restart it; jobs go on meanwhile", restart(facts, which))
        return
    version = _said(facts, which).get("program")
    if version is not None and version != facts.program:
        what = f"the {which} (pid {process.pid}) is version {version}, and this program {facts.program}"
        yield warning(what, "restart it; jobs go on meanwhile", restart(facts, which))


def _said(facts: Facts, which: Which) -> Mapping[str, Any]:
    """Return what a daemon says of itself, as far as it does to us; of the helper its watcher may know."""
    socket = facts.sockets[which]
    answer = (socket.answer or {}) if isinstance(socket, Socket) else {}
    if which == "watcher":
        return dict(answer.get("watcher") or {})
    if answer:
        return answer
    control = facts.sockets["watcher"]
    return dict((control.answer or {}).get("helper") or {}) if isinstance(control, Socket) else {}


def helper_capabilities(facts: Facts) -> Iterator[Point]:
    """The helper, its fork server and keepers hold CAP_SETUID and CAP_SETGID, or none in single-account mode."""
    running = facts.running("helper")
    if not running:
        yield skipped(facts.why_none("helper"))
        return
    found = []
    uid = running[0].uid
    for process in facts.processes if not isinstance(facts.processes, Unseen) else ():
        if process.uid == uid and process.held & ~NEEDED:
            what = f"{process.name} (pid {process.pid}) holds more than CAP_SETUID and CAP_SETGID: {process.held:#x}"
            hint = "its unit must have AmbientCapabilities=CAP_SETUID CAP_SETGID and no more"
            found.append(fault(what, hint, restart(facts, "helper")))
    for process in running:
        found += _helper_capabilities(facts, process)
    yield from found
    if not found:
        yield ok(f"exactly CAP_SETUID and CAP_SETGID (pid {running[0].pid})")


def _helper_capabilities(facts: Facts, process: Process) -> Iterator[Point]:
    if not process.held:
        what = f"the helper (pid {process.pid}) holds no capability: it runs jobs of its own account alone"
        hint = "its unit must have AmbientCapabilities=CAP_SETUID CAP_SETGID"
        sites = facts.config.sites.values() if facts.config else ()
        level = fault if any(site.runner_user != facts.paths.helper_user for site in sites) else warning
        yield level(what, hint, restart(facts, "helper"))
    elif process.effective != NEEDED and not process.held & ~NEEDED:
        what = f"the helper (pid {process.pid}) holds a part of what it needs: {process.effective:#x}"
        yield fault(what, "its unit must have AmbientCapabilities=CAP_SETUID CAP_SETGID", restart(facts, "helper"))
    if process.bounding & ~NEEDED:
        what = (
            f"programs that the helper (pid {process.pid}) starts could get other capabilities: {process.bounding:#x}"
        )
        hint = "its unit should have CapabilityBoundingSet=CAP_SETUID CAP_SETGID"
        yield warning(what, hint, restart(facts, "helper"))


def watcher_capabilities(facts: Facts) -> Iterator[Point]:
    """The watcher holds none."""
    running = facts.running("watcher")
    if not running:
        yield skipped(facts.why_none("watcher"))
    for process in running:
        if process.held:
            what = f"the watcher (pid {process.pid}) holds capabilities: {process.held:#x}"
            hint = "its unit must have AmbientCapabilities= without a value"
            yield fault(what, hint, restart(facts, "watcher"))
        else:
            yield ok(f"none (pid {process.pid})")


# Sockets


def sockets(facts: Facts) -> Iterator[Point]:
    """Each socket is its daemon's, open to whom it must be, and answered."""
    helper_account, watcher_account = facts.host.helper.account, facts.host.watcher.account
    group = watcher_account.gid if isinstance(watcher_account, Account) else None
    found = [
        *_socket(facts, "helper", _Wanted(str(facts.paths.priv_exec_socket), helper_account, group, 0o660)),
        *_socket(facts, "watcher", _Wanted(str(facts.paths.control_socket), watcher_account, None, 0o666)),
    ]
    yield from found
    if not found:
        yield ok(f"{facts.paths.priv_exec_socket}, {facts.paths.control_socket}")


@frozen
class _Wanted:
    path: str
    owner: object
    gid: int | None
    mode: int


def _socket(facts: Facts, which: Which, wanted: _Wanted) -> Iterator[Point]:
    seen, path = facts.sockets[which], wanted.path
    match seen:
        case Absent() if facts.running(which):
            yield fault(f"there is no {path}, though a {which} runs", command=restart(facts, which))
            return
        case Absent():
            yield skipped(f"there is no {path}: {facts.why_none(which)}")
            return
        case Unseen():
            yield unseen(path, seen)
            return
    if not seen.is_socket:
        yield fault(f"{path} is no socket", "remove it", f"rm {shlex.quote(path)}")
        return
    if isinstance(wanted.owner, Account) and seen.uid != wanted.owner.uid:
        yield fault(f"{path} belongs to uid {seen.uid}, not to the {which}'s account", command=restart(facts, which))
    if wanted.gid is not None and seen.gid != wanted.gid:
        what = f"{path} belongs to GID {seen.gid}, not to the watcher's group {wanted.gid}"
        yield fault(what, command=restart(facts, which))
    if seen.mode != wanted.mode:
        what = f"{path} has mode {seen.mode:04o}, not {wanted.mode:04o}"
        yield warning(what, command=f"chmod {wanted.mode:04o} {shlex.quote(path)}")
    yield from _answering(facts, which, path, seen)


def _answering(facts: Facts, which: Which, path: str, seen: Socket) -> Iterator[Point]:
    if isinstance(seen.why_not, Unseen):
        yield unseen(f"whether {path} is answered", seen.why_not)
    elif seen.why_not is not None:
        command = restart(facts, which) if facts.running(which) else start(facts, which)
        yield fault(f"{path} is not answered: {seen.why_not}", command=command)
    elif seen.answer is not None and seen.answer.get("ok") is False:
        if which == "watcher":  # it is answered, and this user may not ask
            yield skipped(f"{path} tells this user nothing: {seen.answer.get('error')}", "run it as root")
        else:
            yield fault(f"{path} is answered with an error: {seen.answer.get('error')}", command=restart(facts, which))


# Configuration


def configuration(facts: Facts) -> Iterator[Point]:
    """The files are right, root alone can write them, and both daemons go by them."""
    found = [point for finding in facts.configuration.faults if (point := of_finding(finding))]
    for file, problem in facts.host.files.items():
        found += [point for finding in host.of_file(file, problem) if (point := of_finding(finding))]
    if facts.config is not None:
        found += _agreement(facts)
    yield from found
    if not found and facts.config is not None:
        files, number = ", ".join(facts.host.files), len(facts.config.sites)
        yield ok(f"{files}: {number} {'site' if number == 1 else 'sites'}")


def _agreement(facts: Facts) -> Iterator[Point]:
    config, said = facts.config, _said(facts, "helper").get("config")
    if config is None:
        return
    if said is not None and said != fingerprint({name: config.digest(name) for name in config.sites}):
        yield warning("the files have been changed since the helper has read them", command="runner reload")
        return
    control = facts.sockets["watcher"]
    answer = (control.answer or {}) if isinstance(control, Socket) else {}
    if (answer.get("helper") or {}).get("same_config") is False:
        yield warning("watcher and helper have read different configurations", command="runner reload")


def profiles(facts: Facts) -> Iterator[Point]:
    """What the profiles in use need of this host beyond running a program works for the helper."""
    config, missing = facts.config, _said(facts, "helper").get("missing")
    if config is None or missing is None:
        yield skipped("the helper does not tell this user what works here" if config else NO_CONFIG)
        return
    used = {name for site in config.sites.values() for name in site.applications}
    found = []
    for what, why in missing.items():
        kinds = {name: {f"mode {of.mode}", f"launch_type {of.launch_type}"} for name, of in config.applications.items()}
        if names := sorted(name for name in used if what in kinds[name]):
            package = _PACKAGES.get(what)
            command = " && ".join(filter(None, (f"apt install {package}", restart(facts, "helper")))) if package else ""
            hint = "the helper tries it out at its start"
            found.append(fault(f"jobs of {', '.join(names)} wait, {what} does not work: {why}", hint, command))
    yield from found
    if not found:
        yield ok(f"all {len(used)} that sites may use can be run")


# Directories


@frozen
class _Place:
    which: Which
    what: str
    path: str
    mode: int
    file: str = ""


def places(facts: Facts) -> tuple[_Place, ...]:
    """Return the daemons' directories, each as its unit makes it."""
    paths = facts.paths
    return (
        _Place("watcher", "the ledger's directory", str(paths.state_dir), 0o700),
        _Place("helper", "the helper's records", str(paths.helper_state_dir), 0o700),
        _Place("helper", "the accounts' caches", str(paths.cache_dir), _SHARED),
        _Place("watcher", "the watcher's log", str(paths.base_log.parent), 0o750, str(paths.base_log)),
        _Place("helper", "the helper's log", str(paths.helper_base_log.parent), 0o750, str(paths.helper_base_log)),
    )


def directories(facts: Facts) -> Iterator[Point]:
    """Each is there, its daemon's, closed to others, and can be written."""
    found = [point for place in places(facts) for point in _directory(facts, place)]
    yield from at_once(found, "what the daemons' accounts can write")
    if not any(point.level in {"fault", "warning"} for point in found):
        seen = [place.path for place in places(facts) if isinstance(facts.directories[place.path], Directory)]
        if seen:
            yield ok(", ".join(seen))


def _directory(facts: Facts, place: _Place) -> Iterator[Point]:
    seen, path = facts.directories[place.path], place.path
    account = (facts.host.helper if place.which == "helper" else facts.host.watcher).account
    user = facts.paths.helper_user if place.which == "helper" else facts.paths.watcher_user
    making = shlex.join(["install", "-d", "-o", user, "-g", user, "-m", f"{place.mode:04o}", path])
    if facts.systemd:  # its unit makes it
        making = restart(facts, place.which)
    match seen:
        case Absent() if facts.is_inactive(place.which):
            yield skipped(f"{path} does not exist, {place.what}: {UNITS[place.which]} makes it")
            return
        case Absent():
            yield fault(f"{path} does not exist, {place.what}", command=making)
            return
        case Unseen():
            yield unseen(f"{path}, {place.what},", seen)
            return
    if not seen.is_directory:
        command = f"{shlex.join(['mv', '-nT', path, f'{path}.old'])} && {making}"
        yield fault(f"{path} is not a directory, {place.what}", "move it away", command)
        return
    if isinstance(account, Account) and seen.uid not in {account.uid, 0}:
        what = f"{path}, {place.what}, belongs to uid {seen.uid}, not to account {user}"
        yield fault(what, command=shlex.join(["chown", f"{user}:{user}", path]))
    if place.mode == _SHARED:
        if seen.mode & _SHARED != _SHARED:
            what = f"{path}, {place.what}, has mode {seen.mode:04o}: accounts get no cache in it"
            yield warning(what, command=f"chmod 1777 {shlex.quote(path)}")
    elif seen.mode & _OTHERS_WRITE:
        what = f"{path}, {place.what}, can be written by others (mode {seen.mode:04o})"
        yield fault(what, command=f"chmod {place.mode:04o} {shlex.quote(path)}")
    yield from _writing(seen, place, user, making)


def _writing(seen: Directory, place: _Place, user: str, making: str) -> Iterator[Point]:
    path = place.path
    if seen.is_read_only:
        command = shlex.join(["mount", "-o", "remount,rw", path])
        yield fault(f"{path}, {place.what}, is on a filesystem that is mounted read-only", command=command)
    elif isinstance(seen.may, Unseen):
        yield unseen(f"whether account {user} can write in {path}", seen.may)
    elif seen.may is False:
        yield fault(f"account {user} cannot write in {path}, {place.what}", command=making)
    elif seen.may_write_file is False:
        what = f"account {user} cannot write {place.file}, {place.what}"
        yield fault(what, command=shlex.join(["chown", "-h", f"{user}:{user}", place.file]))


def room(facts: Facts) -> Iterator[Point]:
    """There is room for what the daemons write."""
    found = []
    free = []
    for place in places(facts):
        seen = facts.directories[place.path]
        if not isinstance(seen, Directory):
            continue
        free.append(seen.free_bytes)
        if seen.free_bytes < LOW_BYTES:
            level = fault if seen.free_bytes < FULL_BYTES else warning
            what = f"{seen.free_bytes // MIB} MiB are free for {place.what}"
            found.append(level(what, "make room", shlex.join(["df", "-h", place.path])))
        elif seen.free_files is not None and seen.free_files < LOW_FILES:
            what = f"{seen.free_files} files more can be made for {place.what}"
            found.append(warning(what, "remove files", shlex.join(["df", "-i", place.path])))
    yield from found
    if not free:
        yield skipped("no directory of the daemons was seen")
    elif not found:
        yield ok(f"{min(free) // MIB} MiB and more")


def ledger(facts: Facts) -> Iterator[Point]:
    """The ledger can be read and is of this program's version."""
    path = os.path.join(str(facts.paths.state_dir), "ledger.db")  # noqa: PTH118 - a text
    match facts.ledger:
        case Absent():
            if facts.running("watcher"):
                yield fault(f"there is no {path} though a watcher runs", command=restart(facts, "watcher"))
            else:
                yield ok(f"there is no {path} yet: the watcher makes it")
        case Unseen():
            yield unseen(path, facts.ledger)
        case Ledger(version=version) if version > schema.VERSION:
            what = f"{path} is of version {version}, and this program knows {schema.VERSION}: a newer one has used it"
            yield fault(what, "install that program's version")
        case Ledger(version=version) if version < schema.VERSION:
            what = (
                f"{path} is of version {version}: a watcher of this program brings it to {schema.VERSION} at its start"
            )
            yield warning(what, command=restart(facts, "watcher") or start(facts, "watcher"))
        case Ledger(damaged=damaged) if damaged:
            what = f"a ledger was damaged, its files are in {damaged[-1]}"
            yield warning(what, "remove them when nobody needs them", shlex.join(["rm", "-r", *damaged]))
        case _:
            yield ok(f"{path}, version {schema.VERSION}")
