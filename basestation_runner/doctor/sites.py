"""Checks of the sites: accounts, groups and trees, the watcher's membership, locks, states, and probes. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from basestation_runner.config.host import entries
from basestation_runner.config.hostfacts import Names
from basestation_runner.config.hostsite import AS_ROOT, SiteCheck
from basestation_runner.config.probes import Unseen
from basestation_runner.doctor.daemons import NO_CONFIG, restart
from basestation_runner.doctor.facts import UNITS, Lock
from basestation_runner.doctor.points import Point, at_once, fault, of_finding, ok, skipped, unseen, warning
from basestation_runner.nss import Account
from basestation_runner.operate import probed
from basestation_runner.privexec.leaf import cpu_max
from basestation_runner.watch import lockfile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from basestation_runner.config.findings import Finding
    from basestation_runner.config.model import Config, Site
    from basestation_runner.doctor.facts import Facts

MIB: Final = 1 << 20
NOT_ASKED: Final = "not asked"
"""In place of a probe's outcome: the watcher has not passed the question on; `may_pass`: it may another time."""
LEFT_OUT: Final = "left out"
"""In place of a probe's outcome: there was no time left for it."""
_MOUNT: Final = "/sys/fs/cgroup"


def number_of(config: Config) -> str:
    """Return how many sites there are, in words."""
    return "1 site" if len(config.sites) == 1 else f"{len(config.sites)} sites"


def trees(facts: Facts) -> Iterator[Point]:
    """Each site's account, groups, rundir, jail, interpreter and programs are as its jobs need them."""
    document, config = facts.configuration.document, facts.config
    if document is None or config is None:
        yield skipped(NO_CONFIG)
        return
    found = [point for name in config.sites for point in _tree(facts, name)]
    is_hidden = any(isinstance(entry.may, Unseen) for site in facts.host.sites.values() for entry in entries(site))
    yield from at_once(found, "what the accounts can read, write and execute", is_hidden=is_hidden)
    if not found and not is_hidden:
        yield ok(f"{number_of(config)}: accounts, groups, rundirs and programs")


def _tree(facts: Facts, name: str) -> Iterator[Point]:
    document, config = facts.configuration.document, facts.config
    if document is not None and config is not None:
        check = SiteCheck(document, config, config.sites[name], facts.host.sites[name], facts.host)
        yield from (point for finding in _of_tree(check) if (point := of_finding(finding, site=name)))


def _of_tree(check: SiteCheck) -> Iterator[Finding]:
    names, user = check.facts.names, check.site.runner_user
    match names:
        case Names():
            yield from check.account(names)
            yield from check.groups(names)
        case Unseen():
            yield check.unseen("runner_user", f"the look-up of account {user}", names)
        case None:
            yield from check.no_account()
    for part in (check.rundir, check.jail, check.interpreter, check.scripts, check.commands, check.unsupported):
        yield from part()


def membership(facts: Facts) -> Iterator[Point]:
    """The watcher is in every site's group, by the name service and as it runs; the helper is in none."""
    if facts.config is None:
        yield skipped(NO_CONFIG)
        return
    found = [point for name in facts.config.sites for point in _membership(facts, name)]
    yield from found
    if isinstance(facts.processes, Unseen):
        yield unseen("which groups a running watcher has", facts.processes)
    elif not found:
        running = "and as it runs" if facts.running("watcher") else "alone, as none runs"
        yield ok(f"the watcher is in the groups of {number_of(facts.config)}, by the name service {running}")


