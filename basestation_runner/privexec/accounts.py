"""Whom a site's jobs run as: the account and the groups, looked up and decided anew for every job."""

import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from basestation_runner import execgroups, nss
from basestation_runner.errors import RunnerError
from basestation_runner.privexec.order import NotNowError, RefusedError


class SiteIdentity(Protocol):
    """What a site's entry says of its jobs' identity."""

    @property
    def runner_user(self) -> str:
        """The account's name."""

    @property
    def groups(self) -> Sequence[str | int] | None:
        """The execution groups by name or number, first the effective one; None: the account's own."""


class Caller(NamedTuple):
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


class Resolved(NamedTuple):
    """A site's account and the groups that its next job gets."""

    account: nss.Account
    groups: tuple[int, ...]
    some_removed: bool


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


def resolve(site: SiteIdentity, who: Caller, groups: Sequence[str | int] | None = None) -> Resolved:
    """Look up the site's account and decide its execution groups. May block for as long as a directory service does.

    A job may have narrowed the `groups`.

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
        requested, unknown = _requested(groups or site.groups, account, has)
        if site.groups is None and requested[0] != account.gid:
            raise RefusedError(f"the first group that it names is not the primary one of account {account.name}")
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


def _requested(groups: Sequence[str | int] | None, account: nss.Account, has: frozenset[int]) -> tuple[list[int], bool]:
    """Return a group list as numbers, None for the account's own, and whether a supplementary name is not known."""
    if groups is None:
        return list(execgroups.of_account(account.gid, has)), False
    gids = []
    unknown = False
    for position, entry in enumerate(groups):
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
