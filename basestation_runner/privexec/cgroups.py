"""The sites' and jobs' cgroups (version 2), below the helper's delegated root: `site-<name>/job-<id>/`.

Failing to throttle never stops a job: whatever goes wrong here becomes a warning, and the job runs.
"""

import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Protocol

from cgroupspy.controllers import Controller
from cgroupspy.interfaces import BaseFileInterface
from cgroupspy.nodes import Node

from basestation_runner.privexec.leaf import CPU_PERIOD_US, cpu_max, limits_warning

_MOUNT: Final = "/sys/fs/cgroup"
_JOBS: Final = "jobs"
_CONTROLLERS: Final = ("cpu", "memory", "pids")


class _Cgroup(Controller):
    """The files of a version 2 cgroup that this program uses; cgroupspy itself knows version 1 only."""

    subtree_control = BaseFileInterface("cgroup.subtree_control")
    kill = BaseFileInterface("cgroup.kill", writeonly=True)
    cpu_max = BaseFileInterface("cpu.max")
    cpu_weight = BaseFileInterface("cpu.weight")
    pids_max = BaseFileInterface("pids.max")
    events = BaseFileInterface("cgroup.events", readonly=True)


def _cgroup(path: str) -> _Cgroup:
    return _Cgroup(Node(path))


def delegated_root() -> str | None:
    """Return the cgroup below which the helper may make others, None if there is none.

    It is called `jobs` and lies beside the helper's unit in the unit's slice. Root makes it for the helper's account
    and gives that the slice's cgroup.procs too, since moving a process needs the common ancestor's. It does not lie
    in the unit's own cgroup, since systemd before 254 cannot start a unit again in whose cgroup controllers are
    enabled; and systemd takes controllers from a slice in which nothing holds them, but here `jobs` always does.
    """
    with open("/proc/self/cgroup", encoding="utf-8") as lines:
        own = next((line[3:].rstrip("\n") for line in lines if line.startswith("0::")), None)
    if own is None:
        return None
    above = _MOUNT + own
    while above != "/":
        above = os.path.dirname(above)
        wanted = (f"{above}/cgroup.procs", f"{above}/{_JOBS}/cgroup.procs", f"{above}/{_JOBS}/cgroup.subtree_control")
        if all(os.access(path, os.W_OK) for path in wanted):
            return f"{above}/{_JOBS}"
    return None


class SiteLimits(Protocol):
    """What a site's entry says of its limits, under the same names; None: no limit."""

    @property
    def name(self) -> str:
        """The site's name."""

    @property
    def cpu_quota_pct(self) -> int | None:
        """Processor time of all its jobs together, in percent of one processor."""

    @property
    def cpu_weight(self) -> int | None:
        """Its part of the processor time when others want some too."""

    @property
    def tasks_max(self) -> int:
        """The most processes and threads of all its jobs together."""


class Cgroups:
    """The cgroups below one root. Without a root, no job is throttled and no accounting is kept."""

    def __init__(self, root: str | None) -> None:
        """Take the delegated root's path."""
        self._root = root
        self._sites: dict[str, SiteLimits] = {}
        self._known_faulty: set[str] = set()

    def prepare(self, site: SiteLimits) -> str | None:
        """Make the site's cgroup and set its limits. Return a warning that its jobs need not repeat, or None."""
        self._sites[site.name] = site
        faults = self._prepare(site)
        if not faults:
            self._known_faulty.discard(site.name)
            return None
        self._known_faulty.add(site.name)
        return limits_warning(faults)

    def is_faulty(self, site_name: str) -> bool:
        """Tell whether it is known that the site's limits cannot be applied."""
        return site_name in self._known_faulty

    def leaf(self, site_name: str, job_id: str) -> str | None:
        """Return where a job's cgroup is to be made, in its site's, None without a root."""
        if self._root is None:
            return None
        # An administrator who stops the slice while nothing runs removes the sites' cgroups with it.
        if site_name in self._sites and not os.path.isdir(self._site(site_name)):
            self.prepare(self._sites[site_name])
        return self._leaf(site_name, job_id)

    def _prepare(self, site: SiteLimits) -> list[str]:
        if self._root is None:
            return []
        warnings = _enable(self._root)
        path = self._site(site.name)
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            return [f"{path} cannot be made: {error.strerror}"]
        group = _cgroup(path)
        warnings += _enable(path)
        quota = site.cpu_quota_pct
        limits = (
            ("cpu_max", None if quota is None else cpu_max(quota)),
            ("cpu_weight", site.cpu_weight),
            ("pids_max", site.tasks_max),
        )
        for name, unlimited in (("cpu_max", f"max {CPU_PERIOD_US}"), ("cpu_weight", "100")):
            # The cgroup may be from a time when the configuration set a limit.
            if dict(limits)[name] is None and os.path.exists(f"{path}/{name.replace('_', '.')}"):
                warnings += _set(group, ((name, unlimited),))
        return warnings + list(_set(group, limits))

    def leaves(self) -> Iterator[tuple[str, str]]:
        """Return site and job of every job's cgroup that there is."""
        if self._root is not None:
            for path in glob.iglob(f"{glob.escape(self._root)}/site-*/job-*"):
                above, _, leaf = path.rpartition("/job-")
                yield above.rpartition("/site-")[2], leaf

    def is_populated(self, site_name: str, job_id: str) -> bool:
        """Tell whether any process lives in the job's cgroup, as far as there is one to tell."""
        if self._root is not None:
            with suppress(OSError):
                return "populated 1" in str(_cgroup(self._leaf(site_name, job_id)).events).splitlines()
        return False

    def kill(self, site_name: str, job_id: str) -> None:
        """Kill whatever is in the job's cgroup, of whatever account: the leaf is ours. Does nothing without one."""
        if self._root is not None:
            with suppress(OSError):
                _cgroup(self._leaf(site_name, job_id)).kill = "1"

    def remove_leaf(self, site_name: str, job_id: str) -> None:
        """Remove the job's cgroup if nothing is left in it."""
        if self._root is not None:
            with suppress(OSError):
                os.rmdir(self._leaf(site_name, job_id))

    def _site(self, site_name: str) -> str:
        return f"{self._root}/site-{site_name}"

    def _leaf(self, site_name: str, job_id: str) -> str:
        return f"{self._site(site_name)}/job-{job_id}"


def _enable(path: str) -> list[str]:
    """Let the children of the cgroup at `path` have the controllers that are there."""
    warnings = []
    for name in _CONTROLLERS:
        try:
            _cgroup(path).subtree_control = f"+{name}"
        except OSError as error:
            warnings.append(f"controller {name} cannot be enabled in {path}: {error.strerror}")
    return warnings


def _set(group: _Cgroup, limits: tuple[tuple[str, object], ...]) -> Iterator[str]:
    for name, value in limits:
        if value is None:
            continue
        try:
            setattr(group, name, str(value))
        except OSError as error:
            yield f"{name.replace('_', '.', 1)} cannot be set: {error.strerror}"