def _membership(facts: Facts, name: str) -> Iterator[Point]:
    names, watcher, helper = facts.host.sites[name].names, facts.host.watcher, facts.host.helper
    if not isinstance(names, Names) or names.effective is None:
        return
    gid = names.effective
    group = f"the site's group {names.label(gid)}"
    restarting = restart(facts, "watcher")
    if isinstance(watcher.account, Account) and gid not in watcher.groups:
        command = " && ".join(filter(None, (names.joining(watcher.name, gid), restarting)))
        what = f"the watcher's account {watcher.name} is not in {group}"
        yield fault(what, "add it, and restart the watcher", command, site=name)
    else:
        for process in facts.running("watcher"):
            if gid not in process.groups:
                what = f"the running watcher (pid {process.pid}) is not in {group}"
                yield fault(what, "restart it: a running process gains no group", restarting, site=name)
    if isinstance(helper.account, Account) and helper.name != watcher.name and gid in helper.groups:
        what = f"the helper's account {helper.name} is in {group}: it needs no site's group"
        yield warning(what, command=shlex.join(["gpasswd", "-d", helper.name, names.name(gid)]), site=name)


def locks(facts: Facts) -> Iterator[Point]:
    """No other daemon serves a rundir of ours."""
    if facts.config is None:
        yield skipped(NO_CONFIG)
        return
    found = [point for name, lock in facts.locks.items() for point in _lock(facts, facts.config.sites[name], lock)]
    yield from at_once(found, "rundirs' locks")
    if not found:
        yield ok(f"no rundir of {number_of(facts.config)} is another daemon's")


def _lock(facts: Facts, site: Site, lock: Lock | Unseen | None) -> Iterator[Point]:
    path = f"{site.watch_dir}/{lockfile.NAME}"
    watchers = {process.pid for process in facts.running("watcher")} | {facts.listener("watcher")}
    match lock:
        case Unseen():
            yield unseen(path, lock, site=site.name)
        case Lock(seen=lockfile.Seen(is_held=False)) if facts.running("watcher"):
            whose = f"names process {lock.seen.pid}, which is gone" if lock.seen.pid else "names no process"
            what = f"{path} {whose}: the watcher that runs has not taken it"
            yield warning(what, "the site's state says why; remove it", f"rm {shlex.quote(path)}", site=site.name)
        case Lock(seen=lockfile.Seen(is_held=True)) if lock.seen.pid not in watchers:
            who = f"process {lock.seen.pid}" + (f" ({lock.command})" if lock.command else "")
            what = f"{path} is held by {who}: the site is not served by this program"
            yield fault(what, *_letting_go(facts, site, lock, path), site=site.name)


def _letting_go(facts: Facts, site: Site, lock: Lock, path: str) -> tuple[str, str]:
    """Return how to end a lock: a hint and the command.

    The site's people can write any number there: no process is to be ended that is not plainly a daemon of the site.
    """
    names, watcher = facts.host.sites[site.name].names, facts.host.watcher.account
    owners = {names.account.uid} if isinstance(names, Names) else set()
    owners |= {watcher.uid} if isinstance(watcher, Account) else set()
    if lock.uid not in owners or not lockfile.is_called_like_a_runner(lock.command.encode()):
        return "if that is no daemon of the site, remove the lock", shlex.join(["rm", path])
    if lock.unit and lock.unit not in UNITS.values():
        return "end that daemon first", shlex.join(["systemctl", "disable", "--now", lock.unit])
    return "end that daemon first", f"kill {lock.seen.pid}"


def states(facts: Facts) -> Iterator[Point]:
    """The watcher serves every site."""
    if facts.config is None:
        yield skipped(NO_CONFIG)
    elif not facts.running("watcher") and facts.states is None:
        yield skipped(facts.why_none("watcher"))
    elif facts.states is None:
        yield skipped("the watcher does not tell this user", AS_ROOT)
    else:
        # Who is not root may see some sites only.
        seen = [name for name in facts.config.sites if facts.is_root or name in facts.states]
        found = [point for name in seen for point in _state(facts, name, facts.states.get(name))]
        yield from found
        if not found:
            yield ok(f"{len(seen)} of {number_of(facts.config)} seen, each watched")


