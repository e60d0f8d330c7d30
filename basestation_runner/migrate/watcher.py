"""What a migration does to our own daemons: their groups, what they are told, whether they run."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from basestation_runner import execgroups, nss
from basestation_runner.config.load import load_files
from basestation_runner.config.location import applications_path
from basestation_runner.config.model import Site
from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.migrate import asother, sitesfile
from basestation_runner.migrate.asother import Identity
from basestation_runner.migrate.context import Context
from basestation_runner.migrate.journal import Journal
from basestation_runner.migrate.systemctl import execute
from basestation_runner.operate import probed
from basestation_runner.operate.client import Client, Facts
from basestation_runner.watch.rundir import NotReadyError, owner

_PROBE_PATIENCE: Final = 60.0
"""Seconds for one probe: the watcher's own patience with it, and some more."""

# Groups


def join(context: Context, groups: Iterable[tuple[int, str]]) -> None:
    """Make the watcher's account a member of groups that it is not in. Raises RunnerError."""
    setting, facts = context.setting, context.journal.facts
    for gid, group in groups:
        if is_member(setting.watcher_user, gid):
            continue
        context.journal.note(joined=[*facts.get("joined", []), [gid, group]])
        execute([setting.usermod, "-aG", group, setting.watcher_user])
        if not is_member(setting.watcher_user, gid):
            raise RunnerError(f"account {setting.watcher_user} was added to group {group}, but is not in it")


def leave(context: Context) -> None:
    """Undo that, but for groups that are by now other sites' too. A watcher that runs is started anew, to lose them."""
    setting = context.setting
    joined = context.journal.facts.get("joined", [])
    if not joined:
        return
    needed = _needed(context)
    for gid, group in joined:
        if gid in needed:
            context.say(f"group {group} is site {needed[gid]}'s too: {setting.watcher_user} stays in it")
            _pass_on(context, needed[gid], gid, group)
        elif is_member(setting.watcher_user, gid):
            execute([setting.gpasswd, "-d", setting.watcher_user, group])
    lost = [gid for gid, _ in joined if gid not in needed]
    if context.is_running(setting.watcher_unit) and any(runs_with(context, gid) for gid in lost):
        setting.systemctl.restart(setting.watcher_unit)


def _needed(context: Context) -> dict[int, str]:
    """Return the groups of the sites in sites.yaml, each with one of them, but of those that are given back."""
    setting = context.setting
    text = sitesfile.read(setting.sites_config)
    if text is None or not sitesfile.has_sites(setting.sites_config, text):
        return {}
    config = load_files(setting.sites_config, applications_path(setting.applications_config))
    found = {}
    for site in config.sites.values():
        if site.name not in context.sites:
            try:
                found[owner(site)[1]] = site.name
            except NotReadyError:  # it has no group that it could need
                continue
            except nss.LookupFailedError as error:
                raise TemporaryError(f"the name service does not answer: {error}") from error
    return found


def _pass_on(context: Context, site: str, gid: int, group: str) -> None:
    """Have a site that was migrated too undo a membership one day, in place of the one that gave it."""
    journal = Journal.of(context.setting.journals, site)
    joined = journal.facts.get("joined", [])
    if journal.is_known and [gid, group] not in joined:
        journal.note(joined=[*joined, [gid, group]])


def is_member(name: str, gid: int) -> bool:
    """Tell whether an account has a group, by the name service. Raises TemporaryError."""
    try:
        account = nss.account(name)
        return account is not None and gid in nss.groups_of(account)
    except nss.LookupFailedError as error:
        raise TemporaryError(f"the name service does not answer: {error}") from error


def runs_with(context: Context, gid: int) -> bool:
    """Tell whether the running watcher has a group."""
    pid = context.setting.systemctl.main_pid(context.setting.watcher_unit)
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return gid in {int(word) for name in ("Gid", "Groups") for word in lines.get(name, "").split()}


# Word


def leave_word(context: Context, sites: Sequence[str], stopped_at: float | None) -> None:
    """Tell the watcher when the daemons before it were stopped, or take that back."""
    setting = context.setting
    watcher = Identity.of(setting.watcher_user)
    if stopped_at is None:
        if not setting.state_dir.is_dir():
            return
    else:
        _make_state_dir(setting.state_dir, watcher)
    for site in sites:
        asother.tell_of_takeover(watcher, setting.state_dir, site, stopped_at)


