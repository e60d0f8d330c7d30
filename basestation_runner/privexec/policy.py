"""What the helper allows: which orders it accepts from a watcher, and which accounts and groups a job may have.

The watcher's word counts only for what a request says. Program, account, environment and limits come from the
helper's own config here, and the account's numbers are checked again at every execution.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from attrs import evolve

from basestation_runner import execgroups, nss
from basestation_runner.config.model import Application, Config, Site
from basestation_runner.errors import RunnerError
from basestation_runner.privexec.order import NotNowError, Order, RefusedError


@dataclass(frozen=True)
class Caller:
    """What the helper is itself: whether it can change identity, and the ids that no job may have."""

    changes: bool
    uid: int
    gid: int
    groups: frozenset[int]
    watcher_uid: int
    watcher_gid: int
    forbidden_gids: frozenset[int]

    @property
    def forbidden_uids(self) -> frozenset[int]:
        """The accounts that no job may have."""
        return execgroups.forbidden((self.uid, self.watcher_uid))


def caller(*, changes: bool, watcher_user: str | None) -> Caller:
    """Return what this process is. Raises RunnerError when an account of the daemons is not known."""
    own = nss.account_by_uid(os.getuid())
    watcher = own if watcher_user is None else nss.account(watcher_user)
    if own is None:
        raise RunnerError(f"the helper's own account (uid {os.getuid()}) is not known", hint="create it")
    if watcher is None:
        raise RunnerError(f"the watcher's account {watcher_user} is not known", hint="create it or mend --watcher-user")
    return Caller(
        changes=changes,
        uid=own.uid,
        gid=os.getegid(),
        groups=frozenset(os.getgroups()) | {os.getegid()},
        watcher_uid=watcher.uid,
        watcher_gid=watcher.gid,
        forbidden_gids=execgroups.forbidden((own.gid, watcher.gid)),
    )


@dataclass(frozen=True)
class Resolved:
    """A site's account and the groups that its next job gets."""

    account: nss.Account
    groups: tuple[int, ...]
    some_removed: bool


def order(config: Config, message: Mapping[str, Any]) -> Order:
    """Given a well-formed dispatch of our own watcher, return what it orders. Raises RefusedError or NotNowError."""
    site = config.sites.get(message["site"])
    # Compared before anything else is believed: both sides must mean the same site by the name.
    if site is None or config.digest(site.name) != message["digest"]:
        raise NotNowError("watcher and helper have read different configurations; restart both")
    if site.not_supported:
        raise RefusedError(site.not_supported)
    if message["application"] not in site.applications:
        raise RefusedError(f"application {message['application']} is not one that the site may use")
    application = config.applications[message["application"]]
    _require_run_by(application, config, site, message["script"])
    return Order(
        job_id=message["job_id"],
        site=site,
        application=application,
        home=message["home"],
        mission_dir=message["mission_dir"],
        log_file=message["log_file"],
        script=message["script"],
        args=tuple(message["args"]),
        queue_length=message["queue_length"],
    )


def legacy_order(config: Config, message: Mapping[str, Any], job_id: str) -> Order:
    """Given a well-formed dispatch of a BaseRunnerMulti, return what it orders. Raises RefusedError.

    Its argv is finished, and must be what our own rules would have made: the site's interpreter, a listed script
    directly in its basestation_dir, arguments. It names no mission directory but by `--mission_dir`.
    """
    site = config.sites.get(message["site"])
    if site is None:
        raise RefusedError(f"site {message['site']} is not configured")
    if site.not_supported:
        raise RefusedError(site.not_supported)
    interpreter, path, *args = [*message["argv"], "", ""][: max(2, len(message["argv"]))]
    directory, _, script = path.rpartition("/")
    if interpreter != site.python_version or directory != site.basestation_dir:
        raise RefusedError("its program is not the site's interpreter with a script of the site's basestation_dir")
    application = config.application_for(site, script)
    if application is None:
        raise RefusedError(f"script {script} is not listed in any application of the site")
    _require_run_by(application, config, site, script)
    log_file = message["log_file"]
    mission_dir = _value_after("--mission_dir", args) or os.path.dirname(log_file)
    application = evolve(application, timing_line=False)  # the legacy watcher writes that line itself
    return Order(job_id, site, application, mission_dir, mission_dir, log_file, script, tuple(args), 0, on_host=True)


def _require_run_by(application: Application, config: Config, site: Site, script: str) -> None:
    """Raise RefusedError unless the application is the one that runs this script at this site.

    That is the one that lists it, or the default one. Only a file directly in basestation_dir can be meant: a default
    application takes names that no list has checked.
    """
    is_bare = "/" not in script and script not in {"", ".", ".."}
    if not is_bare or config.application_for(site, script) != application:
        raise RefusedError(f"script {script} is not listed in application {application.name}")


def _value_after(option: str, args: list[str]) -> str | None:
    return next((value for name, value in pairwise(args) if name == option), None)


def resolve(site: Site, who: Caller) -> Resolved:
    """Look up the site's account and decide its execution groups. May block for as long as a directory service does.

    Raises RefusedError for an account or group that no job may have, NotNowError when the name service did not answer
    or does not know the account or its effective group (yet).
    """
    try:
        account = nss.account(site.runner_user)
        if account is None:
            raise NotNowError(f"account {site.runner_user} is not known", absent=True)
        if who.changes and account.uid in who.forbidden_uids:
            raise RefusedError(f"account {account.name} has uid {account.uid}, which no job may have")
        has = nss.groups_of(account)
        requested, unknown = _requested(site, account, has)
    except nss.LookupFailedError as error:
        raise NotNowError(f"the name service did not answer: {error}") from error
    decision = execgroups.decide(requested, has)
    if isinstance(decision, execgroups.Refused):
        if decision.maybe_late:
            raise NotNowError(decision.reason, absent=True)
        raise RefusedError(decision.reason)
    if who.changes:
        for gid in decision.gids:
            if gid in who.forbidden_gids:
                raise RefusedError(f"account {account.name} would get GID {gid}, which no job may have")
    else:
        _require_own(account, decision.gids, who)
    return Resolved(account, decision.gids, some_removed=unknown or bool(decision.removed))


def _requested(site: Site, account: nss.Account, has: frozenset[int]) -> tuple[list[int], bool]:
    """Return the site's group list as numbers, and whether a supplementary name in it is not known."""
    if site.groups is None:
        return list(execgroups.of_account(account.gid, has)), False
    gids = []
    unknown = False
    for position, entry in enumerate(site.groups):
        group = nss.group(entry) if isinstance(entry, str) else nss.Group(name="", gid=entry)
        if group is not None:
            gids.append(group.gid)
        elif position == 0:
            raise NotNowError(f"the effective group {entry} is not known", absent=True)
        else:
            unknown = True
    return gids, unknown


def _require_own(account: nss.Account, gids: tuple[int, ...], who: Caller) -> None:
    if account.uid != who.uid:
        raise RefusedError(f"the helper has no capabilities and cannot become {account.name}")
    if gids[0] != who.gid or frozenset(gids) != who.groups:
        raise RefusedError("the helper has no capabilities and its own groups are not the site's execution groups")
