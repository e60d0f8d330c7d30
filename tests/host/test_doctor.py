"""`runner doctor` on a real installation with real accounts and daemons: each thing is broken once, and found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.doctor import units
from basestation_runner.sandbox import HELPER, WATCHER, namespace
from basestation_runner.sandbox.process import Identity
from basestation_runner.watch import lockfile, schema
from tests.host.helper_client import launcher
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self._wait_until_reached(1)

    def restart_helper(self) -> None:
        """Have another helper, which the watcher has found."""
        before = self._times_reached()
        self.helper.stop()
        self.helper = self.installation.start_helper()
        self._wait_until_reached(before + 1)

    def _wait_until_reached(self, times: int) -> None:
        until(lambda: self._times_reached() >= times)

    def _times_reached(self) -> int:
        return [event["event"] for event in self.watcher.events].count("helper reachable")

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
        return subprocess.run([*Identity(by).prefix(), *command], capture_output=True, text=True, check=False, cwd="/")

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
    with contextlib.ExitStack() as cleanup:
        if units.BOOTED.is_dir():  # a host's systemd knows nothing of what runs here
            namespace.mount_tmpfs(units.BOOTED.parent)
            cleanup.callback(namespace.unmount, units.BOOTED.parent)
        yield Surgery(installation)


@pytest.fixture
def running(surgery: Surgery) -> Surgery:
    surgery.start()
    return surgery


def test_nothing_is_found_where_nothing_is_wrong(running: Surgery) -> None:
    points = running.points("--probe")
    assert running.found("--probe") == []
    skipped = {point["subject"] for point in points if point["level"] == "skipped"} - OF_THE_MACHINE
    assert skipped == {"systemd", "units"}
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


# Daemons


def test_a_watcher_of_another_version(surgery: Surgery) -> None:
    prelude = "import basestation_runner; basestation_runner.__version__ = '9.9'"
    surgery.start(watcher=[str(launcher(surgery.installation, prelude))])
    point = surgery.only()
    assert (point["subject"], point["level"]) == ("watcher", "warning")
    assert "is version 9.9, and this program" in point["what"]


def test_a_helper_of_another_version_and_the_files_changed_since(running: Surgery) -> None:
    running.helper.stop()
    prelude = "import basestation_runner; basestation_runner.__version__ = '9.9'"
    running.helper = running.installation.start_helper(command=[str(launcher(running.installation, prelude))])
    running.installation.write_config({"one": {"max_running": 7}})
    helper, config = running.found()[1], running.found()[0]
    assert (helper["subject"], config["subject"]) == ("helper", "configuration")
    assert "is version 9.9" in helper["what"]
    assert config["command"] == "runner reload"


def test_a_helper_that_is_away(running: Surgery) -> None:
    running.helper.stop()
    found = running.found("--probe")
    assert {point["subject"] for point in found} == {"helper", "probe"}
    assert "setpriv" in found[0]["command"]
    assert found[1]["what"] == "it cannot be probed: the helper is not reachable"
    assert (found[1]["subject"], found[1]["site"]) == ("probe", "one")


def test_a_watcher_that_is_away(running: Surgery) -> None:
    running.watcher.kill()
    found = running.found("--probe")
    assert [point["subject"] for point in found] == ["watcher", "sockets", "probe"]
    assert found[1]["what"].endswith("control.sock is not answered: Connection refused")


def test_a_daemon_that_hangs(running: Surgery) -> None:
    running.helper.send_signal(signal.SIGSTOP)
    point = running.only()
    running.helper.send_signal(signal.SIGCONT)
    assert (point["subject"], point["level"]) == ("sockets", "fault")
    assert "does not answer within" in point["what"]


def test_a_helper_with_other_capabilities(surgery: Surgery) -> None:
    surgery.helper = surgery.installation.start_helper(capabilities=())
    surgery.watcher = surgery.installation.start_watcher()
    point = next(point for point in surgery.found() if point["subject"] == "helper's capabilities")
    assert point["level"] == "fault"
    assert "holds no capability" in point["what"]


@pytest.mark.parametrize(("account", "name"), [(HELPER, "runner-keeper:one"), (WATCHER, "runner-watch")])
def test_a_process_with_more_capabilities_than_it_may_have(running: Surgery, account: str, name: str) -> None:
    if account == WATCHER:
        running.watcher.stop()
    program = running.installation.program
    lib = Path(program.command[0]).with_name("lib")
    code = f"import sys, time; sys.path.insert(0, {str(lib)!r}); from basestation_runner import proctitle"
    code += f"; proctitle.set_title({name!r}); time.sleep(1000)"
    identity = Identity(running.installation.account(account), ("setuid", "kill"))
    daemon = running.installation.start("other", [program.python, "-IS", "-c", code], identity)
    until(lambda: Path(f"/proc/{daemon.pid}/comm").read_text().startswith("runner-"))
    (point,) = (point for point in running.found() if point["subject"].endswith("capabilities"))
    assert point["level"] == "fault"
    assert f"(pid {daemon.pid}) holds " in point["what"]
    assert point["what"].endswith("0xa0")


# Accounts and groups


@pytest.mark.usefixtures("running")
def test_an_account_that_is_missing(surgery: Surgery) -> None:
    surgery.installation.accounts.remove_user("runner-one")
    point = surgery.only()
    assert (point["subject"], point["site"], point["what"]) == ("sites", "one", "there is no account runner-one")
    assert point["command"].endswith(" runner-one")


def test_a_watcher_that_lacks_a_sites_group_by_the_name_service_and_as_it_runs(running: Surgery) -> None:
    accounts = running.installation.accounts
    accounts.leave(WATCHER, "runner-one")
    points = [point for point in running.found() if point["subject"] == "watcher's groups"]
    (point,) = points
    assert point["command"] == f"usermod -aG runner-one {WATCHER}"
    running.watcher.stop()
    running.watcher = running.installation.start_watcher()
    accounts.join(WATCHER, "runner-one")
    (point,) = (point for point in running.found() if point["subject"] == "watcher's groups")
    assert f"the running watcher (pid {running.watcher.pid}) is not in the site's group" in point["what"]
    assert point["hint"] == "restart it: a running process gains no group"


def test_a_helper_in_a_sites_group(running: Surgery) -> None:
    running.installation.accounts.join(HELPER, "runner-one")
    point = running.only()
    assert (point["level"], point["command"]) == ("warning", f"gpasswd -d {HELPER} runner-one")


# Configuration


def test_config_that_others_than_root_own_or_can_write(running: Surgery) -> None:
    watcher = running.installation.accounts.user(WATCHER)
    os.chown(running.installation.sites_config, watcher.uid, -1)
    running.installation.applications_config.chmod(0o664)
    found = running.found()
    assert {(point["subject"], point["level"]) for point in found} == {("configuration", "fault")}
    assert {point["hint"] for point in found} == {"chown it to root", "chmod go-w it"}


def test_config_with_faults(running: Surgery) -> None:
    running.installation.write(running.installation.sites_config, "one:\n  watch_dir: relative\n")
    found = running.found()
    assert {point["subject"] for point in found} == {"configuration"}
    assert any("runner_user" in point["what"] for point in found)
    subjects = {point["subject"] for point in running.points() if point["level"] == "skipped"}
    assert subjects >= {"sites", "locks", "watcher's groups", "sites' states"}


# Sites


def test_a_rundir_that_others_can_write_is_mended_by_the_command(running: Surgery) -> None:
    running.site.watch_dir.chmod(0o2777)
    point = running.only()
    assert (point["subject"], point["site"]) == ("sites", "one")
    mend(point)
    assert running.found() == []


def test_a_site_that_is_pending(running: Surgery) -> None:
    running.site.watch_dir.rename(running.site.watch_dir.with_name("gone"))
    until(lambda: any(event["event"] == "site pending" for event in running.watcher.events))
    found = running.found()
    assert [point["subject"] for point in found] == ["sites", "sites' states"]
    assert "it is pending:" in found[1]["what"]
    mend(found[0])
    until(lambda: running.found() == [])


def test_a_lock_that_a_live_daemon_holds(surgery: Surgery) -> None:
    legacy = subprocess.Popen(["sleep", "1000"])
    try:
        (surgery.site.watch_dir / lockfile.NAME).write_text(str(legacy.pid))
        surgery.start()
        found = surgery.found()
    finally:
        legacy.kill()
        legacy.wait()
    locks = [point for point in found if point["subject"] == "locks"]
    assert [point["level"] for point in locks] == ["fault"]
    assert f"is held by process {legacy.pid} (sleep 1000)" in locks[0]["what"]
    assert locks[0]["command"] == f"rm {surgery.site.watch_dir / lockfile.NAME}"


def test_a_stale_lock_is_no_fault_until_a_watcher_has_left_it(surgery: Surgery) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    lock = surgery.site.watch_dir / lockfile.NAME
    lock.write_text(str(ended.pid))
    assert not [point for point in surgery.found() if point["subject"] == "locks"]
    surgery.start()
    assert surgery.found() == []
    surgery.watcher.send_signal(signal.SIGSTOP)  # it would take the lock again
    lock.write_text(str(ended.pid))
    point = next(point for point in surgery.found() if point["subject"] == "locks")
    surgery.watcher.send_signal(signal.SIGCONT)
    assert (point["level"], point["command"]) == ("warning", f"rm {lock}")


def test_a_site_whose_jobs_would_be_refused(running: Surgery) -> None:
    running.installation.accounts.add_group("elsewhere")
    running.installation.write_config({"one": {"groups": ["elsewhere"]}})
    running.restart_helper()
    point = next(point for point in running.found("--probe", "one") if point["subject"] == "probe")
    assert (point["level"], point["site"]) == ("fault", "one")
    assert "the account is not in its effective group" in point["what"]
    point = next(point for point in running.found("--probe", "two") if point["subject"] == "probe")
    assert "there is no such site" in point["what"]


# Directories, sockets, ledger, cgroups


def test_directories_that_are_not_as_they_must_be_are_mended_by_the_commands(running: Surgery) -> None:
    here = running.installation
    os.chown(running.watcher_log, 0, 0)
    here.helper_cache.chmod(0o755)
    here.watcher_state.chmod(0o777)
    running.helper_log.rmdir()
    found = running.found()
    assert {point["subject"] for point in found} == {"directories"}
    assert len(found) == 4
    for point in found:
        mend(point)
    assert running.found() == []


def test_a_log_that_root_has_made(running: Surgery) -> None:
    log = running.watcher_log / "watch.log"
    log.touch(mode=0o640)
    point = running.only()
    assert (point["subject"], point["what"]) == (
        "directories", f"account {WATCHER} cannot write {log}, the watcher's log",
    )  # fmt: skip
    mend(point)
    assert running.found() == []


def test_sockets_that_are_not_as_they_must_be(running: Surgery) -> None:
    running.installation.control_socket.chmod(0o600)
    os.chown(running.installation.helper_socket, -1, 0)
    found = running.found()
    assert {(point["subject"], point["level"]) for point in found} == {("sockets", "warning"), ("sockets", "fault")}
    running.installation.control_socket.unlink()
    points = [point for point in running.found() if "control.sock" in point["what"]]
    assert points[0]["what"].endswith("though a watcher runs")


def test_a_ledger_of_another_version_or_of_nonsense(running: Surgery) -> None:
    running.watcher.stop()
    ledger = running.installation.watcher_state / "ledger.db"
    for version, words in ((schema.VERSION + 1, "a newer one has used it"), (1, "brings it to")):
        with sqlite3.connect(ledger) as database:
            database.execute(f"PRAGMA user_version = {version}")
        database.close()
        point = next(point for point in running.found() if point["subject"] == "ledger")
        assert words in point["what"]
    ledger.write_bytes(b"nonsense" * 1000)
    point = next(point for point in running.found() if point["subject"] == "ledger")
    assert "cannot be read" in point["what"]
    watcher = running.installation.accounts.user(WATCHER)
    assert {path.stat().st_uid for path in running.installation.watcher_state.iterdir()} <= {watcher.uid, 0}


def test_looking_at_a_ledger_makes_no_file_of_roots(running: Surgery) -> None:
    running.watcher.kill()
    before = {path.name for path in running.installation.watcher_state.iterdir()}
    running.points()
    made = [path for path in running.installation.watcher_state.iterdir() if path.name not in before]
    assert not [path for path in made if path.stat().st_uid == 0]
    running.watcher = running.installation.start_watcher()


def test_damage_that_was_survived(running: Surgery) -> None:
    aside = running.installation.watcher_state / "damaged-1-1"
    aside.mkdir()
    point = running.only()
    assert (point["subject"], point["level"], point["command"]) == ("ledger", "warning", f"rm -r {aside}")


def test_a_cgroup_that_cannot_be_used(running: Surgery) -> None:
    root = running.installation.cgroup_root
    (root / "cgroup.controllers").write_text("cpu memory\n")
    os.chown(root / "cgroup.procs", 0, 0)
    found = running.found()
    assert [(point["subject"], point["level"]) for point in found] == [("cgroups", "warning"), ("cgroups", "fault")]
    assert "no controller pids" in found[0]["what"]
    mend(found[1])
    assert len(running.found()) == 1


# Who looks


def test_an_ordinary_user_is_told_which_points_need_root_and_gets_the_others(running: Surgery) -> None:
    ordinary = running.installation.accounts.add_user("ordinary")
    assert running.found(by=ordinary) == []
    points = running.points(by=ordinary)
    skipped = {point["subject"] for point in points if "run it as root" in point["hint"]}
    assert skipped == {"sockets", "ledger", "directories", "cgroups", "sites", "locks", "sites' states"}
    fine = {point["subject"] for point in points if point["level"] == "ok"}
    assert fine >= {
        "helper",
        "helper's capabilities",
        "watcher",
        "watcher's capabilities",
        "watcher's groups",
        "program",
    }


def test_sites_are_named_to_be_probed_only(surgery: Surgery) -> None:
    done = surgery.run("one")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--probe" in done.stderr


def test_nothing_that_hangs_holds_it_up(surgery: Surgery) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(surgery.installation.control_socket))
        listener.listen()
        surgery.installation.control_socket.chmod(0o666)
        said = [point["what"] for point in surgery.found() if point["subject"] == "sockets"]
    assert said == [
        f"{surgery.installation.control_socket} belongs to uid 0, not to the watcher's account",
        f"{surgery.installation.control_socket} is not answered: it does not answer within 5 s",
    ]
