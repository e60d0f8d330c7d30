"""`runner doctor` on a host that is as the package and the README make it, and with something wrong there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.vm.host import HELPER, WATCHER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.vm.host import Host

OURS = "/etc/systemd/system/baserunner-watch.service.d"


@pytest.fixture
def fresh(host: Host) -> Iterator[Host]:
    """The host without what the tests themselves change about a unit."""
    restart = f"systemctl daemon-reload; systemctl restart {WATCHER}"
    host.check(f"mv {OURS} /var/tmp/ours; {restart}")
    yield host
    host.check(f"mv /var/tmp/ours {OURS}; {restart}")


def examine(host: Host) -> tuple[int, list[dict[str, Any]]]:
    """Return the doctor's exit status, and what it does not find in order. Nothing keeps a machine's clock right."""
    done = host.run("runner doctor --probe --json")
    points = json.loads(done.stdout)["points"]
    assert len([point for point in points if point["level"] == "ok"]) > 10
    wrong = [point for point in points if point["level"] in ("warning", "fault")]
    return done.status, [point for point in wrong if point["subject"] != "clock"]


def test_the_doctor_finds_nothing_wrong_with_what_was_just_installed(fresh: Host) -> None:
    assert examine(fresh) == (0, [])


def test_the_doctor_tells_how_a_unit_differs_from_what_was_shipped(fresh: Host) -> None:
    folder = f"/run/systemd/system/{HELPER}.service.d"
    fresh.check(f"mkdir {folder}; printf '[Service]\\nKillMode=mixed\\n' >{folder}/x.conf; systemctl daemon-reload")
    _, wrong = examine(fresh)
    fresh.check(f"rm -r {folder}; systemctl daemon-reload")
    assert [f"{folder}/x.conf" in point["what"] and "KillMode" in point["what"] for point in wrong] == [True]


def test_the_doctor_says_how_to_start_a_helper_that_was_stopped(fresh: Host) -> None:
    fresh.check(f"systemctl stop {HELPER}")
    status, wrong = examine(fresh)
    fresh.check(f"systemctl start {HELPER}")
    assert status == 1
    assert any(point["level"] == "fault" and f"systemctl start {HELPER}" in point["command"] for point in wrong)
    assert examine(fresh) == (0, [])
