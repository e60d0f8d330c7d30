"""A site is taken over from a legacy daemon that really runs, and given back to it."""

from __future__ import annotations

import json
import os
import signal
import stat
from typing import TYPE_CHECKING

import pytest

from basestation_runner import nss
from basestation_runner.operate.client import Client
from basestation_runner.sandbox.installation import WATCHER
from tests.patience import until

if TYPE_CHECKING:
    from tests.migrate.conftest import Host


def test_a_site_is_taken_over_and_given_back_and_each_request_runs_once(host: Host) -> None:
    host.start()
    before = host.config()
    first = host.drop()
    until(lambda: host.ended_by_legacy() == [first])
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    assert host.is_migrated()
    second = host.drop()
    until(lambda: host.ran_by_us() == [second])
    journals = host.installation.top / "journals"
    assert stat.S_IMODE(journals.stat().st_mode) == 0o700

    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 0, said
    assert host.is_as_before()
    assert host.config() == before
    third = host.drop()
    until(lambda: third in host.ended_by_legacy())
    assert host.ran() == sorted([first, second, third])


def test_a_dry_run_shows_entry_and_steps_and_touches_nothing(host: Host) -> None:
    host.start()
    before = host.config()
    status, said = host.run("alpha", "--dry-run")
    assert status == 0, said
    assert "+alpha:" in said
    assert f"+  runner_user: {host.unit.shown['User']}" in said
    assert "What will be done:" in said
    assert host.config() == before
    assert host.manager.calls == []
    assert not (host.installation.top / "journals").exists()


def test_without_consent_nothing_is_touched(host: Host) -> None:
    host.start()
    status, said = host.run("alpha")
    assert status == 1
    assert "not confirmed" in said
    assert host.manager.calls == []


def test_what_cannot_be_carried_must_be_accepted_by_name(host: Host) -> None:
    host.unit = host.legacy("--config", "/x", "--jail_root", str(host.site.jail), Nice="5", RuntimeMaxSec="86400")
    host.start()
    status, said = host.run("alpha", "--yes", "--accept", "Nice")
    assert status == 1
    assert "--accept --config,RuntimeMaxSec" in said
    assert host.manager.calls == []
    status, said = host.run("alpha", "--dry-run", "--accept", "Nice,RuntimeMaxSec", "--accept", "--config")
    assert status == 0, said
    assert "Lost, and accepted" in said


def test_a_site_whose_jobs_run_in_a_container_is_refused_before_anything_is_touched(host: Host) -> None:
    host.unit = host.legacy("--docker_image", "basestation:latest")
    host.start()
    status, said = host.run("alpha", "--yes", "--accept", "all")
    assert status == 1
    assert "containers are not supported yet" in said
    assert host.manager.calls == []
    assert host.is_as_before()


def test_a_host_that_is_not_ready_is_told_and_left_alone(host: Host) -> None:
    host.start()
    (host.installation.scripts / "Base.py").unlink()
    status, said = host.run("alpha", "--yes")
    assert status == 1
    assert "Base.py does not exist" in said
    assert host.manager.calls == []


def test_a_running_job_is_waited_for_and_what_is_handed_in_meanwhile_runs_once(host: Host) -> None:
    host.start()
    gate = host.homes / "gate"
    first = host.drop("--gate", str(gate))
    until(lambda: host.ran_by_legacy() == [first])
    migration = host.begin("alpha", "--yes")
    assert migration.stdout is not None
    said = ""
    while "waiting for" not in said:
        line = migration.stdout.readline()
        assert line, said
        said += line
    assert f"1 request waits in the rundir: {first}.run" in said
    second = host.drop()
    assert host.unit.is_active
    gate.touch()
    out, _ = migration.communicate(timeout=60)
    assert migration.returncode == 0, said + out
    third = host.drop()
    until(lambda: host.ran() == sorted([first, second, third]))
    assert first in host.ended_by_legacy()
    assert host.ran_by_us() == [third] or host.ran_by_us() == [second, third]


def test_with_now_the_running_job_dies_and_its_request_is_set_aside(host: Host) -> None:
    host.start()
    first = host.drop("--gate", str(host.homes / "gate"))
    until(lambda: host.ran_by_legacy() == [first])
    second = host.drop()
    status, said = host.run("alpha", "--yes", "--now")
    assert status == 0, said
    assert "With --now these die" in said
    assert f"{second}.run" in said
    assert host.is_migrated()
    third = host.drop()
    until(lambda: host.ran_by_us() == [third])
    assert first not in host.ended_by_legacy(), "it was killed"
    stale = {path.name.partition(".")[0] for path in host.site.watch_dir.glob("stale/*")}
    assert stale <= {first, second}
    assert (second in stale) != (second in host.ran_by_legacy()), "the legacy daemon may have got to it before its end"


