"""What stops, and what goes on: restarts, crashes, hangs, and the host itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.vm.host import HELPER, JOBS, WATCHER, WATCHER_LOG

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vm.host import Host

IMPATIENT: Final = "[Service]\nWatchdogSec=3\n"


def hang(unit: str) -> str:
    """Return the script that stops a daemon from running until its unit, which is watched closely, starts it again."""
    drop_in = f"/run/systemd/system/{unit}.service.d"
    return f"""
        set -e
        before=$(main_pid {unit})
        mkdir -p {drop_in}; printf '{IMPATIENT.encode("unicode_escape").decode()}' >{drop_in}/impatient.conf
        systemctl daemon-reload; systemctl restart {unit}; wait_for "active {unit} $before"
        hung=$(main_pid {unit}); kill -STOP "$hung"; wait_for "active {unit} $hung"
        rm -r {drop_in}; systemctl daemon-reload
        journalctl -b -u {unit} -o cat | grep -q 'Watchdog timeout'
    """


WAYS: Final[dict[str, Callable[[str], str]]] = {
    "restart": lambda unit: f"systemctl restart {unit}",
    "kill": lambda unit: f"kill -KILL $(main_pid {unit})",
    "watchdog": hang,
    "stop and start": lambda unit: f"systemctl stop {unit} && systemctl start {unit}",
    "reload of systemd and restart": lambda unit: f"systemctl daemon-reload && systemctl restart {unit}",
    "systemd executed anew and restart": lambda unit: f"systemctl daemon-reexec && systemctl restart {unit}",
}


@pytest.mark.parametrize(
    ("unit", "way"),
    # No job is a descendant of the watcher: there is less to try.
    [*((HELPER, way) for way in WAYS), *((WATCHER, way) for way in ("restart", "kill", "watchdog"))],
)
def test_jobs_and_their_limits_survive_and_their_ends_are_known(host: Host, unit: str, way: str) -> None:
    job = host.start("alpha", "wait")
    before = host.main_pid(unit)
    host.check(WAYS[way](unit))
    host.wait_active(unit, before)
    assert host.is_alive(job.pid)
    limits = (f"{JOBS}/site-alpha/cpu.max", f"{job.leaf}/memory.max")
    assert host.read(*limits) == ["20000 100000", str(64 << 20)]
    assert str(job.pid) in host.check(f"cat {job.leaf}/cgroup.procs").split()
    host.finish(job, 7)
    assert host.end(job)["exit_code"] == 7
    assert "219/CGROUP" not in host.check(f"journalctl -b -u {unit} -o cat")
    following = host.start("alpha", "wait")
    assert host.read(f"{following.leaf}/memory.max") == [str(64 << 20)]
    host.finish(following, 0)
    assert host.end(following)["exit_code"] == 0


def test_a_job_that_ends_while_the_helper_is_stopped_is_told_of_later(host: Host) -> None:
    job = host.start("beta", "wait")
    host.check(f"systemctl stop {HELPER}")
    host.finish(job, 4)
    host.wait(f"[[ ! -e /proc/{job.pid} ]]")
    host.check(f"systemctl start {HELPER}")
    assert host.end(job)["exit_code"] == 4


def test_without_the_helper_the_watcher_goes_on_and_requests_wait(host: Host) -> None:
    before = host.main_pid(WATCHER)
    host.check(f"systemctl stop {HELPER}")
    request = host.drop("beta", "wait")
    host.wait(f"[[ ! -e {request.file} ]]")
    assert host.main_pid(WATCHER) == before
    assert host.check("stat -c '%F %U' /run/baserunner-watch/control.sock") == "socket baserunner"
    assert host.status()["helper"]["reachable"] is False
    assert host.check(f"systemctl is-active {HELPER} || :") == "inactive"
    host.check(f"systemctl start {HELPER}")
    job = host.started(request)
    host.finish(job, 0)
    assert host.end(job)["exit_code"] == 0


def test_without_the_watcher_the_helper_and_its_socket_stay(host: Host) -> None:
    look = "stat -c '%F %U:%G %a %i' /run/baserunner/priv_exec.sock"
    before, socket = host.main_pid(HELPER), host.check(look)
    host.check(f"systemctl stop {WATCHER}")
    assert host.main_pid(HELPER) == before
    assert host.check(look) == socket
    assert socket.startswith("socket baserunner-exec:baserunner 660 ")
    request = host.drop("beta", "wait")
    host.check(f"systemctl start {WATCHER}")
    job = host.started(request)
    host.finish(job, 0)
    assert host.end(job)["exit_code"] == 0


def test_at_an_ordered_reboot_a_jobs_end_is_recorded_and_what_waited_runs(host: Host) -> None:
    running = host.start("alpha", "wait")
    host.check(f"systemctl stop {HELPER}")
    queued = host.drop("beta", "wait")
    host.wait(f"[[ ! -e {queued.file} ]]")
    host.check(f"systemctl stop {WATCHER}")
    waiting = host.drop("alpha", "wait")
    host.reboot()
    for unit in (HELPER, WATCHER):
        host.wait_active(unit)
    assert host.end(running)["signal"] == 15  # systemd ends all processes, and the keeper had time to write it down
    for request in (queued, waiting):
        job = host.started(request)
        host.finish(job, 0)
        assert host.end(job)["exit_code"] == 0
    assert host.check("systemctl --failed --no-legend --plain") == ""


def test_after_a_power_failure_what_ran_is_lost_and_what_was_accepted_runs(host: Host) -> None:
    running = host.start("alpha", "wait")
    host.check(f"systemctl stop {HELPER}")
    request = host.drop("beta", "wait")
    # Missions are their owners' business; claims and ledger are synced by those who write them.
    host.check(f"sync {running.request.mission} {request.mission}")
    host.wait(f"[[ ! -e {request.file} ]]")
    host.power_cycle()
    for unit in (HELPER, WATCHER):
        host.wait_active(unit)
    host.wait(f"event {WATCHER_LOG} {running.job_id} 'job lost' 'its host was restarted'")
    job = host.started(request)
    host.finish(job, 0)
    assert host.end(job)["exit_code"] == 0
    assert host.check("systemctl --failed --no-legend --plain") == ""
