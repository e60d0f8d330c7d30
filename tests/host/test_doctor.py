"""`runner doctor` on a real installation with real accounts and daemons: each thing is broken once, found, and mended."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.sandbox import HELPER, WATCHER
from basestation_runner.sandbox.process import Identity
from basestation_runner.watch import lockfile, schema
from tests.host.helper_client import NameService, launcher
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon

Point = dict[str, Any]
OF_THE_MACHINE = {"clock", "free space", "inotify"}
"""What is as whoever runs the tests has it."""


class Surgery:
    """An installation with one site, in good order, and the doctor that looks at it."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        helper, watcher = installation.account(HELPER), installation.account(WATCHER)
        assert helper
        assert watcher
        self.site: Site = installation.add_site("one", "srv/one", layout="wide")
        self.site.watch_dir.chmod(0o2770)
        self.watcher_log = installation.make_directory(installation.top / "watcher-log", watcher, mode=0o750)
        self.helper_log = installation.make_directory(installation.top / "helper-log", helper, mode=0o750)
        root = installation.cgroup_root
        for path in (root / "cgroup.procs", root / "cgroup.subtree_control", root.parent / "cgroup.procs"):
            path.touch()
            os.chown(path, helper.uid, helper.gid)
        (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        self.helper: Daemon
        self.watcher: Daemon

    def start(self, *, helper: list[str] | None = None, watcher: list[str] | None = None) -> None:
        self.helper = self.installation.start_helper(command=helper)
        self.watcher = self.installation.start_watcher(command=watcher)
        until(lambda: any(event["event"] == "helper reachable" for event in self.watcher.events))

    def run(self, *words: str, by: Account | None = None) -> subprocess.CompletedProcess[str]:
        here = self.installation
        options = {
            "--sites-config": here.sites_config,
            "--applications-config": here.applications_config,
            "--priv-exec-socket": here.helper_socket,
            "--control-socket": here.control_socket,
            "--state-dir": here.watcher_state,
            "--helper-state-dir": here.helper_state,
            "--cache-dir": here.helper_cache,
            "--cgroup-root": here.cgroup_root,
            "--base-log": self.watcher_log / "watch.log",
            "--helper-base-log": self.helper_log / "privexec.log",
        }
        command = [*here.program.command, "doctor", *(str(word) for pair in options.items() for word in pair), *words]
        return subprocess.run(
            [*Identity(by).prefix(), *command], capture_output=True, text=True, check=False, cwd="/"
        )

    def points(self, *words: str, by: Account | None = None) -> list[Point]:
        done = self.run("--json", *words, by=by)
        assert done.stderr == ""
        found = json.loads(done.stdout)
        levels = [point["level"] for point in found["points"]]
        assert found["counts"] == {level: levels.count(level) for level in found["counts"]}
        assert found["ok"] is ("fault" not in levels)
        assert done.returncode == ("fault" in levels)
        return list(found["points"])

    def found(self, *words: str, by: Account | None = None) -> list[Point]:
        """Return what is wrong."""
        points = self.points(*words, by=by)
        wrong = [point for point in points if point["level"] in {"fault", "warning"}]
        return [point for point in wrong if point["subject"] not in OF_THE_MACHINE]

    def only(self, *words: str) -> Point:
        (point,) = self.found(*words)
        return point


def mend(point: Point) -> None:
    """Do what the doctor says."""
    subprocess.run(point["command"], shell=True, check=True)  # noqa: S602 - as the reader would


@pytest.fixture
def surgery(installation: Installation) -> Iterator[Surgery]:
    return Surgery(installation)


@pytest.fixture
def running(surgery: Surgery) -> Surgery:
    surgery.start()
    return surgery


def test_nothing_is_found_where_nothing_is_wrong(running: Surgery) -> None:
    points = running.points("--probe")
    assert running.found("--probe") == []
    skipped = {point["subject"] for point in points if point["level"] == "skipped"} - OF_THE_MACHINE
    assert skipped == ({"systemd", "units"} if not os.path.isdir("/run/systemd/system") else set())  # noqa: PTH112
    said = {point["subject"]: point["what"] for point in points}
    assert said["helper's capabilities"] == f"exactly CAP_SETUID and CAP_SETGID (pid {running.helper.pid})"
    assert said["watcher's capabilities"] == f"none (pid {running.watcher.pid})"
    assert running.site.account
    assert said["probe"].startswith(f"runner-one (uid {running.site.account.uid}), GID {running.site.account.gid}, ")


def test_people_read_the_most_urgent_first_and_a_sum_at_the_end(running: Surgery) -> None:
    running.watcher_log.chmod(0o777)
    running.helper.stop()
    done = running.run()
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert lines[0].startswith("fault")
    levels = [line.split()[0] for line in lines[:-1] if not line.startswith(" ")]
    assert levels == sorted(levels, key=["fault", "warning", "skipped", "ok"].index)
    assert f"$ chmod 0750 {running.watcher_log}" in done.stdout
    faults = levels.count("fault")
    assert lines[-1].startswith(f"{len(levels)} points: {faults} faults")
