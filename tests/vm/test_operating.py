"""The operators' commands of the installed program, and logs that somebody removes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.vm.host import HELPER, HELPER_LOG, WATCHER, WATCHER_LOG

if TYPE_CHECKING:
    from tests.vm.host import Host


STATUS = "setpriv --reuid={} --regid=nogroup --clear-groups runner status --json"


@pytest.mark.parametrize(("account", "sites"), [("root", {"alpha", "beta"}), ("runner-alpha", {"alpha"})])
def test_each_account_is_shown_its_own_sites(host: Host, account: str, sites: set[str]) -> None:
    shown = host.check(STATUS.format(account))
    assert {site["site"] for site in json.loads(shown)["sites"]} == sites


def test_the_control_socket_is_no_use_to_accounts_without_a_site(host: Host) -> None:
    refused = host.run(STATUS.format("nobody"))
    assert (refused.status, "is a member of no site's group" in refused.stderr) == (1, True), refused


def test_tables_are_drawn_on_a_terminal(host: Host) -> None:
    shown = host.check("script -qec 'runner status' /dev/null")
    assert "\x1b[" in shown
    assert "alpha" in shown


def test_an_account_submits_a_job_of_its_own_site_and_of_no_other(host: Host) -> None:
    folder = "/home/beta/missions/submitted"
    host.check(f"install -d -m 2770 -o runner-beta -g beta {folder}")
    submit = (
        "setpriv --reuid={} --regid={} --clear-groups runner submit --wait --mission-dir {} beta Base.py --act=none"
    )
    assert host.run(submit.format("runner-beta", "beta", folder)).status == 0
    refused = host.run(submit.format("runner-alpha", "alpha", folder))
    assert (refused.status, "not yours" in refused.stderr) == (1, True), refused


def test_jobs_go_on_when_the_logs_directories_are_removed_and_a_restart_makes_them_again(host: Host) -> None:
    host.check("rm -r /var/log/baserunner /var/log/baserunner-exec")
    job = host.start("beta", "wait")
    before = {unit: host.main_pid(unit) for unit in (HELPER, WATCHER)}
    host.check(f"systemctl restart {HELPER} {WATCHER}")
    for unit, pid in before.items():
        host.wait_active(unit, pid)
    host.finish(job, 5)
    assert host.end(job)["exit_code"] == 5
    for log, owner in ((HELPER_LOG, HELPER), (WATCHER_LOG, "baserunner")):
        assert host.check(f"stat -c '%U %a' {log}") == f"{owner} 640"
