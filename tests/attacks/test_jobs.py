"""A job attempts to reach what is not its own: the daemons, their sockets and marks, another site's job, its keys."""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING, Any

import pytest

from tests.attacks.attack import ATTEMPT, fingerprint
from tests.host.helper_client import Station, parent_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Sandbox
    from basestation_runner.sandbox.installation import Site


@pytest.fixture(scope="module")
def station(sandbox: Sandbox) -> Iterator[Station]:
    with sandbox.installation() as installation, Station(installation) as station:
        for name in ("alpha", "beta"):
            station.add_site(name)
        station.start()
        yield station


@pytest.fixture
def alpha(station: Station) -> Site:
    return station.installation.sites["alpha"]


@pytest.fixture
def beta(station: Station) -> Site:
    return station.installation.sites["beta"]


PROCESSES = ("helper", "keeper", "watcher", "theirs")
ON_A_PROCESS = {
    "kill": "os.kill({0}, 9)",
    "stop": "os.kill({0}, 19)",
    "probe": "os.kill({0}, 0)",
    "signal through a pidfd": "signal.pidfd_send_signal(os.pidfd_open({0}), 9)",
    "attach to": "check(libc.ptrace(16, {0}, 0, 0))",
    "seize": "check(libc.ptrace(0x4206, {0}, 0, 0))",
    "read the memory of": "open(f'/proc/{{{0}}}/mem', 'rb')",
    "list the files of": "os.listdir(f'/proc/{{{0}}}/fd')",
    "read the environment of": "open(f'/proc/{{{0}}}/environ').read(1)",
    "see the root of": "os.readlink(f'/proc/{{{0}}}/root')",
    "see the directory of": "os.readlink(f'/proc/{{{0}}}/cwd')",
    "take a file of": "check(libc.syscall(438, os.pidfd_open({0}), 0, 0))",
    "limit": "check(libc.syscall(302, {0}, 7, (ctypes.c_ulong * 2)(), None))",
    "slow down": "os.setpriority(os.PRIO_PROCESS, {0}, 19)",
    "pin": "os.sched_setaffinity({0}, {{0}})",
    "score for the OOM killer": "open(f'/proc/{{{0}}}/oom_score_adj', 'w')",
}
ELSEWHERE = {
    "connect to the helper": "socket.socket(socket.AF_UNIX).connect(socket_path)",
    "remove the helper's socket": "os.unlink(socket_path)",
    "list the claims": "os.listdir(state + '/claims')",
    "forge an exit record": "open(state + '/exits/ab', 'w')",
    "read the ledger": "open(ledger, 'rb')",
    "list the ledger's directory": "os.listdir(os.path.dirname(ledger))",
    "change the config": "open(config, 'a')",
    "change the program": "open(program, 'a')",
    "change the interpreter's scripts": "open(scripts + '/Base.py', 'a')",
    "leave its cgroup": "open(cgroups + '/cgroup.procs', 'w').write('0')",
    "drop a request for the other site": "open(rundir + '/evil.run', 'w')",
    "take the other site's rundir away": "os.rename(rundir, rundir + '.old')",
    "take its groups": "os.setgroups([group])",
    "be its group": "os.setgid(group)",
    "be its account": "os.setuid(account)",
    "be root": "os.setuid(0)",
    "read the key": "check(libc.syscall(250, 11, key, 0, 0, 0))",
    "see the key's description": "check(libc.syscall(250, 6, key, 0, 0, 0))",
    "link the key": "check(libc.syscall(250, 8, key, -4, 0, 0))",
    "revoke the key": "check(libc.syscall(250, 3, key, 0, 0, 0))",
}
KEEP_A_KEY = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
key = libc.syscall(248, b'user', b'secret', b'the key of beta', 15, -3)
print(key, flush=True)
sys.stdin.close()
time.sleep(1000)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls above are x86-64's")
def test_a_job_reaches_nothing_that_is_not_its_own(station: Station, alpha: Site, beta: Site) -> None:
    installation = station.installation
    watcher = installation.start_watcher()
    mission = station.mission(beta)
    theirs = station.start_job(station.order(beta, mission, "do.py", KEEP_A_KEY))
    ours = station.start_job(station.order(alpha, station.mission(alpha), "do.py", "import time; time.sleep(1000)"))
    log = mission / "job.log"
    with log.open() as lines:
        while not (line := lines.readline()).endswith("\n"):
            station.client.hello()
    before = fingerprint(mission)
    assert beta.account
    facts: dict[str, Any] = {
        "helper": station.daemon.pid,
        "keeper": parent_of(ours["pid"]),
        "watcher": watcher.pid,
        "theirs": theirs["pid"],
        "key": int(line),
        "socket_path": str(installation.helper_socket),
        "state": str(installation.helper_state),
        "ledger": str(installation.watcher_state / "ledger.db"),
        "config": str(installation.sites_config),
        "program": installation.program.command[0],
        "scripts": str(installation.scripts),
        "cgroups": str(installation.cgroup_root),
        "rundir": str(beta.watch_dir),
        "group": beta.account.gid,
        "account": beta.account.uid,
    }
    wanted = {
        f"{what} {whom}": code.format(whom) for whom in PROCESSES for what, code in ON_A_PROCESS.items()
    } | ELSEWHERE
    found = station.answer(alpha, ATTEMPT, json.dumps([facts, wanted]))
    assert {what: answer for what, answer in found.items() if answer != "no"} == {}
    assert found.keys() == wanted.keys()
    assert station.inquire(theirs["job_id"])["event"] == "started"
    assert watcher.returncode is None
    assert fingerprint(mission) == before
