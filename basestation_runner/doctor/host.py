"""Checks of the host itself: kernel, C library, systemd and its units, cgroups, inotify, clock. Pure."""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from typing import TYPE_CHECKING, Final

from basestation_runner.config import host
from basestation_runner.config.probes import Unseen
from basestation_runner.doctor import units
from basestation_runner.doctor.facts import SLICE, UNITS, Facts, Systemd, Unit
from basestation_runner.doctor.points import Point, fault, of_finding, ok, skipped, unseen, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST_KERNEL: Final = (5, 6)
OLDEST_LIBC: Final = (2, 35)
OLDEST_SYSTEMD: Final = 249
CONTROLLERS: Final = ("cpu", "memory", "pids")
TOLERATED_STEP: Final = 60.0
"""Seconds that a file may be newer than the clock says it is now."""

NO_SYSTEMD: Final = "systemd does not run this host"

_ADMINISTRATORS: Final = ("/etc/", "/run/")
_STARTS: Final = frozenset({"enabled", "enabled-runtime", "static", "indirect", "alias", "generated"})
_VITAL: Final = re.compile(
    "User|Group|SupplementaryGroups|AmbientCapabilities|CapabilityBoundingSet|NoNewPrivileges|KillMode|Type|NotifyAccess"
    "|Delegate|Slice|ExecStartPre|UMask|Restart|(Runtime|State|Logs|Cache)Directory(Mode|Preserve)?|DynamicUser"
)
"""Settings without which the daemons are not what they must be."""
_REACHES_JOBS: Final = re.compile(
    "Private.*|Protect.*|Restrict(?!art).*|(Read(Only|Write)|Inaccessible|NoExec)Paths|Root(Directory|Image)|Bind.*Paths"
    "|TemporaryFileSystem|MountFlags|SystemCall.*|LockPersonality|MemoryDenyWriteExecute|Limit.*|OOMScoreAdjust|Nice"
    "|CPUScheduling.*|CPUAffinity|IOScheduling.*|Personality|Memory(Max|High)|TasksMax|CPUQuota"
)
"""Of the helper's unit: what jobs inherit."""


def kernel(facts: Facts) -> Iterator[Point]:
    """Requests' paths are resolved by openat2(2)."""
    release = facts.system.kernel
    if not facts.system.has_openat2:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        yield fault(f"Linux {release} has no openat2: no job can be started", f"boot Linux {oldest} or later")
    else:
        yield ok(f"Linux {release}")


def libc(facts: Facts) -> Iterator[Point]:
    """The compiled program is made for this C library and later ones."""
    found = re.fullmatch(r"glibc (\d+)\.(\d+).*", facts.system.libc or "")
    oldest = ".".join(map(str, OLDEST_LIBC))
    if found is None:
        yield warning(f"the C library is {facts.system.libc or 'not glibc'}: only glibc is tested")
    elif (int(found[1]), int(found[2])) < OLDEST_LIBC:
        yield warning(f"{facts.system.libc} is older than {oldest}, what is tested", "upgrade the host")
    else:
        yield ok(str(facts.system.libc))


def systemd(facts: Facts) -> Iterator[Point]:
    """The units are for this systemd and later ones."""
    match facts.systemd:
        case None:
            yield skipped(f"{NO_SYSTEMD}: its units are not looked at")
        case Systemd(version=None):
            yield warning("systemd does not say its version", command="systemctl --version")
        case Systemd(version=int(version)) if version < OLDEST_SYSTEMD:
            yield fault(f"systemd {version} is older than {OLDEST_SYSTEMD}, what the units need", "upgrade the host")
        case Systemd(version=version):
            yield ok(f"systemd {version}")


def unit_files(facts: Facts) -> Iterator[Point]:
    """The units are there, run, start at boot, and are as shipped where that matters."""
    if facts.systemd is None:
        yield skipped(NO_SYSTEMD)
        return
    if isinstance(facts.systemd.units, Unseen):
        yield unseen("systemd", facts.systemd.units)
        return
    found = [point for unit in facts.systemd.units.values() for point in _unit(unit)]
    yield from found
    if not any(point.level in {"fault", "warning"} for point in found):
        yield ok(f"{', '.join(facts.systemd.units)}: as shipped, or changed where that is meant")


def _unit(unit: Unit) -> Iterator[Point]:
    name = unit.name
    if unit.load_state == "masked":
        yield fault(f"{name} is masked", command=f"systemctl unmask {name}")
        return
    if unit.load_state != "loaded":
        hint = "install the package anew"
        yield fault(f"{name} is {unit.load_state or 'unknown'}", hint, "apt install --reinstall basestation-runner")
        return
    if unit.needs_reload:
        what = f"{name} has been changed, and systemd has not read that"
        yield warning(what, command="systemctl daemon-reload")
    if name != SLICE:
        yield from _state(unit)
    if unit.shipped is None:
        yield skipped(f"{name} is not compared: this program brings no units along")
        return
    for difference in units.differences(unit):
        yield from _difference(unit, difference)


def _state(unit: Unit) -> Iterator[Point]:
    name = unit.name
    if unit.active_state != "active":
        what = f"{name} is {unit.active_state or 'unknown'}"
        yield fault(what, f"journalctl -u {name} says why", f"systemctl start {name}")
    if unit.file_state not in _STARTS:
        what = f"{name} is {unit.file_state or 'unknown'}: it does not start with the host"
        yield warning(what, command=f"systemctl enable {name}")


