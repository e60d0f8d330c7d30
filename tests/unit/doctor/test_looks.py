"""What is believed of a host whose accounts want to deceive."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from basestation_runner.config.hostfacts import Identity
from basestation_runner.config.probes import Unseen
from basestation_runner.doctor import looks, units
from basestation_runner.doctor.facts import Lock
from basestation_runner.watch import lockfile

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


NOBODY = Identity(65534, 65534, (65534,))


def status() -> dict[str, object]:
    """Return what the process is that does this look."""
    with contextlib.suppress(OSError):
        os.setresuid(0, 0, 0)
    return {
        "status": Path("/proc/self/status").read_text(),
        "open": [str(path.readlink()) for path in Path("/dev/fd").iterdir() if int(path.name) > 2 and path.is_fifo()],
    }


@pytest.mark.usefixtures("privileged")
def test_a_ledger_is_read_by_a_process_that_is_the_watchers_account_for_good_and_holds_only_the_pipe_for_its_answer(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "another")
    with (tmp_path / "another").open("r+b", buffering=0):
        told = looks._told_by(NOBODY, status)
    found = dict(line.split(":\t", 1) for line in told["status"].splitlines() if ":\t" in line)
    assert found["Uid"].split() == found["Gid"].split() == ["65534"] * 4
    assert found["Groups"].split() == ["65534"]
    assert [int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0] * 4
    assert found["NoNewPrivs"] == "1"
    assert len(told["open"]) == 1


@pytest.mark.parametrize(
    "told",
    [
        "no object",
        [],
        {"version": "9", "damaged": []},
        {"version": 1, "damaged": ["damaged-1/../../../etc"]},
        {"version": 1, "damaged": ["/etc"]},
        {"version": 1, "damaged": [7]},
        {"version": 1, "damaged": "damaged-1"},
        {"fault": {}},
    ],
)
def test_what_a_taken_over_reader_says_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: object
) -> None:
    """Of a directory to remove, above all."""
    monkeypatch.setattr(looks, "_read_ledger", lambda _: told)
    found = looks.look_at_ledger(tmp_path, Identity(os.geteuid(), os.getegid(), tuple(os.getgroups())))
    assert found == Unseen("could not be looked at: whoever did makes no sense", is_fault=True)


def test_a_reader_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "_read_ledger", lambda _: os.kill(os.getpid(), 9))
    found = looks.look_at_ledger(tmp_path, Identity(os.geteuid(), os.getegid(), tuple(os.getgroups())))
    assert isinstance(found, Unseen)
