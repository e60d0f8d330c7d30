"""That the units fit the program's defaults, and that the page about their settings is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from basestation_runner.commands import common

TOP: Final = Path(__file__).parents[2]
UNITS: Final = TOP / "packaging" / "systemd"
HELPER: Final = "baserunner-exec.service"
WATCHER: Final = "baserunner-watch.service"

# What would reach jobs, as mounts, seccomp filters, limits or priorities.
REACHES_JOBS: Final = re.compile(
    "Private.*|Protect.*|Restrict.*|Read(Only|Write)Paths|InaccessiblePaths|Root(Directory|Image)"
    "|BindPaths|BindReadOnlyPaths|TemporaryFileSystem|MountFlags|SystemCall.*|LockPersonality|MemoryDenyWriteExecute"
    "|Limit.*|OOMScoreAdjust|Nice|CPUScheduling.*|CPUAffinity|IOScheduling.*|Personality|DynamicUser|NoExecPaths"
)


def settings(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (UNITS / unit).read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_helpers_unit_sets_nothing_that_reaches_jobs() -> None:
    assert not [name for name in settings(HELPER) if REACHES_JOBS.fullmatch(name)]


@pytest.mark.parametrize(("unit", "capabilities"), [(HELPER, "CAP_SETUID CAP_SETGID"), (WATCHER, "")])
def test_capabilities_are_exactly_what_the_daemon_needs(unit: str, capabilities: str) -> None:
    found = settings(unit)
    assert found["AmbientCapabilities"] == found["CapabilityBoundingSet"] == [capabilities]


def test_stopping_the_helper_ends_no_job_and_neither_unit_takes_the_other_along() -> None:
    helper, watcher = settings(HELPER), settings(WATCHER)
    assert helper["KillMode"] == ["process"]
    assert watcher["Wants"] == [HELPER]
    coupling = {"Requires", "BindsTo", "PartOf", "Requisite"}
    assert not coupling & (helper.keys() | watcher.keys())
    for kind in ("RuntimeDirectory", "StateDirectory", "LogsDirectory"):
        assert helper[kind] != watcher[kind]


def test_the_units_directories_are_the_programs_defaults() -> None:
    helper, watcher = settings(HELPER), settings(WATCHER)
    assert Path("/run", *helper["RuntimeDirectory"]) == common.PRIV_EXEC_SOCKET.parent
    assert Path("/var/lib", *helper["StateDirectory"]) == common.HELPER_STATE_DIR
    assert Path("/var/cache", *helper["CacheDirectory"]) == common.HELPER_CACHE_DIR
    assert Path("/var/lib", *watcher["StateDirectory"]) == common.WATCH_STATE_DIR
    assert [str(common.SITES_CONFIG)] == helper["AssertPathExists"] == watcher["AssertPathExists"]


def test_logs_are_where_the_units_make_room_for_them_and_are_rotated() -> None:
    rotated = (TOP / "packaging" / "logrotate").read_text()
    for unit in (HELPER, WATCHER):
        found = settings(unit)
        folder = f"/var/log/{found['LogsDirectory'][0]}"
        assert f"--base-log {folder}/" in found["ExecStart"][0]
        assert f"\n{folder}/*.log {{" in rotated
        assert f"systemctl kill --kill-who=main -s USR1 {unit};" in rotated
        assert f"reload {unit}" not in rotated


def test_the_page_about_hardening_names_each_setting_of_the_units() -> None:
    plain = re.compile("Type|Exec.*|TimeoutStartSec|.*DirectoryMode|SystemCallErrorNumber")
    page = (TOP / "docs" / "hardening.md").read_text()
    of_helper = page[page.index("## The helper") : page.index("## The watcher")]
    for unit, text in ((HELPER, of_helper), (WATCHER, page)):
        service = (UNITS / unit).read_text().partition("[Service]")[2].partition("[Install]")[0]
        names = set(re.findall(r"^(\w+)=", service, re.MULTILINE))
        assert not [name for name in sorted(names) if not plain.fullmatch(name) and f"`{name}=" not in text]