def _state(facts: Facts, name: str, told: Mapping[str, Any] | None) -> Iterator[Point]:
    if told is None:
        yield warning("the watcher does not know the site", command="runner reload", site=name)
        return
    if told["state"] == "pending":
        hint = "it is taken up when that is mended"
        yield fault(f"it is pending: {told['reason']}", hint, _mending(facts, name), site=name)
    for remark in told["remarks"]:
        yield warning(str(remark), site=name)
    if told["hold"]:
        yield warning("it is held: nothing of it is started", command=f"runner release {name}", site=name)


def _mending(facts: Facts, name: str) -> str:
    """Return what mends the first fault of a site's own that is seen from here; "" without one."""
    if facts.config is None:
        return ""
    lock = _lock(facts, facts.config.sites[name], facts.locks.get(name))
    points = (*_tree(facts, name), *_membership(facts, name), *lock)
    return next((point.command for point in points if point.level == "fault" and point.command), "")


# Probes


def probes(facts: Facts) -> Iterator[Point]:
    """A job of each site would be exactly what its entry and the name service say."""
    told = facts.probes or {}
    if facts.config is None:
        yield skipped(NO_CONFIG)
        return
    found = [point for name, answer in told.items() for point in _answered(facts, facts.config, name, answer)]
    yield from at_once(found, "what jobs would be")


def _answered(facts: Facts, config: Config, name: str, answer: Mapping[str, Any]) -> Iterator[Point]:
    site = config.sites.get(name)
    if answer["outcome"] == NOT_ASKED and not facts.is_root and not answer["may_pass"]:
        yield skipped(f"site {name}: {answer['reason']}", AS_ROOT)
    elif answer["outcome"] == LEFT_OUT:
        yield skipped(f"it was not probed: {answer['reason']}", "runner doctor --probe SITE probes one", site=name)
    elif answer["outcome"] == NOT_ASKED or site is None:
        yield fault(f"it cannot be probed: {answer.get('reason') or 'it is not configured'}", site=name)
    elif answer["outcome"] != "probed":
        yield fault(f"a job would not be started: {answer['reason']}", site=name)
    else:
        yield from _probe(facts, site, answer)


def _probe(facts: Facts, site: Site, told: Mapping[str, Any]) -> Iterator[Point]:
    found = [fault(f"a job would be wrong: {what}", site=site.name) for what in _wrong(facts, site, told)]
    found += [warning(str(what), site=site.name) for what in told["warnings"]]
    found += [warning(what, site=site.name) for what in _unlimited(site, told)]
    yield from found
    if not found:
        uid, gid = told["uids"][0], told["gids"][0]
        place = f", {told['cgroup_root']}" if told["cgroup_root"] else ""
        yield ok(
            f"{told['account']} (uid {uid}), GID {gid}, groups {probed.numbers(told['groups'])}{place}", site=site.name
        )


def _wrong(facts: Facts, site: Site, told: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of a job's identity is not as it must be."""
    names = facts.host.sites[site.name].names
    if isinstance(names, Names):
        yield from probed.wrong(told, names.account.uid, names.decision)
    yield from probed.unsafe(told)
    root = told["cgroup_root"]
    if root is not None and root.startswith(f"{_MOUNT}/") and told["cgroup"] != root.removeprefix(_MOUNT):
        yield f"its cgroup is {told['cgroup']}, not {root.removeprefix(_MOUNT)}"


def _unlimited(site: Site, told: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of the site's limits does not hold for a job."""
    if told["cgroup_root"] is None:
        yield "it has no cgroup: the site's limits are not applied"
        return
    wanted = {
        "cpu.max": None if site.cpu_quota_pct is None else cpu_max(site.cpu_quota_pct),
        "cpu.weight": site.cpu_weight,
        "pids.max": site.tasks_max,
        "memory.high": None if site.memory_high_mb is None else site.memory_high_mb * MIB,
        "memory.max": None if site.memory_max_mb is None else site.memory_max_mb * MIB,
    }
    for file, limit in wanted.items():
        found = told["cgroup_limits"].get(file)
        if limit is not None and found != str(limit):
            yield f"{file} is {'not there' if found is None else found}, not {limit}"
