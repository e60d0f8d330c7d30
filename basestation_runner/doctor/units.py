"""The units as systemd has them, beside those that come with this program: which settings are not as shipped."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from basestation_runner import program
from basestation_runner.config.probes import Unseen
from basestation_runner.doctor.facts import SLICE, UNITS, Systemd, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BOOTED: Final = Path("/run/systemd/system")
"""Is there if systemd runs the host (sd_booted(3))."""
_FOLDERS: Final = ("/etc/systemd/system", "/run/systemd/system")
"""A drop-in of the first one hides one of the same name in the second (systemd.unit(5))."""
_PATIENCE: Final = 8.0
_SHOWN: Final = ("Id", "LoadState", "ActiveState", "UnitFileState", "NeedDaemonReload", "FragmentPath", "DropInPaths")

Settings = dict[str, list[str]]
"""By "Section.Name" the values that count, in their order."""

_LISTS: Final = frozenset(
    {"After", "Before", "Wants", "Requires", "BindsTo", "PartOf", "Conflicts", "Documentation", "WantedBy"}
    | {"AmbientCapabilities", "CapabilityBoundingSet", "SupplementaryGroups", "Environment", "EnvironmentFile"}
    | {"ExecStart", "ExecStartPre", "ExecStartPost", "ExecReload", "ExecStop", "ExecStopPost", "ExecCondition"}
    | {"RuntimeDirectory", "StateDirectory", "LogsDirectory", "CacheDirectory", "RestrictAddressFamilies"}
    | {"SystemCallFilter", "SystemCallArchitectures", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths"}
    | {"AssertPathExists", "ConditionPathExists"}
)
"""Settings that add up; an empty value takes back what came before. Of any other the last one counts."""


@frozen
class Difference:
    """A setting that is not as shipped, and the file that says so; "" if the file lacks it."""

    setting: str  # without its section
    shipped: tuple[str, ...]
    found: tuple[str, ...]
    file: str


def differences(unit: Unit) -> Iterator[Difference]:
    """Given a unit that this program knows, yield what is not as shipped."""
    wanted = _settings([unit.shipped or ""])
    files = {unit.fragment: unit.text, **unit.drop_ins}
    found = _settings(list(files.values()))
    for key in sorted(wanted.keys() | found.keys()):
        was, now = wanted.get(key, []), found.get(key, [])
        if was != now:
            says_so = [path for path, text in files.items() if key in _settings([text], keep_empty=True)]
            yield Difference(key.partition(".")[2], tuple(was), tuple(now), says_so[-1] if says_so else "")


def _settings(texts: Sequence[str], *, keep_empty: bool = False) -> Settings:
    """Return what a unit's files say together, in the order in which systemd reads them."""
    found: Settings = {}
    for text in texts:
        for key, value in _assignments(text):
            name = key.partition(".")[2]
            if not value and not keep_empty:
                found[key] = []
            elif name in _LISTS:
                found.setdefault(key, []).append(value)
            else:
                found[key] = [value]
    return {key: values for key, values in found.items() if values or keep_empty}


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    """Yield each assignment of a unit file (systemd.syntax(7)) as "Section.Name" and its value."""
    section = ""
    # A comment between continued lines is left out; what is continued goes on after it.
    lines = [line for line in text.splitlines() if not re.match(r"\s*[#;]", line)]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if header := re.fullmatch(r"\s*\[(.+)\]\s*", line):
            section = header[1]
        elif assignment := re.fullmatch(r"\s*([^=\s]+)\s*=(.*)", line):
            yield f"{section}.{assignment[1]}", " ".join(assignment[2].split())


def shipped() -> Mapping[str, str]:
    """Return the units that come with this program, by name: of a clone, what is in packaging/systemd."""
    here = Path(__file__).parent
    places = (here,) if program.COMPILED else (here, here.parents[1] / "packaging" / "systemd")
    found = {}
    for name in (*UNITS.values(), SLICE):
        for place in places:
            with suppress(OSError):
                found[name] = (place / name).read_text(encoding="utf-8")
    return found


def look() -> Systemd | None:
    """Return what systemd has; None if it does not run this host."""
    if not BOOTED.is_dir():
        return None
    try:
        said = re.match(r"systemd (\d+)", _systemctl("--version"))
        wanted = dict.fromkeys((*UNITS.values(), SLICE)) | dict(shipped())
        shown = _systemctl("show", f"--property={','.join(_SHOWN)}", *wanted)
    except (OSError, subprocess.SubprocessError) as error:
        return Systemd(None, Unseen(f"cannot be asked for its units: {error}", is_fault=True))
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in shown.split("\n\n")]
    units = {block["Id"]: _unit(block, wanted.get(block["Id"])) for block in blocks if "Id" in block}
    return Systemd(int(said[1]) if said else None, units)


def main_process(unit: str) -> int | None:
    """Return the pid of a service's main process; None if it has none, or systemd does not say."""
    if not BOOTED.is_dir():
        return None
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        return int(_systemctl("show", "--property=MainPID", "--value", "--", unit)) or None
    return None


def _unit(said: Mapping[str, str], text: str | None) -> Unit:
    name, drop_ins = said["Id"], said.get("DropInPaths", "").split()
    fragment = said.get("FragmentPath", "")
    # A link to /dev/null has nothing to be read.
    there = {path.name: path for folder in reversed(_FOLDERS) for path in Path(folder, f"{name}.d").glob("*.conf")}
    unread = {str(path) for path in there.values() if path.is_file()} - set(drop_ins)
    return Unit(
        name=name,
        load_state=said.get("LoadState", ""),
        active_state=said.get("ActiveState", ""),
        file_state=said.get("UnitFileState", ""),
        # Of a directory that was not there before, not every systemd says so by itself.
        needs_reload=said.get("NeedDaemonReload") == "yes" or bool(unread),
        fragment=fragment,
        text=_read(fragment),
        drop_ins={path: _read(path) for path in drop_ins},
        shipped=text,
    )


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace") if path else ""
    return ""


def _systemctl(*words: str) -> str:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=True, timeout=_PATIENCE)
    return done.stdout
