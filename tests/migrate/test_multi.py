"""A host is taken over from a BaseRunnerMulti, and given back to it."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from basestation_runner.sandbox.installation import WATCHER
from basestation_runner.sandbox.process import Identity
from tests.migrate.manager import Unit, exec_start
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox.process import Daemon
    from tests.migrate.conftest import Host

WATCH: Final = "baserunnermulti.service"
EXEC: Final = "baserunnerprivexec.service"
PROGRAM: Final = Path(__file__).with_name("multi_daemon.py")


class Multi:
    """The host of a BaseRunnerMulti, with the same two sites."""

    def __init__(self, host: Host) -> None:
        self.host = host
        installation = host.installation
        host.unit.is_wanted = False
        del host.manager.units[host.unit.name]
        installation.sites["alpha"] = host.site
        installation.write_config()
        self.config = installation.top / "old/sites.yaml"
        installation.make_directory(self.config.parent)
        self.text = f"# of the peer\n{host.config()}"
        installation.write(self.config, self.text)
        installation.sites_config.unlink()
        self.rotation = host.rotations / "baserunner"
        self.rotation.write_text(f"{host.logs}/*.log {{\n    copytruncate\n}}\n")
        (host.rotations / "basestation-runner").write_text(f"{host.logs}/*.log {{\n}}\n")
        (host.rotations / "apt").write_text("/var/log/apt/*.log {\n}\n")
        self.program = installation.top / "multi_daemon.py"
        self.program.write_text(PROGRAM.read_text())
        installation.accounts.join(WATCHER, host.group)  # the peer's watcher is in every site's group too
        self.watch = self.unit(WATCH, "BaseRunnerMulti.py", "--job_completions_log", "/var/log/baserunner/jobs.jsonl")
        self.exec = self.unit(EXEC, "BaseRunnerPrivExec.py")
        for unit in (self.exec, self.watch):
            unit.is_enabled = True
            unit.start()

    def unit(self, name: str, script: str, *options: str, drop_in: str = "") -> Unit:
        installation = self.host.installation
        python = installation.program.python
        argv = [python, str(installation.scripts / script), "--sites_config", str(self.config), *options]
        text = f"[Service]\nExecStart={' '.join(argv)}\nUser={WATCHER}\nCacheDirectory=baserunner\n{drop_in}"
        serve = ["--serve"] if "PrivExec" in script else []
        identity = Identity(installation.account(WATCHER))

        def start() -> Daemon:
            return installation.start("multi", [python, "-IS", str(self.program), *argv[2:], *serve], identity)

        made = Unit(name, text, {"ExecStart": exec_start(argv), "User": WATCHER}, start, is_restarted=True)
        return self.host.manager.add(made)

    def is_as_before(self) -> bool:
        host = self.host
        daemon = self.watch.daemon
        return (
            self.watch.is_active
            and self.exec.is_active
            and self.watch.is_enabled
            and self.exec.is_enabled
            and daemon is not None
            and host.lock() == daemon.pid
            and self.rotation.exists()
            and not host.installation.sites_config.exists()
            and not any(host.units.glob("*/from-multi.conf"))
            and not any(host.manager.units[name].is_active for name in host.manager.units if "baserunner-" in name)
        )

    def is_migrated(self) -> bool:
        host = self.host
        return (
            not (self.watch.is_active or self.exec.is_active or self.watch.is_enabled or self.exec.is_enabled)
            and host.lock() == host.pid("baserunner-watch.service")
            and not self.rotation.exists()
        )


@contextmanager
def sleeping(seconds: int) -> Iterator[int]:
    """Have a process that sleeps; its pid."""
    with subprocess.Popen(["/bin/sleep", str(seconds)]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def multi(host: Host) -> Multi:
    return Multi(host)


def test_a_host_is_taken_over_and_given_back_and_each_request_runs_once(multi: Multi) -> None:
    host = multi.host
    first = host.drop()
    until(lambda: host.ran_by_legacy() == [first])
    status, said = host.run("--from-multi", "--yes")
    assert status == 0, said
    assert multi.is_migrated()
    assert host.config() == multi.text
    drop_in = (host.units / "baserunner-watch.service.d/from-multi.conf").read_text()
    assert f"Conflicts={WATCH} {EXEC}" in drop_in
    assert "ExecStart=\nExecStart=/usr/bin/runner --job-completions-log /var/log/baserunner/jobs.jsonl\n" in drop_in
    assert sorted(path.name for path in host.rotations.iterdir()) == ["apt", "basestation-runner"]
    second = host.drop()
    until(lambda: host.ran_by_us() == [second])

    changed = f"# somebody's words since\n{host.config()}"
    host.installation.write(host.installation.sites_config, changed)
    status, said = host.run("--from-multi", "--rollback", "--yes")
    assert status == 0, said
    assert multi.is_as_before()
    assert host.installation.sites_config.with_name("sites.yaml.after-multi").read_text() == changed
    assert "copytruncate" in multi.rotation.read_text()
    third = host.drop()
    until(lambda: host.ran() == [first, second, third])


@pytest.mark.parametrize("has_option", [True, False])
def test_a_job_in_the_helpers_cgroups_and_what_waits_behind_it_in_memory_is_waited_for(
    multi: Multi, *, has_option: bool
) -> None:
    host = multi.host
    root = host.installation.make_directory(host.installation.top / "cgroups")
    slice_ = root / "baserunner.slice"
    leaf = slice_ / "site-alpha/job-1"
    leaf.mkdir(parents=True)
    if has_option:
        multi.exec.stop()
        multi.exec = multi.unit(EXEC, "BaseRunnerPrivExec.py", "--cgroup_root", str(slice_))
        multi.exec.is_enabled = True
        multi.exec.start()
    else:
        multi.exec.shown = {**multi.exec.shown, "ControlGroup": f"/baserunner.slice/{EXEC}"}
        host.cgroups = [root]
    with sleeping(300) as job:
        (leaf / "cgroup.procs").write_text(f"{job}\n")
        queueing = host.homes.parent / "queue-in-memory"
        queueing.touch()
        waits = host.drop()
        until(lambda: not host.requests())
        migration = host.begin("--from-multi", "--yes")
        assert migration.stdout is not None
        said = ""
        while "waiting until" not in said:
            line = migration.stdout.readline()
            assert line, said
            said += line
        assert multi.watch.is_active
        assert multi.exec.is_active
        queueing.unlink()
        until(lambda: host.ran_by_legacy() == [waits])
        (leaf / "cgroup.procs").write_text("")
    out, _ = migration.communicate(timeout=60)
    assert migration.returncode == 0, said + out
    assert host.ran() == [waits]


def test_a_dry_run_shows_all_and_touches_nothing(multi: Multi) -> None:
    status, said = multi.host.run("--from-multi", "--dry-run")
    assert status == 0, said
    assert "2 sites" in said
    assert f"Conflicts={WATCH} {EXEC}" in said
    assert multi.host.manager.calls == []
    assert multi.is_as_before()


def test_what_somebody_has_set_in_a_drop_in_must_be_accepted(multi: Multi) -> None:
    drop_in = f"\n# /etc/systemd/system/{WATCH}.d/nice.conf\n[Service]\nNice=5\n"
    multi.watch.text += drop_in
    status, said = multi.host.run("--from-multi", "--yes")
    assert status == 1
    assert "--accept Nice" in said
    assert multi.is_as_before()


def test_sites_in_containers_are_refused_before_anything_is_touched(multi: Multi) -> None:
    multi.host.installation.write(multi.config, f"{multi.text}  docker_image: x\n")
    status, said = multi.host.run("--from-multi", "--yes")
    assert status == 1
    assert "containers are not supported yet" in said
    assert multi.is_as_before()


@pytest.mark.parametrize("kill_at", ["stop", "disable", "rotation", "write", "start", "watched"])
def test_killed_after_a_step_it_is_undone_by_a_roll_back_and_requests_run_once(multi: Multi, kill_at: str) -> None:
    host = multi.host
    status, said = host.run("--from-multi", "--yes", kill_at=kill_at)
    assert status < 0, said
    tag = host.drop()
    status, said = host.run("--from-multi", "--rollback", "--yes")
    assert status == 0, said
    assert multi.is_as_before()
    until(lambda: host.ran() == [tag])


@pytest.mark.parametrize("kill_at", ["stop", "write", "start"])
def test_killed_after_a_step_it_is_finished_by_the_next_call(multi: Multi, kill_at: str) -> None:
    host = multi.host
    status, said = host.run("--from-multi", "--yes", kill_at=kill_at)
    assert status < 0, said
    tag = host.drop()
    status, said = host.run("--from-multi", "--yes")
    assert status == 0, said
    assert multi.is_migrated()
    until(lambda: host.ran() == [tag])


def test_a_failure_on_the_way_undoes_everything(multi: Multi) -> None:
    host = multi.host
    host.manager.units["baserunner-watch.service"].refuses_to_start = True
    status, said = host.run("--from-multi", "--yes")
    assert status == 1
    assert "everything is as it was before" in said
    assert multi.is_as_before()


def test_a_second_call_that_was_at_its_question_meanwhile_begins_nothing(multi: Multi) -> None:
    host = multi.host
    for words, question in (
        (["--from-multi"], "all of it is undone"),
        (["--from-multi", "--rollback"], "goes back to"),
    ):
        second = host.begin(*words)
        assert second.stdout is not None
        while question not in (line := second.stdout.readline()):
            assert line
        status, said = host.run(*words, "--yes")
        assert status == 0, said
        out, _ = second.communicate("y\n", timeout=60)
        assert second.returncode == 1, out
    assert multi.is_as_before()


def test_a_site_that_the_helper_refuses_does_not_make_the_host_go_back(multi: Multi) -> None:
    host = multi.host
    accounts, account = host.installation.accounts, host.site.account
    assert account is not None
    extra = accounts.add_user("sg1").name
    accounts.join(account.name, extra)
    host.installation.write(multi.config, f"{multi.text}  groups: [{extra}, {host.group}]\n")
    helper = host.manager.units["baserunner-exec.service"]
    start = helper.start_process

    def start_later() -> Daemon:
        accounts.leave(account.name, extra)
        return start()

    helper.start_process = start_later
    status, said = host.run("--from-multi", "--yes")
    assert status == 0, said
    assert "a job of site alpha would not be started now: the account is not in its effective group" in said
    assert multi.is_migrated()


def test_log_rotation_goes_only_where_it_is_about_the_daemons_logs_alone(multi: Multi) -> None:
    host = multi.host
    mixed = host.rotations / "mixed"
    mixed.write_text(f"# ours\n{host.logs}/*.log\n/var/log/other.log {{\n    weekly\n}}\n")
    elsewhere = host.rotations / "elsewhere"
    elsewhere.write_text(
        '"/data/runner*.log" {\n    weekly\n    postrotate\n        /bin/true ${X}\n    endscript\n}\n'
    )
    elsewhere.chmod(0o600)
    multi.watch.stop()
    multi.watch = multi.unit(WATCH, "BaseRunnerMulti.py", "--base_log", "/data/runner.log")
    multi.watch.is_enabled = True
    multi.watch.start()
    status, said = host.run("--from-multi", "--yes")
    assert status == 0, said
    assert f"take the daemons' out of it:\n  {mixed}" in said
    assert sorted(path.name for path in host.rotations.iterdir()) == ["apt", "basestation-runner", "mixed"]
    status, said = host.run("--from-multi", "--rollback", "--yes")
    assert status == 0, said
    assert "weekly" in elsewhere.read_text()
    assert elsewhere.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("kill_mode", "is_to_die"), [("mixed", True), ("process", False)])
def test_now_says_what_dies_and_what_runs_on(multi: Multi, kill_mode: str, *, is_to_die: bool) -> None:
    host = multi.host
    root = host.installation.make_directory(host.installation.top / "cgroups")
    leaf, unit = root / "baserunner.slice/site-alpha/job-1", root / f"baserunner.slice/{EXEC}"
    multi.exec.shown = {**multi.exec.shown, "ControlGroup": f"/baserunner.slice/{EXEC}", "KillMode": kill_mode}
    host.cgroups = [root]
    with sleeping(301) as outside, sleeping(302) as inside:
        for cgroup, pid in ((leaf, outside), (unit, inside)):
            cgroup.mkdir(parents=True)
            (cgroup / "cgroup.procs").write_text(f"{pid}\n")
        status, said = host.run("--from-multi", "--dry-run", "--now")
        assert status == 0, said
        dying, running = said.partition("With --now these die:")[2].split("These run on")
        assert "sleep 301" in running
        assert "sleep 302" in (dying if is_to_die else running)
