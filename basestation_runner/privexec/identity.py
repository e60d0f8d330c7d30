"""Whom a job becomes. How is in become/identity.c."""

from typing import NamedTuple


class Identity(NamedTuple):
    """Who the job is: plain numbers, resolved and allowed before.

    `groups` is the whole supplementary list, its first entry the effective GID. `changes` is False in single-account
    mode, where the helper has no capabilities and may only run what is already its own identity. `cgroup_procs` is
    the cgroup.procs file of the job's leaf, None where there are no cgroups. `address_space` is how many bytes of
    memory each of its processes may have from its program on, None for as many as it likes.
    """

    uid: int
    groups: tuple[int, ...]
    changes: bool = True
    cgroup_procs: str | None = None
    address_space: int | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """What makes a child become this."""
        return str(int(self.changes)), str(self.uid), self.cgroup_procs or "", *map(str, self.groups)