def _make_state_dir(path: Path, watcher: Identity) -> None:
    """Make the watcher's state directory as its unit would, if it never ran. Its parent is root's."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    except OSError as error:
        raise RunnerError(f"cannot be made: {error.strerror}", where=str(path)) from error
    if os.geteuid() == 0:
        os.chown(path, watcher.uid, watcher.gid, follow_symlinks=False)


# Running


def start_daemons(context: Context) -> bool:
    """Start our daemons, now and with the host, as far as they do not; tell whether the watcher is a new one."""
    setting, systemctl = context.setting, context.setting.systemctl
    idle = [unit for unit in setting.our_units if not context.is_running(unit)]
    disabled = [unit for unit in setting.our_units if idle and not systemctl.is_enabled(unit)]
    facts = context.journal.facts
    # A kill in between must not make us forget which of them we have started.
    context.journal.note(
        started=list(dict.fromkeys([*facts.get("started", []), *idle])),
        enabled=list(dict.fromkeys([*facts.get("enabled", []), *disabled])),
    )
    for unit in disabled:
        systemctl.enable(unit)
    for unit in idle:
        systemctl.start(unit)
    context.wait_for_watcher()
    return setting.watcher_unit in idle


def stop_daemons(context: Context) -> None:
    """Stop our daemons, now and with the host: without a site there is nothing that they could do."""
    setting, facts = context.setting, context.journal.facts
    if "started" not in facts:
        return
    for unit in reversed(setting.our_units):
        setting.systemctl.stop(unit)
    # Those that ran before this migration were started for sites that are gone by now.
    for unit in facts["enabled"] if facts["started"] else setting.our_units:
        setting.systemctl.disable(unit)


class ProbeRefusedError(RunnerError):
    """The helper would not start a job of a site, and has said so."""


def probe(context: Context, site: str) -> None:
    """Have the helper make what a job of a site would be, and see that it is right. Raises RunnerError."""
    told: Facts = {}
    why = "the helper does not answer"

    def is_told() -> bool:
        nonlocal why
        try:
            with Client(context.setting.control_socket, _PROBE_PATIENCE) as client:
                told.update(client.ask("probe", site=site)["probe"])
        except TemporaryError as error:
            why = error.what
            return False
        why = str(told.get("reason"))
        return bool(told["outcome"] != "temporary")

    if not context.wait(is_told, context.setting.patience.watched, lambda: f"waiting for the probe of {site}: {why}"):
        if told:
            raise ProbeRefusedError(f"a job of site {site} would not be started now: {why}")
        raise RunnerError(f"site {site} cannot be probed: {why}")
    if told["outcome"] != "probed":
        raise ProbeRefusedError(f"a job of site {site} would not be started: {why}")
    faults = "; ".join(wrong(context, site, told))
    if faults:
        raise RunnerError(f"a job of site {site} would be wrong: {faults}")
    for warning in told["warnings"]:
        context.say(f"site {site}: {warning}")


def wrong(context: Context, site: str, told: Facts) -> Iterator[str]:
    """Yield what of a job's identity is not as sites.yaml and the name service say."""
    setting = context.setting
    config = load_files(setting.sites_config, applications_path(setting.applications_config))
    uid, decision = _identity(config.sites[site])
    yield from probed.wrong(told, uid, decision)
    yield from probed.unsafe(told)


def _identity(site: Site) -> tuple[int, execgroups.Granted | execgroups.Refused]:
    """Return the uid of a site's account, and the groups that its jobs are to have. Raises RunnerError."""
    try:
        account = nss.account(site.runner_user)
        if account is None:
            raise RunnerError(f"there is no account {site.runner_user}")
        has = nss.groups_of(account)
        found = [nss.group(group) if isinstance(group, str) else group for group in site.groups or ()]
    except nss.LookupFailedError as error:
        raise TemporaryError(f"the name service does not answer: {error}") from error
    requested = [group if isinstance(group, int) else group.gid for group in found if group is not None]
    return account.uid, execgroups.decide(requested or execgroups.of_account(account.gid, has), has)