def test_a_request_that_the_legacy_daemon_cannot_read_is_not_waited_for(host: Host) -> None:
    host.start()
    secret = host.site.watch_dir / "secret.run"
    secret.write_text("x")
    secret.chmod(0o600)
    status, said = host.run("alpha", "--yes")
    assert status == 0, said


def test_requests_of_a_past_that_the_legacy_daemon_never_ran_go_to_stale_however_new(host: Host) -> None:
    old = host.drop()
    host.start()
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    new = host.drop()
    until(lambda: host.ran() == [new])
    (kept,) = (host.site.watch_dir / "stale").iterdir()
    assert kept.name.startswith(old)

    # The second time the site is no new one to the watcher, and the rule is the same.
    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 0, said
    host.unit.stop()
    other = host.drop()
    host.unit.start()
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    newest = host.drop()
    until(lambda: host.ran() == [new, newest])
    assert any(path.name.startswith(other) for path in (host.site.watch_dir / "stale").iterdir())


def test_the_first_site_of_a_host_starts_the_daemons_and_its_way_back_ends_them(host: Host) -> None:
    host.installation.sites_config.unlink()
    host.start(daemons=False)
    daemons = [host.manager.units[name] for name in ("baserunner-exec.service", "baserunner-watch.service")]
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    assert host.is_migrated()
    assert all(unit.is_active and unit.is_enabled for unit in daemons)
    tag = host.drop()
    until(lambda: host.ran_by_us() == [tag])
    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 0, said
    assert not any(unit.is_active or unit.is_enabled for unit in daemons)
    assert not host.installation.sites_config.exists()
    assert not host.is_member()
    assert host.unit.is_active


@pytest.mark.parametrize("fault", ["the helper is away", "usermod fails"])
def test_a_failure_on_the_way_undoes_everything_and_says_why(host: Host, fault: str) -> None:
    host.start()
    host.manager.fault = fault
    if fault == "the helper is away":
        helper = host.manager.units["baserunner-exec.service"]
        helper.stop()
        helper.refuses_to_start = True
    migration = host.begin("alpha", "--yes")
    until(lambda: not host.unit.is_active)
    tag = host.drop()
    out, _ = migration.communicate(timeout=90)
    assert migration.returncode == 1, out
    assert "everything is as it was before" in out
    assert host.is_as_before()
    until(lambda: host.ran() == [tag])
    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 1
    assert "was not migrated" in said


def test_what_keeps_it_from_being_undone_is_told_and_the_next_call_goes_on(host: Host) -> None:
    host.start()
    migration = host.begin("alpha", "--yes")
    until(lambda: not host.unit.is_active)
    process = host.hold_lock()
    tag = host.drop()
    out, _ = migration.communicate(timeout=90)
    assert migration.returncode == 1
    assert f"process {process.pid} has the lock" in out
    assert "cannot be given back yet" in out
    process.kill()
    status, said = host.run("alpha", "--yes")
    assert status == 1
    assert "has it as before" in said
    assert host.is_as_before()
    until(lambda: host.ran() == [tag])


def test_on_the_way_back_running_jobs_are_waited_for_and_waiting_ones_run_under_the_legacy_daemon(host: Host) -> None:
    host.start()
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    gate = host.write_gated_script()
    first = host.drop("--gate", str(gate))
    until(lambda: host.ran_by_us() == [first])
    second, third = host.drop(), host.drop()
    until(lambda: not host.requests(), "all to be accepted")
    back = host.begin("alpha", "--rollback", "--yes")
    assert back.stdout is not None
    said = ""
    while "waiting for a running job" not in said:
        line = back.stdout.readline()
        assert line, said
        said += line
    fourth = host.drop()
    assert not host.unit.is_active
    gate.touch()
    out, _ = back.communicate(timeout=60)
    assert back.returncode == 0, said + out
    assert host.is_as_before()
    until(lambda: host.ran() == sorted([first, second, third, fourth]))
    assert host.ran_by_us() == [first]
    fifth = host.drop()
    until(lambda: fifth in host.ended_by_legacy())

    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    sixth = host.drop()
    until(lambda: sixth in host.ran_by_us(), "the site not to be held any more")


