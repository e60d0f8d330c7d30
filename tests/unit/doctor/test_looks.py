"""What is believed of a host whose accounts want to deceive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from basestation_runner.doctor import looks, units
from basestation_runner.doctor.facts import Lock
from basestation_runner.watch import lockfile

if TYPE_CHECKING:
    from pathlib import Path

PID = 4242
USERS = "/user.slice/user-1001.slice/user@1001.service"


@pytest.mark.parametrize(
    ("cgroup", "main", "unit"),
    [
        ("0::/system.slice/old.service", PID, "old.service"),
        ("0::/old.service", PID, "old.service"),
        ("3:cpu:/\n1:name=systemd:/system.slice/system-old.slice/old@one.service", PID, "old@one.service"),
        ("0::/system.slice/cron.service", 7, ""),  # started by it, and not it
        ("0::/system.slice/old.service", None, ""),
        (f"0::{USERS}/app.slice/ssh.service", PID, ""),
        (f"0::{USERS}/ssh.service", PID, ""),
        ("0::/baserunner.slice/jobs/site-one/job-1/ssh.service", PID, ""),
        ("0::/system.slice/old.service/ssh.slice", PID, ""),
        ("0::/", PID, ""),
        ("", PID, ""),
    ],
)
def test_a_process_is_a_units_only_if_systemd_itself_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, main: int | None, unit: str
) -> None:
    """A site's people name the cgroups below their user manager's, and write any pid into the lock."""
    rundir = tmp_path / "rundir"
    rundir.mkdir()
    (rundir / lockfile.NAME).write_text(str(PID))
    (tmp_path / str(PID)).mkdir()
    (tmp_path / str(PID) / "cgroup").write_text(f"{cgroup}\n")
    monkeypatch.setattr(looks, "PROC", tmp_path)
    monkeypatch.setattr(lockfile, "look", lambda _: lockfile.Seen(PID, is_held=True))
    monkeypatch.setattr(units, "main_process", lambda _: main)
    lock = looks.look_at_lock(str(rundir))
    assert isinstance(lock, Lock)
    assert lock.unit == unit
