"""A job's own limits, where it runs: what is set before it starts, and what it came up against."""

import resource
from typing import Final

from basestation_runner.privexec.leaf import Leaf
from basestation_runner.privexec.order import Order

RUNTIME: Final = "runtime"
MEMORY: Final = "memory"

_WHAT: Final = {
    RUNTIME: "was stopped: it ran longer than {}",
    MEMORY: "ran out of memory: it needed more than {}",
}


def apply(order: Order, leaf: Leaf) -> tuple[int | None, list[str]]:
    """Set the limits of a job's cgroup.

    Returns what to give to `confine`, and warnings. They name no job, so that they are told once for a site.
    """
    left = leaf.limit({name: limit for name, limit in order.limits.items() if name != RUNTIME})
    warnings = []
    if MEMORY in left:
        warnings.append("limits.memory counts for each process of a job by itself, as there is no cgroup for it")
    if others := [f"limits.{name}" for name in left if name != MEMORY]:
        warnings.append(f"not applied to a job, as there is no cgroup for it: {', '.join(others)}")
    return order.limits[MEMORY] if MEMORY in left else None, warnings


def confine(address_space: int | None) -> None:
    """Limit the memory of this process and of each that it starts. To be called just before execve."""
    if address_space is not None:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = address_space if hard == resource.RLIM_INFINITY else min(address_space, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def told(order: Order, reached: str) -> str:
    """Return what the job's own log says of a limit that it has reached."""
    shown = order.limit_texts.get(reached, "the host has")
    return f"{order.called} {_WHAT[reached].format(shown)}"
