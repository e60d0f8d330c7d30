"""Looks that hang or find nothing are facts too; and the page about the checks names each of them."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from basestation_runner.config.probes import Unseen
from basestation_runner.doctor import gather, looks, units
from basestation_runner.doctor.checks import CHECKS, PROBE, judge
from tests.unit.doctor.good import PATHS

if TYPE_CHECKING:
    import pytest

    from basestation_runner.doctor.facts import System

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def test_what_hangs_costs_its_own_point_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = looks.look_at_system

    def hang_on_files(files: tuple[Path, ...], now: object) -> System:
        if files:
            signal.pause()
        return look(files, now)  # type: ignore[arg-type]

    monkeypatch.setattr(gather, "_PATIENCE", 0.5)
    monkeypatch.setattr(units, "look", signal.pause)
    monkeypatch.setattr(looks, "look_at_system", hang_on_files)
    paths = evolve(PATHS, sites_config=tmp_path / "sites.yaml", watcher_user="no-such-user", helper_user="no-such-user")
    (tmp_path / "sites.yaml").write_text("{}\n")
    facts = gather.gather(paths, probe=())
    assert facts.systemd
    assert facts.systemd.units == Unseen("does not answer within 0.5 s", is_fault=True)
    said = {subject: point for subject, point in judge(facts) if point.level == "ok" or subject == "units"}
    assert said["units"].what == "systemd does not answer within 0.5 s"
    assert {"kernel", "C library"} <= said.keys()


def test_the_page_has_a_row_for_each_subject() -> None:
    section = PAGE.read_text().partition("## Checking the installation")[2]
    rows = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    named = [name for row in rows if row not in {"point", "---"} for name in row.split(", ")]
    assert sorted(named) == sorted(subject for subject, _ in (*CHECKS, PROBE))
