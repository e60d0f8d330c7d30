"""What daemons and jobs are, read from the kernel."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.vm.host import HELPER, HELPER_LOG, JOBS, WATCHER, WATCHER_LOG

if TYPE_CHECKING:
    from tests.vm.host import Host

SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
BOTH = 0xC0  # CAP_SETGID and CAP_SETUID


def capabilities(status: str) -> dict[str, int]:
    return {name: int(value, 16) for name, value in re.findall(r"^(Cap\w+):\s*([0-9a-f]+)$", status, re.MULTILINE)}


def numbers(text: str) -> dict[str, int]:
    """Return what a file of names and numbers holds."""
    return {name: int(value) for name, value in map(str.split, text.splitlines())}


def words(text: str, name: str) -> list[str]:
    """Return what follows `name` on its line of a /proc status."""
    return next(line for line in text.splitlines() if line.startswith(f"{name}:")).split()[1:]


def test_the_helper_has_exactly_its_two_capabilities_and_hands_none_on(host: Host) -> None:
    pid = host.main_pid(HELPER)
    found = capabilities(host.check(f"cat /proc/{pid}/status"))
    assert found == {"CapInh": 0, "CapPrm": BOTH, "CapEff": BOTH, "CapBnd": BOTH, "CapAmb": 0}
    assert host.check(f"getpcaps {pid} 2>&1").endswith("cap_setgid,cap_setuid=ep")


def test_the_watcher_has_no_capability_in_any_set(host: Host) -> None:
    pid = host.main_pid(WATCHER)
    assert capabilities(host.check(f"cat /proc/{pid}/status")) == dict.fromkeys(SETS, 0)
    assert host.check(f"getpcaps {pid} 2>&1").endswith("=")


def test_the_helper_is_in_no_sites_group_and_the_watcher_in_all(host: Host) -> None:
    for unit, names in ((HELPER, "baserunner-exec baserunner"), (WATCHER, "baserunner alpha beta")):
        gids = {line.split(":")[2] for line in host.check(f"getent group {names}").splitlines()}
        assert set(words(host.check(f"cat /proc/{host.main_pid(unit)}/status"), "Groups")) == gids


def test_a_job_is_its_sites_account_with_the_listed_groups_and_nothing_else(host: Host) -> None:
    job = host.start("alpha", "identity")
    assert host.end(job)["exit_code"] == 0
    log = host.log_of(job)
    uid = host.check("id -u runner-alpha")
    gids = [host.check(f"getent group {name} | cut -d : -f 3") for name in ("alpha", "extra")]
    assert words(log, "Uid") == [uid] * 4
    assert words(log, "Gid") == [gids[0]] * 4
    assert set(words(log, "Groups")) == set(gids)
    assert capabilities(log) == {**dict.fromkeys(SETS, 0), "CapBnd": BOTH}
    assert words(log, "NoNewPrivs") == ["1"]
    assert words(log, "Umask") == ["0002"]


def test_the_units_shut_no_job_in(host: Host) -> None:
    job = host.start("beta", "identity")
    host.end(job)
    log = host.log_of(job)
    assert words(log, "Seccomp") == ["0"]
    assert f"mounts {host.check('readlink /proc/1/ns/mnt')}" in log.splitlines()
    assert f"cgroup 0::/baserunner.slice/jobs/site-beta/job-{job.job_id}" in log.splitlines()


def test_the_watcher_is_shut_in_and_the_helper_as_jobs_are(host: Host) -> None:
    watcher, helper = host.main_pid(WATCHER), host.main_pid(HELPER)
    assert words(host.check(f"cat /proc/{watcher}/status"), "Seccomp") == ["2"]
    assert words(host.check(f"cat /proc/{helper}/status"), "Seccomp") == ["0"]
    for pid in (watcher, helper):
        assert words(host.check(f"cat /proc/{pid}/status"), "NoNewPrivs") == ["1"]
    assert "Read-only file system" in host.run(f"nsenter -t {watcher} -m touch /usr/x /etc/x").stderr
    assert host.check(f"readlink /proc/{helper}/ns/mnt") == host.check("readlink /proc/1/ns/mnt")


def test_a_jobs_environment_has_nothing_of_systemd_or_of_the_build(host: Host) -> None:
    job = host.start("beta", "identity")
    host.end(job)
    names = {line.split()[1].split("=")[0] for line in host.log_of(job).splitlines() if line.startswith("env ")}
    by_bash = {"PWD", "OLDPWD", "SHLVL", "_"}
    own = {"HOME", "LANG", "LOGNAME", "MPLCONFIGDIR", "PATH", "RUNNER_JOB_ID", "RUNNER_SITE", "SHELL", "USER"}
    assert names - by_bash == own


def test_a_job_can_use_a_sandbox_of_its_own(host: Host) -> None:
    job = host.start("beta", "sandbox")
    assert host.end(job)["exit_code"] == 0, host.log_of(job)
    assert "inside" in host.log_of(job).splitlines()


def test_a_job_of_a_sandbox_profile_sees_its_mission_and_no_other_process(host: Host) -> None:
    job = host.start("beta", "look", "Boxed.py")
    assert host.end(job)["exit_code"] == 0, host.log_of(job)
    log = host.log_of(job)
    assert "sees /home/beta/missions /srv/* /tmp/*" in log.splitlines()
    assert len(next(line for line in log.splitlines() if line.startswith("processes")).split()) <= 1 + 3
    assert words(log, "Uid") == [host.check("id -u runner-beta")] * 4
    assert capabilities(log) == {**dict.fromkeys(SETS, 0), "CapBnd": capabilities(log)["CapBnd"]}
    assert words(log, "NoNewPrivs") == ["1"]
    waiting = host.start("beta", "wait", "Boxed.py")
    assert len(host.check(f"cat {waiting.leaf}/cgroup.procs").split()) >= 2  # bwrap, and the job in it
    host.finish(waiting, 9)
    assert host.end(waiting)["exit_code"] == 9


def test_the_sites_limits_are_in_their_cgroups(host: Host) -> None:
    job = host.start("alpha", "wait")
    site = f"{JOBS}/site-alpha"
    files = (f"{site}/cpu.max", f"{site}/cpu.weight", f"{site}/pids.max")
    assert host.read(*files) == ["20000 100000", "50", "40"]
    assert host.read(f"{job.leaf}/memory.high", f"{job.leaf}/memory.max") == ["max", str(64 << 20)]
    assert str(job.pid) in host.check(f"cat {job.leaf}/cgroup.procs").split()
    other = host.start("beta", "wait")
    assert host.read(f"{other.leaf}/memory.high", f"{other.leaf}/memory.max") == [str(200 << 20), "max"]
    for ended in (job, other):
        host.finish(ended, 0)
        host.end(ended)
        host.wait(f"[[ ! -e {ended.leaf} ]]")


def test_a_sites_processor_quota_throttles_its_jobs(host: Host, measured: list[str]) -> None:
    job = host.start("alpha", "burn")
    stat = f"{JOBS}/site-alpha/cpu.stat"
    before = numbers(host.check(f"cat {stat}"))
    host.wait(f"(($(awk '/^nr_throttled/ {{ print $2 }}' {stat}) >= {before['nr_throttled'] + 30}))")
    after = numbers(host.check(f"cat {stat}"))
    host.check(f"touch {job.request.mission}/stop")
    assert host.end(job)["exit_code"] == 0
    # 20 of each 100 ms, and the kernel lets a slice of at most 5 ms more pass.
    share = (after["usage_usec"] - before["usage_usec"]) / (after["nr_periods"] - before["nr_periods"] + 1)
    assert share <= 25_000
    measured.append(f"20 ms of 100 allowed: {share / 1000:.1f} used, with a job that would use all")


def test_a_job_that_takes_too_much_memory_is_killed_and_no_other(host: Host, measured: list[str]) -> None:
    before = host.main_pid(HELPER)
    other = host.start("alpha", "wait")
    job = host.start("alpha", "eat")
    assert host.end(job)["signal"] == 9
    told = host.show(job)
    assert told["state"] == "out_of_memory"
    peak = told["record"]["memory_peak_bytes"]
    measured.append(f"64 MiB allowed: {peak and peak / (1 << 20)} MiB at the most, with a job that would use all")
    assert host.is_alive(other.pid)
    assert host.main_pid(HELPER) == before
    host.finish(other, 0)
    assert host.end(other)["exit_code"] == 0


def test_a_sites_jobs_make_no_more_processes_than_it_may_have_and_other_sites_do(host: Host) -> None:
    job = host.start("alpha", "fork")
    # Kernels count it where the process is, or where the limit is.
    host.wait(f"grep -qs '^max [^0]' {JOBS}/site-alpha/pids.events {job.leaf}/pids.events")
    assert int(host.check(f"cat {JOBS}/site-alpha/pids.current")) <= 40
    other = host.start("beta", "identity")
    assert host.end(other)["exit_code"] == 0
    host.check(f"runner cancel {job.job_id}")
    assert host.end(job)["signal"] == 15
    host.wait(f"[[ ! -e {job.leaf} ]]")


@pytest.mark.parametrize(("account", "group"), [("runner-alpha", "runner-alpha"), ("nobody", "nogroup")])
def test_the_helpers_socket_is_shut_to_other_accounts(host: Host, account: str, group: str) -> None:
    done = host.run(
        f"setpriv --reuid={account} --regid={group} --clear-groups logger -u /run/baserunner/priv_exec.sock x"
    )
    assert "Permission denied" in done.stderr


def test_an_account_that_can_open_the_socket_is_refused_by_the_helper(host: Host) -> None:
    uid = host.check("id -u nobody")
    host.run("setpriv --reuid=nobody --regid=baserunner --clear-groups logger -u /run/baserunner/priv_exec.sock x")
    host.wait(f"event {HELPER_LOG} 'connection refused' peer_uid={uid}")


@pytest.mark.parametrize("account", ["runner-alpha", "nobody"])
def test_state_and_logs_are_shut_to_other_accounts(host: Host, account: str) -> None:
    for place in ("lib/baserunner", "lib/baserunner-exec", "log/baserunner", "log/baserunner-exec"):
        done = host.run(f"setpriv --reuid={account} --regid=nogroup --clear-groups ls /var/{place}")
        assert "Permission denied" in done.stderr


def test_logs_that_are_rotated_while_jobs_run_have_every_line_once(host: Host) -> None:
    host.check("install -d -m 2770 -o runner-beta -g beta /home/beta/missions/many")
    rotations, each = 4, 10
    host.check(f"""
        top=/home/beta mission=$top/missions/many
        for rotation in {{1..{rotations}}}; do
          for n in {{1..{each}}}; do
            file=$top/rundir/many-$rotation-$n.run
            echo "$top/missions $mission $mission/log Base.py --mission_dir $mission --act=none" >$file.new
            chmod 660 $file.new; mv $file.new $file
          done
          logrotate -f /etc/logrotate.d/basestation-runner
          wait_for '[[ -e {WATCHER_LOG} && -e {HELPER_LOG} ]]' || exit
        done
        wait_for '(($(grep -c "^job " /home/beta/missions/many/log) == {rotations * each}))'
    """)
    ids = host.check("awk '/^job / { print $2 }' /home/beta/missions/many/log").split()
    assert len(set(ids)) == rotations * each
    host.wait(f"zcat -f {WATCHER_LOG}* | grep -F '\"job ended\"' | grep -q {ids[-1]}")
    ended = re.findall(r'"job ended".*"job_id": ?"([^"]+)"', host.check(f"zcat -f {WATCHER_LOG}*"))
    assert sorted(set(ids) & set(ended)) == sorted(ids)
    assert len(ended) == len(set(ended))
    host.wait(f"zcat -f {HELPER_LOG}* | grep -F 'job ended' | grep -q {ids[-1]}")
    audited = re.findall(r"job ended.*job_id=([^ ]+)", host.check(f"zcat -f {HELPER_LOG}*"))
    assert sorted(set(ids) & set(audited)) == sorted(ids)
    assert len(audited) == len(set(audited))


def test_rotated_logs_are_renamed_and_no_line_is_lost(host: Host) -> None:
    job = host.start("beta", "wait")
    host.check("logrotate -f /etc/logrotate.d/basestation-runner")
    host.finish(job, 3)
    assert host.end(job)["exit_code"] == 3
    later = host.start("beta", "identity")
    host.end(later)
    for folder, owner, name in (("baserunner", "baserunner", "watch"), (HELPER, HELPER, "privexec")):
        log = f"/var/log/{folder}/{name}.log"
        host.wait(f"grep -q {later.job_id} {log}")
        assert host.run(f"grep -q {later.job_id} {log}.1").status == 1
        assert job.job_id in host.check(f"cat {log}.1")
        assert host.check(f"stat -c '%U %a' {log}") == f"{owner} 640"
