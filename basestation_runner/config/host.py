"""Whether a host is ready for a valid configuration: what is common to all sites, and the way to what is of each.

What could not be looked at is told of, and never taken as good.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from basestation_runner.config.document import Document
from basestation_runner.config.findings import Finding, Level, found
from basestation_runner.config.hostfacts import NOT_BY_THIS_USER, Daemon, Entry, Facts, SiteFacts, gather
from basestation_runner.config.hostsite import AS_ROOT, SiteCheck, useradd
from basestation_runner.config.model import Config
from basestation_runner.config.probes import Unseen
from basestation_runner.errors import RunnerError
from basestation_runner.nss import Account

_WATCHES_A_SITE: Final = 2  # on its rundir, and for moments on a directory above it or on its lock
_LEAST_RAISED: Final = 128
_EVENTS: Final = 16_384  # the kernel's own default


def check(
    document: Document, config: Config, files: Sequence[str], *, watcher_user: str, helper_user: str
) -> list[Finding]:
    """Given a valid configuration, the document of its sites, and all its files, look at this host and judge it."""
    facts = gather(config, files, watcher_user=watcher_user, helper_user=helper_user)
    return sorted(
        judge(document, config, facts),
        key=lambda finding: (finding.file or "", finding.line or 0, finding.column or 0),
    )


def judge(document: Document, config: Config, facts: Facts) -> Iterator[Finding]:
    """Given the facts about a valid configuration, return what is wrong, what is doubtful, and what may be meant so."""
    yield from daemons(facts)
    yield from limits(facts.limits, len(config.sites))
    for file, problem in facts.files.items():
        yield from of_file(file, problem)
    if any(isinstance(entry.may, Unseen) for site in facts.sites.values() for entry in entries(site)):
        what = "what the accounts can read, write and execute cannot be checked as this user"
        yield Finding(level="warning", what=what, hint=AS_ROOT)
    rundirs: dict[tuple[int, int], str] = {}
    for name, site in config.sites.items():
        yield from SiteCheck(document, config, site, facts.sites[name], facts).findings()
        rundir = facts.sites[name].rundir
        if isinstance(rundir, Entry) and (other := rundirs.setdefault(rundir.place, name)) != name:
            what = f"{site.watch_dir} is the same directory as the rundir of site {other}"
            yield found(document.fault((name, "watch_dir"), what, "give each site a rundir of its own"))


def entries(site: SiteFacts) -> Iterator[Entry]:
    """Return all that there is of a site's paths."""
    scripts = site.scripts.values() if isinstance(site.scripts, Mapping) else ()
    commands = [command.seen for command in site.commands.values()] if isinstance(site.commands, Mapping) else []
    for seen in (site.rundir, site.jail, site.interpreter, *scripts, *commands):
        if isinstance(seen, Entry):
            yield seen


def daemons(facts: Facts, *, helper_level: Level = "warning") -> Iterator[Finding]:
    """Judge the daemons' accounts; `helper_level` is how bad it is when the helper has none."""
    watcher, helper = facts.watcher, facts.helper
    yield from _daemon(watcher, "the watcher's", "--watcher-user", "fault")
    yield from _daemon(helper, "the helper's", "--helper-user", helper_level)
    if isinstance(facts.watchers, Unseen):
        yield _unseen("which groups a running watcher has", facts.watchers)
    match watcher.account, helper.account:
        case Account(gid=gid), Account() if gid not in helper.groups:
            what = f"the helper's account {helper.name} is not in GID {gid}, the watcher's: it cannot share its socket"
            command = shlex.join(["usermod", "-aG", str(gid), helper.name])
            yield Finding(level="fault", what=what, hint="add it", command=command)


def _daemon(daemon: Daemon, whose: str, option: str, level: Level) -> Iterator[Finding]:
    match daemon.account:
        case Unseen():
            yield _unseen(f"the look-up of account {daemon.name}, {whose},", daemon.account)
        case None:
            what = f"there is no account {daemon.name}, {whose}"
            yield Finding(level=level, what=what, hint=f"mend {option}, or create it", command=useradd(daemon.name))


def limits(limits: Mapping[str, int], sites: int) -> Iterator[Finding]:
    """Judge inotify's limits, given how many sites there are."""
    for name, least, good in (
        ("max_user_watches", sites, _WATCHES_A_SITE * sites),
        ("max_user_instances", 1, sites + 1),
    ):
        if name in limits and limits[name] < good:
            sysctl = f"fs.inotify.{name}"
            yield Finding(
                level="fault" if limits[name] < least else "warning",
                what=f"the sysctl {sysctl} is {limits[name]}: too low for {sites} sites",
                hint="raise it, and in /etc/sysctl.d for later",
                command=f"sysctl -w {sysctl}={max(_LEAST_RAISED, _WATCHES_A_SITE * good)}",
            )
    if limits.get("max_queued_events", _EVENTS) < _EVENTS:
        sysctl = "fs.inotify.max_queued_events"
        what = f"the sysctl {sysctl} is {limits['max_queued_events']}: bursts of requests are found by slow scans"
        hint = "raise it, and in /etc/sysctl.d for later"
        yield Finding(level="warning", what=what, hint=hint, command=f"sysctl -w {sysctl}={_EVENTS}")


def of_file(file: str, problem: RunnerError | Unseen | None) -> Iterator[Finding]:
    """Judge whether the helper may use a config file."""
    match problem:
        case Unseen():
            level: Level = "fault" if problem.is_fault else "warning"
            what, hint = f"who can write it {problem.why}", AS_ROOT if problem == NOT_BY_THIS_USER else ""
        case RunnerError():
            level, what, hint = "fault", f"{problem.where}: {problem.what}", problem.hint or ""
        case None:
            return
    yield Finding(level=level, what=what, hint=hint, file=file, line=1, column=1)


def _unseen(about: str, unseen: Unseen) -> Finding:
    hint = AS_ROOT if unseen == NOT_BY_THIS_USER else ""
    return Finding(level="fault" if unseen.is_fault else "warning", what=f"{about} {unseen.why}", hint=hint)
