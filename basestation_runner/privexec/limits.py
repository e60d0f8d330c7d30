"""A job's own limits, where it runs: what is set before it starts, and what it came up against."""

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

    Returns how many bytes of memory each of its processes may have for want of a cgroup, and warnings, which name no
    job, so that they are told once for a site.
    """
    left = leaf.limit({name: limit for name, limit in order.limits.items() if name != RUNTIME})
    warnings = []
    if MEMORY in left:
        warnings.append("limits.memory counts for each process of a job by itself, as there is no cgroup for it")
    if others := [f"limits.{name}" for name in left if name != MEMORY]:
        warnings.append(f"not applied to a job, as there is no cgroup for it: {', '.join(others)}")
    return order.limits[MEMORY] if MEMORY in left else None, warnings


def told(order: Order, reached: str) -> str:
    """Return what the job's own log says of a limit that it has reached."""
    shown = order.limit_texts.get(reached, "the host has")
    return f"{order.called} {_WHAT[reached].format(shown)}"
