"""Execution groups: which groups a job gets, decided from what was requested and what the account has.

Pure: no look-ups, no system calls. Rules: an effective GID that the account lacks refuses the job; supplementary
groups that it lacks are left out; nothing that was not requested is ever added.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

MOST_GROUPS: Final = 256
UNCHANGED: Final = 0xFFFFFFFF
"""What setresuid(2) and setresgid(2) take for "leave it as it is": never an account or a group."""
MOST_GID: Final = UNCHANGED - 1
"""The largest number that a group can have."""


class Granted(NamedTuple):
    """The groups that a job gets: `gids` is the whole list for setgroups(2), its first entry the effective GID."""

    gids: tuple[int, ...]
    removed: tuple[int, ...]

    @property
    def effective(self) -> int:
        """The effective GID."""
        return self.gids[0]


class Refused(NamedTuple):
    """Why the job must not run. `maybe_late`: the account lacks the group now, but a directory service may be late."""

    reason: str
    maybe_late: bool = False


def decide(requested: Iterable[int], account_groups: Collection[int]) -> Granted | Refused:
    """Given the requested GIDs, effective one first, and the account's whole NSS group set, return what is granted.

    The account's set must hold its primary group too. The result includes the effective GID among the supplementary
    groups, so that a file's group deny cannot be dodged by having the group only as the effective one.
    """
    wanted = tuple(dict.fromkeys(requested))
    if not wanted:
        return Refused("no execution group is requested")
    if len(wanted) > MOST_GROUPS:
        return Refused(f"{len(wanted)} execution groups are requested, the most is {MOST_GROUPS}")
    for gid in wanted:
        if not 0 <= gid < UNCHANGED:
            return Refused(f"{gid} is not a group number")
    effective = wanted[0]
    if effective not in account_groups:
        return Refused(f"the account is not in its effective group (GID {effective})", maybe_late=True)
    granted = tuple(gid for gid in wanted if gid in account_groups)
    return Granted(gids=granted, removed=tuple(gid for gid in wanted if gid not in account_groups))


def forbidden(daemons: Iterable[int]) -> frozenset[int]:
    """Given the helper's and the watcher's uid, return the uids that no job may have; and so for gids.

    Root, and the daemons themselves: as one of these a job could undo the separation. And what would leave the
    helper's own id in place.
    """
    return frozenset({0, UNCHANGED, *daemons})


def of_account(primary: int, account_groups: Collection[int]) -> tuple[int, ...]:
    """Return what is requested for a site that names no groups: the account's own, its primary group first."""
    return (primary, *sorted(gid for gid in account_groups if gid != primary))
