"""Looks that hang or find nothing are facts too; and the page about the checks names each of them."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from basestation_runner.config.probes import Unseen
from basestation_runner.doctor import gather, looks, units
from basestation_runner.doctor.checks import CHECKS, PROBE, judge
from basestation_runner.doctor.sites import LEFT_OUT
from tests.unit.doctor.good import PATHS, changed

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


def test_probes_end_with_the_first_that_is_not_answered_and_the_others_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "control.sock"))
        silent.listen(8)
        monkeypatch.setattr(gather, "_PROBE_SECONDS", 0.2)
        told = gather._probes(tmp_path / "control.sock", ["one", "two", "three"])
        silent.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                link, _ = silent.accept()
                asked.append(link.recv(1 << 16))
                link.close()
    assert len(asked) == 1
    assert b"one" in asked[0]
    assert told["one"]["reason"] == "the watcher does not answer"
    late = {"outcome": LEFT_OUT, "reason": "after that of one the 0.2 s for all probes were over"}
    assert (told["two"], told["three"]) == (late, late)
    said = [point for subject, point in judge(changed(probes=told)) if subject == "probe"]
    assert [(point.site, point.level) for point in said] == [("one", "fault"), ("two", "skipped"), ("three", "skipped")]


def test_the_page_has_a_row_for_each_subject() -> None:
    section = PAGE.read_text().partition("## Checking the installation")[2]
    rows = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    named = [name for row in rows if row not in {"point", "---"} for name in row.split(", ")]
    assert sorted(named) == sorted(subject for subject, _ in (*CHECKS, PROBE))