def _difference(unit: Unit, difference: units.Difference) -> Iterator[Point]:
    """What an administrator may well want, as other options of the program, is none of a check's business."""
    is_vital = _VITAL.fullmatch(difference.setting) is not None
    is_inherited = unit.name == UNITS["helper"] and _REACHES_JOBS.fullmatch(difference.setting) is not None
    if unit.name == SLICE or not (is_vital or is_inherited):
        return
    now = ", ".join(difference.found) or "not set"
    was = ", ".join(difference.shipped) or "not set"
    place = f" in {difference.file}" if difference.file else ""
    why = ", and jobs inherit that" if is_inherited and not is_vital else ""
    what = f"{unit.name}: {difference.setting}= is {now}{place}, as shipped {was}{why}"
    yield (fault if is_vital and _breaks(unit, difference) else warning)(what, *_as_shipped(unit, difference))


def _as_shipped(unit: Unit, difference: units.Difference) -> tuple[str, str]:
    """Return how to have a unit as it was shipped: a hint and the command."""
    is_own = difference.file.startswith(_ADMINISTRATORS) or (not difference.file and bool(unit.drop_ins))
    if is_own or unit.fragment.startswith(_ADMINISTRATORS):
        hint = "docs/hardening.md says what each setting is for; this takes back all that was changed here"
        return hint, shlex.join(["systemctl", "revert", unit.name])
    return "the unit's own file was changed", "apt install --reinstall basestation-runner"


def _breaks(unit: Unit, difference: units.Difference) -> bool:
    """Tell whether a daemon refuses to start like that, or ends jobs when it ends."""
    if difference.setting in {"AmbientCapabilities", "User", "Type"}:
        return True
    return difference.setting == "KillMode" and unit.name == UNITS["helper"]


def cgroups(facts: Facts) -> Iterator[Point]:
    """Sites' limits need a cgroup that the helper can use, with the controllers."""
    seen = facts.cgroups
    if seen.root is None and seen.unseen is not None:
        yield unseen("the helper's cgroup", seen.unseen)
    elif seen.root is None and not seen.has_version_2:
        hint = "boot the host with cgroup version 2, systemd.unified_cgroup_hierarchy=1"
        yield warning("there is no cgroup version 2: sites' limits are not applied", hint)
    elif seen.root is None and not facts.running("helper"):
        yield skipped(f"{facts.why_none('helper')}: its cgroup is not known")
    elif seen.root is None:
        what = "no cgroup is delegated to the helper: sites' limits are not applied"
        yield warning(what, "its unit's ExecStartPre= make one", _restart_helper(facts))
    else:
        found = list(_delegated(facts, seen.root))
        yield from found
        if not found:
            yield ok(f"{seen.root} with {', '.join(CONTROLLERS)}")


def _delegated(facts: Facts, root: str) -> Iterator[Point]:
    seen = facts.cgroups
    if seen.controllers is None and not seen.unseen:
        yield fault(f"the controllers of {root} cannot be read", command=_restart_helper(facts))
    elif missing := [
        name for name in CONTROLLERS if name not in (CONTROLLERS if seen.controllers is None else seen.controllers)
    ]:
        what = f"{root} has no controller {', '.join(missing)}: these limits are not applied"
        yield warning(what, "see that the slice's unit has its accounting on", _restart_helper(facts))
    for path in seen.closed:
        command = shlex.join(["chown", facts.paths.helper_user, path])
        yield fault(f"account {facts.paths.helper_user} cannot write {path}: limits are not applied", command=command)
    if seen.unseen:
        yield unseen(f"who can use {root}", seen.unseen)


def _restart_helper(facts: Facts) -> str:
    return f"systemctl restart {UNITS['helper']}" if facts.systemd else ""


def inotify(facts: Facts) -> Iterator[Point]:
    """Each site has an instance and watches of its own."""
    if facts.config is None:
        yield skipped("without a valid configuration the number of sites is not known")
        return
    number = len(facts.config.sites)
    found = [point for finding in host.limits(facts.host.limits, number) if (point := of_finding(finding))]
    yield from found
    if not found:
        limits = ", ".join(f"{name} {value}" for name, value in sorted(facts.host.limits.items()))
        yield ok(f"{limits} for {number} {'site' if number == 1 else 'sites'}")


def clock(facts: Facts) -> Iterator[Point]:
    """The times of jobs are shown, kept and compared with others'."""
    system = facts.system
    command = "timedatectl set-ntp true" if facts.systemd else ""
    hint = "" if command else "run an NTP client, for instance chrony"
    shown = datetime.fromtimestamp(system.now).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    if system.now + TOLERATED_STEP < system.latest:
        what = f"the clock says {shown}, and files here have been written later than that"
        yield fault(what, hint, command)
    elif system.is_synchronised is False:
        yield warning(f"nothing keeps the clock right, it says {shown}", hint, command)
    elif system.is_synchronised is None:
        yield skipped(f"the kernel does not say whether the clock is right, it says {shown}")
    else:
        yield ok(f"{shown}, synchronised")
