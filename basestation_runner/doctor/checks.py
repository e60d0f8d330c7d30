"""The table of checks: each subject with the function that judges it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from basestation_runner.doctor import daemons, host, sites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from basestation_runner.doctor.facts import Facts
    from basestation_runner.doctor.points import Point

    Check = Callable[[Facts], Iterator[Point]]

CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("kernel", host.kernel),
    ("C library", host.libc),
    ("systemd", host.systemd),
    ("units", host.unit_files),
    ("program", daemons.program),
    ("accounts", daemons.accounts),
    ("configuration", daemons.configuration),
    ("helper", daemons.helper),
    ("helper's capabilities", daemons.helper_capabilities),
    ("profiles", daemons.profiles),
    ("watcher", daemons.watcher),
    ("watcher's capabilities", daemons.watcher_capabilities),
    ("sockets", daemons.sockets),
    ("ledger", daemons.ledger),
    ("directories", daemons.directories),
    ("free space", daemons.room),
    ("cgroups", host.cgroups),
    ("inotify", host.inotify),
    ("clock", host.clock),
    ("sites", sites.trees),
    ("watcher's groups", sites.membership),
    ("locks", sites.locks),
    ("sites' states", sites.states),
)
PROBE: Final[tuple[str, Check]] = ("probe", sites.probes)
"""Only when it is asked for: it makes a process for each site."""


def judge(facts: Facts) -> Iterator[tuple[str, Point]]:
    """Yield what is to be said of each subject, in the order of the table."""
    for subject, check in (*CHECKS, *([PROBE] if facts.probes is not None else [])):
        for point in check(facts):
            yield subject, point
