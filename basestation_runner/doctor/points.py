"""What `runner doctor` says of one point: whether that is right, what was seen, and what mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from attrs import frozen

from basestation_runner.config.hostfacts import NOT_BY_THIS_USER
from basestation_runner.config.hostsite import AS_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from basestation_runner.config.findings import Finding
    from basestation_runner.config.probes import Unseen

Level = Literal["fault", "warning", "skipped", "ok"]
LEVELS: Final[tuple[Level, ...]] = ("fault", "warning", "skipped", "ok")
"""In the order in which they are shown; what was skipped could not be looked at, or does not apply here."""


@frozen(kw_only=True)
class Point:
    """One thing that was looked at. `command` is what a person can run to mend it, `site` the site that it is about."""

    level: Level
    what: str
    hint: str = ""
    command: str = ""
    site: str = ""


def ok(what: str, *, site: str = "") -> Point:
    """Say that all is well."""
    return Point(level="ok", what=what, site=site)


def warning(what: str, hint: str = "", command: str = "", *, site: str = "") -> Point:
    """Say what jobs run in spite of."""
    return Point(level="warning", what=what, hint=hint, command=command, site=site)


def fault(what: str, hint: str = "", command: str = "", *, site: str = "") -> Point:
    """Say what is broken."""
    return Point(level="fault", what=what, hint=hint, command=command, site=site)


def skipped(what: str, hint: str = "", *, site: str = "") -> Point:
    """Say what was not looked at, and why."""
    return Point(level="skipped", what=what, hint=hint, site=site)


def unseen(about: str, why: Unseen, *, site: str = "") -> Point:
    """Say that something could not be seen: a fault if it is the host's, else one of this user's rights."""
    if why.is_fault:
        return fault(f"{about} {why.why}", site=site)
    return Point(level="skipped", what=f"{about} {why.why}", hint=AS_ROOT if why == NOT_BY_THIS_USER else "", site=site)


def at_once(points: Sequence[Point], about: str, *, is_hidden: bool = False) -> Iterator[Point]:
    """Yield these points, and one in place of all that this user may not look at: there may be many of the same."""
    yield from (point for point in points if point.level != "skipped" or point.hint != AS_ROOT)
    if is_hidden or any(point.level == "skipped" and point.hint == AS_ROOT for point in points):
        yield skipped(f"{about} {NOT_BY_THIS_USER.why}", AS_ROOT)


def of_finding(finding: Finding, *, site: str = "") -> Point | None:
    """Return a configuration's finding as a point; None for one that is a mere note."""
    if finding.level == "note":
        return None
    level: Level = "skipped" if finding.level == "warning" and finding.hint == AS_ROOT else finding.level
    place: list[str] = []
    if not site:
        position = (finding.file, finding.line, finding.column)
        place = [":".join(str(part) for part in position if part is not None), finding.path]
    what = ": ".join(part for part in (*place, finding.what) if part)
    return Point(level=level, what=what, hint=finding.hint, command=finding.command, site=site)
