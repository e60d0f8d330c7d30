"""What `systemctl reload` of either unit does with a changed sites.yaml, and with a broken one."""

from __future__ import annotations

import pytest

from tests.vm.host import HELPER, HELPER_LOG, JOBS, WATCHER, WATCHER_LOG, Host

LIMIT = f"{JOBS}/site-alpha/cpu.max"
RELOADED = "configuration reloaded"
KEPT = "configuration not reloaded"


def count(host: Host, log: str, event: str) -> int:
    """Return how often an event is in a daemon's log."""
    return int(host.check(f"grep -c '{event}' {log} || :"))


def runs(host: Host) -> None:
    """Run a job of alpha to its end."""
    job = host.start("alpha", "wait")
    host.finish(job, 3)
    assert host.end(job)["exit_code"] == 3


def test_reloading_the_watcher_has_both_go_by_a_changed_file_and_no_job_notices(host: Host, config: str) -> None:
    before = {unit: host.main_pid(unit) for unit in (HELPER, WATCHER)}
    job = host.start("alpha", "wait")
    host.check(f"sed -i 's/cpu_quota_pct: 20/cpu_quota_pct: 30/' {config}; systemctl reload {WATCHER}")
    assert host.status()["helper"]["same_config"] is True
    following = host.start("alpha", "wait")
    assert host.read(LIMIT) == ["30000 100000"]
    for each in (job, following):
        host.finish(each, 4)
        assert host.end(each)["exit_code"] == 4
    assert {unit: host.main_pid(unit) for unit in before} == before


def test_after_a_reload_of_the_helper_alone_changed_sites_wait_for_the_watchers(host: Host, config: str) -> None:
    before = count(host, HELPER_LOG, RELOADED)
    host.check(f"sed -i 's/cpu_quota_pct: 20/cpu_quota_pct: 30/' {config}; systemctl reload {HELPER}")
    host.wait(f"(($(grep -c '{RELOADED}' {HELPER_LOG}) > {before}))")
    host.wait("runner status --json | grep -q '\"same_config\": false'")
    waiting = host.drop("alpha", "wait")
    host.wait("runner jobs --json --site alpha --state queued | grep -q 'have read different configurations'")
    unchanged = host.start("beta", "wait")
    host.check(f"systemctl reload {WATCHER}")
    job = host.started(waiting)
    for each in (job, unchanged):
        host.finish(each, 0)
        assert host.end(each)["exit_code"] == 0


@pytest.mark.parametrize(("unit", "log"), [(HELPER, HELPER_LOG), (WATCHER, WATCHER_LOG)])
def test_a_broken_file_changes_nothing_and_where_it_is_broken_is_told(
    host: Host, config: str, unit: str, log: str
) -> None:
    before = {each: host.main_pid(each) for each in (HELPER, WATCHER)}
    told = count(host, log, KEPT)
    host.check(f"sed -i 's/cpu_quota_pct: 20/cpu_quota_pct: 30/; s/jailed: false/jailed: perhaps/' {config}")
    status = host.run(f"systemctl reload {unit}").status
    assert (status == 0) == (unit == HELPER)  # which is told by a signal, and answers in its log
    host.wait(f"(($(grep -c '{KEPT}' {log}) > {told}))")
    host.wait(f"journalctl -b -u {unit} -o cat | grep -q '{config}:4:11: .*jailed'")
    assert {each: host.main_pid(each) for each in before} == before
    assert host.status()["helper"]["same_config"] is True
    runs(host)
    assert host.read(LIMIT) == ["20000 100000"]


def test_a_broken_file_keeps_a_unit_from_starting_and_a_mended_one_does_not(host: Host, config: str) -> None:
    host.check(f"cp {config} /var/tmp/good.yaml; sed -i 's/jailed: false/jailed: perhaps/' {config}")
    host.check(f"systemctl --no-block restart {HELPER}")
    host.wait(f"journalctl -b -u {HELPER} -o cat | grep -q 'Failed with result'")
    assert host.check(f"systemctl is-active {WATCHER}") == "active"
    host.check(f"cp /var/tmp/good.yaml {config}")
    host.wait_active(HELPER)
    runs(host)
