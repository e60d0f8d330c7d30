"""A probe, in its keeper: what a job of the site would be. Its child drops as a job's does, and runs nothing.

What the child is, the kernel says of it to whoever looks: nothing that it says itself has to be believed.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from basestation_runner.privexec import capabilities
from basestation_runner.privexec.accounts import Resolved
from basestation_runner.privexec.child import Child
from basestation_runner.privexec.identity import Identity
from basestation_runner.privexec.job import Execution, Found, HomePlaces, Wish, Work
from basestation_runner.privexec.leaf import Leaf
from basestation_runner.privexec.order import NotNowError, Order, RefusedError

_CGROUP_FILES: Final = {
    "job": ("memory.high", "memory.max"),
    "site": ("cpu.max", "cpu.weight", "pids.max"),
}
_SETS: Final = ("inheritable", "permitted", "effective", "ambient")
_LIMIT: Final = re.compile(r"Max (.+?) {2,}(\S+) +(\S+)")

Facts = dict[str, Any]


class ProbePlan:
    """A child that becomes the site, and no more."""

    def __init__(self, work: Work) -> None:
        """Nothing is known yet of what is there."""
        self._home = HomePlaces(work.account, work.cache_dir)
        self.warnings: list[str] = []
        """What the site should hear of."""

    def opening(self) -> Sequence[Wish]:
        """Return the places of the account's own."""
        return self._home.wishes

    def take(self, found: Found) -> None:
        """Learn whether they are."""
        self.warnings = self._home.warnings(found)

    def view(self) -> Sequence[Wish]:
        """Return nothing: it has no sandbox."""
        return ()

    def execution(self, found: Found) -> Execution:  # noqa: ARG002 - nothing is looked for
        """Raise RefusedError: there is nothing to execute."""
        raise RefusedError("a probe runs nothing")


def probed(order: Order, resolved: Resolved, who: Identity, child: Child, cache_dir: str) -> Facts:
    """Return what a child that has been told to become `who` is by then. Raises RefusedError or NotNowError."""
    plan = ProbePlan(Work(order, resolved.account, who, cache_dir))
    if not child.open(plan):
        if child.fault is None:
            raise NotNowError("its process ended, or hung, before it had become the site")
        raise NotNowError(child.fault.reason) if child.fault.passes else RefusedError(child.fault.reason)
    try:
        found = _of(child.pid)
    except (OSError, KeyError) as error:  # /proc may hide other accounts' processes; of one that has ended it says less
        raise NotNowError("/proc does not show what the site's process is") from error
    return {
        **found,
        "account": resolved.account.name,
        "cgroup_root": order.cgroup,
        "cgroup_limits": dict(_cgroup_limits(Leaf(order.cgroup))),
        "warnings": child.warnings + plan.warnings,
    }


def _of(pid: int) -> Facts:
    """Return what a process is, in the kernel's words."""
    now = capabilities.process_status(pid)
    return {
        "uids": now.uids[:3],
        "gids": now.gids[:3],
        "groups": now.groups,
        "capabilities": {name: getattr(now, name) for name in _SETS},
        "no_new_privs": now.no_new_privs,
        "umask": now.umask,
        "nice": os.getpriority(os.PRIO_PROCESS, pid),
        "processors": len(os.sched_getaffinity(pid)),
        "limits": dict(_limits(pid)),
        "cgroup": _cgroup(pid),
    }


def _limits(pid: int) -> Iterator[tuple[str, list[int]]]:
    """Yield each limit's name with its soft and hard value, -1 for none."""
    with open(f"/proc/{pid}/limits", encoding="ascii") as lines:
        for line in lines:
            if (found := _LIMIT.match(line)) is not None:
                yield found[1], [-1 if value == "unlimited" else int(value) for value in found.group(2, 3)]


def _cgroup(pid: int) -> str | None:
    """Return a process's cgroup of version 2, from the hierarchy's root; None if there is none."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as lines:
        return next((line[3:].rstrip("\n") for line in lines if line.startswith("0::")), None)


def _cgroup_limits(leaf: Leaf) -> Iterator[tuple[str, str]]:
    """Yield the limits that the kernel has for such a job, its own and its site's."""
    if leaf.path is None:
        return
    for directory, of in ((leaf.path, "job"), (os.path.dirname(leaf.path), "site")):
        for file in _CGROUP_FILES[of]:
            with suppress(OSError), open(f"{directory}/{file}", encoding="ascii") as text:
                yield file, text.read().strip()