def test_a_request_that_the_sites_account_may_not_write_is_handed_in_again_too(host: Host) -> None:
    host.start()
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    glider = host.installation.accounts.add_user("sg1", groups=[host.group])
    tag = host.drop_while_drained(by=glider, mode=0o640)
    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 0, said
    until(lambda: host.ran() == [tag])
    assert not host.requests()


def test_what_was_changed_in_the_configuration_since_stays_on_the_way_back(host: Host) -> None:
    host.start()
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    text = host.config()
    host.installation.write(host.installation.sites_config, f"# new words\n{text}# and at the end\n")
    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 0, said
    assert host.config().startswith("# new words\n")
    assert host.config().endswith("# and at the end\n")
    assert "alpha" not in host.config()


def test_the_list_shows_units_and_what_was_migrated(host: Host) -> None:
    host.legacy("--docker_image", "x", name="baserunnertrain@train.service")
    host.start()
    status, said = host.run("--list")
    assert status == 0, said
    assert "baserunner-alpha@runner-alpha.service" in said
    assert "its jobs run in a container" in said
    assert host.run("alpha", "--yes")[0] == 0
    rows = json.loads(host.run("--list", "--json")[1])
    assert [row["state"] for row in rows if row["site"] == "alpha"][-1] == "migrated"
    status, said = host.run("alpha", "--yes")
    assert status == 1
    assert "is migrated already" in said
    damaged = host.installation.top / "journals/beta.jsonl"
    damaged.write_text('{"version": 1}\n{"facts": 3}\n')
    status, said = host.run("--list")
    assert status == 0, said
    assert "line 2 of the journal is not understood" in said
    assert "migrated" in said
    status, said = host.run("beta", "--rollback", "--yes")
    assert status == 1
    assert "line 2 of the journal is not understood" in said


def test_of_two_sites_the_first_can_go_back_before_the_second(host: Host) -> None:
    """It was the first that started the daemons: they stay for the second, and end with that."""
    host.installation.sites_config.unlink()
    beta = host.add_legacy_site("beta")
    host.start(daemons=False)
    beta.is_enabled = True
    beta.start()
    for words in (("alpha", "--yes"), ("beta", "--yes"), ("alpha", "--rollback", "--yes")):
        status, said = host.run(*words)
        assert status == 0, said
    assert host.unit.is_active
    assert not beta.is_active
    assert "beta:" in host.config()
    assert "alpha:" not in host.config()
    tag = host.drop()
    until(lambda: host.ended_by_legacy() == [tag])
    status, said = host.run("beta", "--rollback", "--yes")
    assert status == 0, said
    assert host.manager.units[beta.name].is_active
    assert host.config().strip() == ""
    assert not any(
        host.manager.units[name].is_active for name in ("baserunner-exec.service", "baserunner-watch.service")
    )


def test_the_configuration_keeps_its_owner_mode_and_link_and_so_does_a_backup_that_replaces_nothing(host: Host) -> None:
    host.start()
    path = host.installation.sites_config
    real = path.with_name("real.yaml")
    path.rename(real)
    path.symlink_to(real)
    group = nss.group(WATCHER)
    assert group is not None
    os.chown(real, 0, group.gid)
    real.chmod(0o640)
    earlier = path.with_name("sites.yaml.before-alpha")
    earlier.write_text("somebody's own\n")
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    assert path.is_symlink()
    assert "alpha:" in real.read_text()
    backup = path.with_name("sites.yaml.before-alpha.1")
    for each in (real, backup):
        facts = each.stat()
        assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (0, group.gid, 0o640)
    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 0, said
    assert path.is_symlink()
    assert not backup.exists()
    assert earlier.read_text() == "somebody's own\n"


