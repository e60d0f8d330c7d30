"""Who may ask what on the control socket: decided from the uid at the other end and what the name service says of it.

Root, the watcher's own account and members of its group may do everything; a site's account and members of the site's
group see and use their own site.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from attrs import frozen

from basestation_runner import nss

if TYPE_CHECKING:
    import asyncio

    from basestation_runner.watch.errands import Errands
    from basestation_runner.watch.sites import Sites
    from basestation_runner.watch.sitewatch import SiteWatch

BELIEVED_FOR: Final = 30.0
"""Seconds in which an account is not looked up again."""
MOST_KNOWN: Final = 1000
_WHAT: Final = "the name service"


class UnknownCallerError(Exception):
    """Whoever asks may not; the text says why."""


@frozen
class Caller:
    """Somebody who may ask something: `sites` are the names of what they may see and use, None for everything."""

    uid: int
    sites: frozenset[str] | None

    def may_use(self, site: str) -> bool:
        """Tell whether a site is theirs."""
        return self.sites is None or site in self.sites


@frozen
class _Known:
    until: float
    account: nss.Account | None
    groups: frozenset[int]


class Callers:
    """Looks callers up, and believes what it found for a while."""

    def __init__(self, loop: asyncio.AbstractEventLoop, errands: Errands, sites: Sites) -> None:
        self._loop = loop
        self._errands = errands
        self._sites = sites
        self._known: dict[int, _Known] = {}

    async def caller(self, uid: int) -> Caller:
        """Say what an account may do. Raises UnknownCallerError, nss.LookupFailedError or HungError."""
        if uid in {0, os.getuid()}:
            return Caller(uid, None)
        known = self._known.get(uid)
        if known is None or known.until < self._loop.time():
            account, groups = await self._errands.run(_WHAT, lambda: _look_up(uid))
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[uid] = _Known(self._loop.time() + BELIEVED_FOR, account, groups)
        if known.account is None:
            raise UnknownCallerError(f"there is no account with uid {uid}")
        if os.getgid() in known.groups:
            return Caller(uid, None)
        sites = frozenset(site.site.name for site in self._sites if _is_of(site, uid, known.groups))
        if not sites:
            raise UnknownCallerError(
                f"account {known.account.name} is a member of no site's group and not of the watcher's"
            )
        return Caller(uid, sites)


def _is_of(site: SiteWatch, uid: int, groups: frozenset[int]) -> bool:
    """Tell whether an account is a site's. A site whose own account is not known yet is nobody's but the operators'."""
    return site.rundir.gid >= 0 and (uid == site.rundir.uid or site.rundir.gid in groups)


def _look_up(uid: int) -> tuple[nss.Account | None, frozenset[int]]:
    account = nss.account_by_uid(uid)
    return account, frozenset() if account is None else nss.groups_of(account)