@pytest.mark.parametrize("fault", ["the unit is gone", "it is masked", "the configuration", "the journal"])
def test_a_way_back_that_could_not_be_gone_to_its_end_is_not_begun(host: Host, fault: str) -> None:
    host.start()
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    match fault:
        case "the unit is gone":
            del host.manager.units[host.unit.name]
            expected = "there is no such unit"
        case "it is masked":
            host.unit.shown = {**host.unit.shown, "UnitFileState": "bad"}
            expected = "it cannot be enabled: it is bad"
        case "the configuration":
            host.installation.write(host.installation.sites_config, f"{host.config()}- one: two\n")
            expected = "sites.yaml"
        case _:
            (host.installation.top / "journals").chmod(0o755)
            expected = "not root's alone"
    calls = list(host.manager.calls)
    text = host.config()
    if fault != "the journal":
        status, said = host.run("alpha", "--rollback", "--dry-run")
        assert status == 1
        assert expected in said
    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 1
    assert expected in said
    assert host.manager.calls == calls
    assert host.config() == text
    assert host.lock() == host.pid("baserunner-watch.service")
    tag = host.drop()
    until(lambda: host.ran_by_us() == [tag])


def test_a_terminal_that_goes_away_has_it_undone(host: Host) -> None:
    host.start()
    gate = host.homes / "gate"
    tag = host.drop("--gate", str(gate))
    until(lambda: host.ran_by_legacy() == [tag])
    migration = host.begin("alpha", "--yes")
    assert migration.stdout is not None
    while "waiting for" not in (line := migration.stdout.readline()):
        assert line
    migration.send_signal(signal.SIGHUP)
    out, _ = migration.communicate(timeout=60)
    assert migration.returncode == 1, out
    assert "everything is as it was before" in out
    assert host.is_as_before()
    assert host.journal()[-1]["state"] == "undone"
    gate.touch()
    until(lambda: host.ended_by_legacy() == [tag])


def test_files_that_cannot_be_handed_in_again_are_named_and_hold_nothing_up(host: Host) -> None:
    host.start()
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    assert host.site.account is not None
    tag = host.drop_while_drained(by=host.site.account, mode=0o664)
    rundir = host.site.watch_dir
    (rundir / ".again-").write_text("x")
    long = f"{'a' * 248}.run"  # there is no room for a longer name
    for name, mode in ((long, 0o444), ("secret.run", 0o400)):
        (rundir / name).write_text("x")
        (rundir / name).chmod(mode)
    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 0, said
    assert f"{long} cannot be handed in again" in said
    assert "secret.run cannot be handed in again" in said
    until(lambda: host.ran() == [tag])


def test_a_request_that_keeps_its_old_time_runs_if_it_came_after_the_legacy_daemons_end(host: Host) -> None:
    host.start()
    status, said = host.run("alpha", "--yes", kill_at="gone")
    assert status < 0, said
    tag = host.drop()
    os.utime(host.site.watch_dir / f"{tag}.run", (1e9, 1e9))
    status, said = host.run("alpha", "--yes", "--unit", "x.service")
    assert status == 0, said
    assert "--unit: ignored, as it goes by what was agreed to before" in said
    until(lambda: host.ran_by_us() == [tag])


def test_a_unit_that_is_a_link_to_elsewhere_is_refused_and_one_within_systemds_places_is_not(host: Host) -> None:
    host.start()
    link = host.units / host.unit.name
    link.symlink_to(host.units / "alpha-of-old.service")
    assert host.run("alpha", "--dry-run")[0] == 0
    link.unlink()
    link = host.units / "baserunner-alpha@.service"
    elsewhere = host.installation.top / "elsewhere.service"
    link.symlink_to(elsewhere)
    status, said = host.run("alpha", "--yes")
    assert status == 1
    assert f"it is a link to {elsewhere}, which `systemctl disable` would remove" in said
    assert host.manager.calls == []


def test_a_unit_that_is_enabled_until_the_next_start_is_so_again(host: Host) -> None:
    host.start()
    host.unit.is_runtime = True
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 0, said
    assert host.unit.file_state == "enabled-runtime"
    changes = [call for call in host.manager.calls if call[0] in {"enable", "disable"}]
    assert changes == [[what, "--runtime", host.unit.name] for what in ("disable", "enable")]


def test_a_group_that_another_site_needs_stays_and_goes_when_that_is_given_back(host: Host) -> None:
    beta = host.add_legacy_site("beta", host.site.account)
    beta.is_enabled = True
    beta.start()
    host.installation.write_config()
    host.start()
    for name in ("alpha", "beta"):
        status, said = host.run(name, "--yes")
        assert status == 0, said
    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 0, said
    assert f"group {host.group} is site beta's too" in said
    assert host.unit.is_active
    assert host.is_member()
    with Client(host.installation.control_socket) as client:
        assert client.ask("site", site="beta")["state"] == "watching"
    status, said = host.run("beta", "--rollback", "--yes")
    assert status == 0, said
    assert not host.is_member()
