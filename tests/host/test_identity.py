"""Whom a job runs as and what it has: what the kernel says about real jobs, and that no step of the drop is idle."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from basestation_runner import nss, program
from basestation_runner.sandbox.installation import HELPER, HELPER_CAPABILITIES
from basestation_runner.sandbox.process import Identity
from basestation_runner.sandbox.program import write_launcher
from tests.host.helper_client import Gate, Station

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Sandbox
    from basestation_runner.sandbox.installation import Site

SOURCES: Final = Path(program.BECOME).parent
STEPS: Final = (
    "undumpable",
    "new_session",
    "default_signals",
    "stated_umask",
    "stated_limits",
    "stated_priority",
    "join_cgroup",
    "set_groups",
    "set_gids",
    "set_uids",
    "own_keyring",
    "empty_capabilities",
    "no_new_privileges",
    "verify",
)
STOPPED_BY_VERIFY: Final = frozenset(
    {
        "new_session",
        "default_signals",
        "stated_umask",
        "set_groups",
        "set_gids",
        "set_uids",
        "empty_capabilities",
        "no_new_privileges",
    }
)
STOPPED: Final = "its identity could not be taken on: "
CALL: Final = r"    if \({}\([^()]*\) != 0\)\n        return -1;\n"
"""How identity.c takes a step."""

KEYRING: Final = """
import ctypes, json, platform
keyctl = {"x86_64": 250, "ppc64le": 271, "s390x": 280}.get(platform.machine(), 219)
libc = ctypes.CDLL(None, use_errno=True)
def session():
    return libc.syscall(keyctl, 0, -3, 0)
def finds_secret():
    return libc.syscall(keyctl, 10, -3, b"user", b"secret", 0) > 0
"""
KEEP_A_SECRET: Final = (
    KEYRING
    + """
libc.syscall(keyctl, 1, None, 0, 0, 0)
assert libc.syscall(keyctl - 2, b"user", b"secret", b"content", 7, -3) > 0
# What the helper's children may do with it, whoever they are: everything, as long as they possess it.
assert finds_secret()
"""
)


# The drop, step by step


def sequence() -> str:
    """The two functions of identity.c that take the steps."""
    source = (SOURCES / "identity.c").read_text()
    return source[source.index("\nint prepare(void)") :]


def without(source: str, *steps: str) -> str:
    """Return identity.c without some steps: each is taken in one place."""
    for step in steps:
        source, count = re.subn(CALL.format(step), "", source)
        assert count == 1
    return source


def compile_programs(directory: Path, sources: dict[str, str]) -> list[str]:
    """Make the program of a job's child anew for each source of identity.c; return their paths."""
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-w", "-static", f"-I{SOURCES}"]
    others = [str(path) for path in sorted(SOURCES.glob("*.c")) if path.name != "identity.c"]
    subprocess.run(["gcc", *flags, "-c", *others], check=True, cwd=directory)
    objects = [str(directory / f"{Path(path).stem}.o") for path in others]
    made = []
    for name, source in sources.items():
        made.append(str(directory / name))
        subprocess.run(
            ["gcc", *flags, "-x", "c", "-", "-x", "none", *objects, "-o", made[-1]],
            input=source,
            text=True,
            check=True,
        )
        Path(made[-1]).chmod(0o755)
    return made


@pytest.fixture(scope="module")
def drops(sandbox: Sandbox) -> Iterator[dict[str, Any]]:
    """What came of the whole drop, of drops without one step, and without that step and the last one."""
    whole = (SOURCES / "identity.c").read_text()
    cases = {"whole": whole}
    for step in STEPS:
        cases[step] = without(whole, step)
        if step != "verify":
            cases[f"{step}, verify"] = without(whole, step, "verify")
    with sandbox.installation() as installation:
        accounts = installation.accounts
        accounts.add_group("extra")
        accounts.join(HELPER, "extra")
        accounts.add_user("site", groups=["extra"])
        accounts.add_group("effective")
        accounts.join("site", "effective")
        helper, site = accounts.user(HELPER), accounts.user("site")
        groups = [accounts.gid("effective"), site.gid]
        directory = installation.make_directory(installation.top / "procs", helper)
        programs = installation.make_directory(installation.top / "programs")
        told = programs / "status"
        told.write_text(as_it_should_be(site.uid, groups))
        cases["lies"] = without(whole, "empty_capabilities").replace("/proc/self/status", str(told))
        driver = Path(__file__).with_name("drop_driver.py")
        installation.write(installation.top / "driver.py", driver.read_text())
        lib = Path(installation.program.command[0]).with_name("lib")
        command = [
            *("nice", "-n", "-5"),
            *Identity(helper, HELPER_CAPABILITIES).prefix(),
            *(installation.program.python, "-IS", str(installation.top / "driver.py")),
            *(str(lib), str(directory), str(site.uid), ",".join(map(str, groups))),
            *compile_programs(programs, cases),
        ]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd="/")
        yield {**json.loads(done.stdout), "ids": {"helper": helper.uid, "uid": site.uid, "groups": groups}}


def as_it_should_be(uid: int, groups: list[int]) -> str:
    """Return the kernel's words on a process that is the site and holds nothing."""
    empty = dict.fromkeys(("SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapAmb"), "0" * 16)
    ids = {"Uid": [uid] * 4, "Gid": [groups[0]] * 4, "Groups": groups}
    words = {name: "\t".join(map(str, values)) for name, values in ids.items()}
    fields = {"Name": "x", "Umask": "0002", **words, **empty, "NoNewPrivs": "1"}
    return "".join(f"{name}:\t{value}\n" for name, value in fields.items())


def test_the_drop_has_these_steps_in_this_order() -> None:
    assert tuple(re.findall(r"if \((\w+)\(", sequence())) == STEPS


def test_nothing_but_the_steps_is_in_the_drop() -> None:
    left = sequence()
    for step in STEPS:
        left = re.sub(CALL.format(step), "", left)
    declared = ("int prepare(void)", "int drop(const struct identity *who, char *warning, size_t size)")
    assert left.split() == " ".join(f"{header} {{ return 0; }}" for header in declared).split()


def test_the_whole_drop_makes_the_site_of_the_helper_whatever_state_it_began_in(drops: dict[str, Any]) -> None:
    uid, groups = str(drops["ids"]["uid"]), [str(gid) for gid in drops["ids"]["groups"]]
    assert drops["whole"] == {
        "uids": [uid] * 4,
        "gids": [groups[0]] * 4,
        "groups": sorted(groups, key=int),
        "capabilities": ["0" * 16] * 4,
        "no_new_privs": "1",
        "umask": "0002",
        "blocked": 0,
        "ignored": 0,
        "leads_session": True,
        "leads_group": True,
        "open_files": 1024,
        "core": 0,
        "nice": 0,
        "processors": os.sysconf("SC_NPROCESSORS_CONF"),
        "keyring_owner": uid,
        "finds_secret": False,
        "cgroup": {"owner": drops["ids"]["helper"], "text": "0"},
        "closed": True,
    }


@pytest.mark.parametrize("step", [step for step in STEPS if step != "verify"])
def test_a_drop_that_lacks_a_step_is_noticed(drops: dict[str, Any], step: str) -> None:
    """By `verify`, before anything runs, or for what it does not read by whoever compares the outcomes."""
    assert ("stopped" in drops[step]) == (step in STOPPED_BY_VERIFY)
    assert drops[step] != drops["whole"]


@pytest.mark.parametrize("step", [step for step in STEPS if step != "verify"])
def test_every_step_changes_what_the_job_becomes(drops: dict[str, Any], step: str) -> None:
    seen = drops[f"{step}, verify"]
    assert "stopped" not in seen
    assert seen != drops["whole"]


def test_nothing_runs_when_the_uids_were_not_set(drops: dict[str, Any]) -> None:
    assert drops["set_uids"]["stopped"].startswith(f"{STOPPED}uids: ")
    assert drops["set_uids, verify"]["uids"] == [str(drops["ids"]["helper"])] * 4


def test_forgetting_the_capabilities_would_leave_the_job_all_it_needs_to_become_root(drops: dict[str, Any]) -> None:
    assert drops["empty_capabilities"]["stopped"].startswith(f"{STOPPED}capabilities: ")
    assert drops["empty_capabilities, verify"]["capabilities"] == ["00000000000000c0"] * 4


def test_a_drop_that_can_be_undone_is_stopped_whatever_the_status_says(drops: dict[str, Any]) -> None:
    assert drops["lies"]["stopped"] == f"{STOPPED}setuid(0) was possible after the drop"


# Real jobs of a helper that was started in an unusual state


@pytest.fixture(scope="module")
def station(sandbox: Sandbox) -> Iterator[Station]:
    with sandbox.installation() as installation, Station(installation) as station:
        accounts = installation.accounts
        for group in ("own", "science", "helpers"):
            accounts.add_group(group)
        accounts.join(HELPER, "helpers")
        account = accounts.add_user("runner-python", groups=["own", "science"])
        station.add_site("python", account=account, env={"DATA_DIR": "/srv/data"})
        station.add_shell_site("shell")
        _start_in_an_unusual_state(station)
        yield station


def _start_in_an_unusual_state(station: Station) -> None:
    installation = station.installation
    command = Path(installation.program.command[0])
    launcher = write_launcher(
        installation.top / "launcher", installation.program.python, command.with_name("lib"), KEEP_A_SECRET
    )
    shell = 'umask 077; ulimit -S -n 200; ulimit -S -c 1000; exec 7</etc/passwd; exec "$@"'
    signals = ("env", "--ignore-signal=USR1,CHLD,ALRM", "--block-signal=USR2,CHLD,ALRM")
    environment = {
        "NOTIFY_ACCESS": "all",
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": "1",
        "JOURNAL_STREAM": "1:2",
        "NUITKA_ONEFILE_PARENT": "1",
        "NUITKA_ONEFILE_BINARY": "/runner",
        "LD_PRELOAD": "/nonexistent.so",
        "PYTHONPATH": "/nonexistent",
        "BASH_ENV": "/nonexistent",
        "MPLCONFIGDIR": "/nonexistent",
        "RUNNER_SITE": "another",
        "HOME": "/root",
    }
    daemon = station.start(command=["sh", "-c", shell, "sh", *signals, str(launcher)], environment=environment)
    with contextlib.suppress(PermissionError):  # a container's root may not
        os.setpriority(os.PRIO_PROCESS, daemon.pid, -5)
    os.sched_setaffinity(daemon.pid, {min(os.sched_getaffinity(0))})


@pytest.fixture
def python(station: Station) -> Site:
    return station.installation.sites["python"]


@pytest.fixture
def shell(station: Station) -> Site:
    return station.installation.sites["shell"]


def _status(station: Station, site: Site) -> dict[str, str]:
    """What /proc/self/status says in a job, read by cat: unlike Python, it changes nothing about itself."""
    lines = station.output(site, "cat /proc/self/status").splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def test_a_job_has_its_sites_uid_and_effective_gid_in_every_place(station: Station, python: Site) -> None:
    report = station.report(python)
    account = station.installation.accounts.user("runner-python")
    assert report["uids"] == [account.uid] * 3
    assert report["gids"] == [account.gid] * 3
    assert report["status"]["Uid"].split() == [str(account.uid)] * 4
    assert report["status"]["Gid"].split() == [str(account.gid)] * 4


def test_a_jobs_supplementary_list_is_its_accounts_groups_and_none_of_the_helpers(
    station: Station, python: Site
) -> None:
    accounts = station.installation.accounts
    wanted = {accounts.user("runner-python").gid, accounts.gid("own"), accounts.gid("science")}
    assert station.report(python)["groups"] == sorted(wanted)


def test_a_job_has_no_capability_and_can_gain_none(station: Station, shell: Site) -> None:
    status = _status(station, shell)
    assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == ["0" * 16] * 4
    assert status["NoNewPrivs"] == "1"


def test_a_job_cannot_become_root_or_another_site_or_change_its_groups(
    station: Station, python: Site, shell: Site
) -> None:
    other = shell.account
    assert other is not None
    attempts = [
        "os.setuid(0)",
        f"os.setuid({other.uid})",
        f"os.setresuid({other.uid}, {other.uid}, {other.uid})",
        f"os.setresuid(-1, {nss.account(HELPER).uid}, -1)",  # type: ignore[union-attr]
        "os.setgid(0)",
        f"os.setresgid({other.gid}, {other.gid}, {other.gid})",
        "os.setgroups([])",
        f"os.setgroups(os.getgroups() + [{other.gid}])",
        "os.setgroups([0])",
    ]
    code = f"""
import json, os
outcomes = {{}}
for attempt in {attempts!r}:
    try:
        outcomes[attempt] = repr(eval(attempt))
    except OSError as error:
        outcomes[attempt] = type(error).__name__
print(json.dumps(outcomes))
"""
    assert station.answer(python, code) == dict.fromkeys(attempts, "PermissionError")


def test_a_job_leads_a_session_and_a_process_group_of_its_own(station: Station, python: Site) -> None:
    report = station.report(python)
    assert report["session"] == report["process_group"] == report["pid"]


def test_a_job_cannot_read_a_key_of_the_helpers_session(station: Station, python: Site) -> None:
    assert station.answer(python, KEYRING + "print(json.dumps(finds_secret()))") is False


def test_jobs_of_two_sites_share_no_session_keyring(station: Station, python: Site) -> None:
    with Gate(station.installation.top / "gate") as gate:
        mission = station.mission(python)
        waits = KEYRING + f"print(session(), flush=True); open({str(gate.path)!r}).readline()"
        first = station.order(python, mission, "do.py", waits)
        station.start_job(first)
        second = station.answer(python, KEYRING + "print(json.dumps(session()))")
        gate.open()
        record = station.client.event(str(first["job_id"]), "ended")["record"]
    assert second > 0
    assert int(record["log_tail"]) not in {second, 0, -1}


def test_a_jobs_umask_lets_its_group_write(station: Station, shell: Site) -> None:
    assert _status(station, shell)["Umask"] == "0002"


def test_a_job_begins_with_default_signal_actions_and_an_empty_mask(station: Station, shell: Site) -> None:
    status = _status(station, shell)
    library = 1 << 31 | 1 << 32  # signals 32 and 33: ignored below posix_spawn, and nobody's to set
    masks = {name: int(status[name], 16) & ~library for name in ("SigIgn", "SigBlk", "SigCgt", "SigPnd", "ShdPnd")}
    assert masks == dict.fromkeys(masks, 0)


def test_a_jobs_exit_is_seen_by_a_helper_that_was_started_with_sigchld_ignored(station: Station, shell: Site) -> None:
    assert station.run(station.order(shell, station.mission(shell), "do.sh", "exit 7"))["exit_code"] == 7
    order = station.order(shell, station.mission(shell), "do.sh", "kill -9 $$")
    record = station.run(order)
    assert (record["exit_code"], record["signal"]) == (None, signal.SIGKILL)


def test_a_job_reads_nothing_from_stdin_and_has_its_log_and_nothing_else_open(station: Station, python: Site) -> None:
    mission = station.mission(python)
    log = str(mission / "job.log")
    assert station.report(python, mission)["descriptors"] == {"0": "/dev/null", "1": log, "2": log}


def test_a_job_cannot_write_to_its_stdin(station: Station, python: Site) -> None:
    code = "import fcntl, json, os; print(json.dumps(fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY))"
    assert station.answer(python, code) is True


def test_a_jobs_limits_are_stated_ones_and_not_the_helpers(station: Station, python: Site) -> None:
    code = "import json, resource as r; print(json.dumps([r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE)]))"
    open_files, core = station.answer(python, code)
    assert (open_files[0], core[0]) == (1024, 0)
    limits = Path(f"/proc/{station.daemon.pid}/limits").read_text().split("Max open files")[1].split()
    assert limits[:2] == [str(open_files[1])] * 2, "the helper takes all it may have, and that is the job's ceiling"


def test_a_job_runs_at_nice_0_on_every_processor(station: Station, python: Site) -> None:
    code = "import json, os; print(json.dumps([os.nice(0), len(os.sched_getaffinity(0))]))"
    assert station.answer(python, code) == [0, os.sysconf("SC_NPROCESSORS_CONF")]


def test_a_jobs_environment_is_made_from_nothing(station: Station, python: Site) -> None:
    mission = station.mission(python)
    order = station.order(python, mission, "Base.py")
    station.run(order)
    report = json.loads((mission / f"report-Base.py-{order['job_id']}.json").read_text())
    assert report["environment"] == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(station.installation.helper_cache / "runner-python"),
        "USER": "runner-python",
        "LOGNAME": "runner-python",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "MPLCONFIGDIR": str(station.installation.helper_cache / "runner-python/matplotlib"),
        "DATA_DIR": "/srv/data",
        "RUNNER_SITE": "python",
        "RUNNER_JOB_ID": order["job_id"],
    }


def test_a_jobs_working_directory_is_its_mission_directory(station: Station, python: Site) -> None:
    mission = station.mission(python)
    assert station.report(python, mission)["cwd"] == str(mission)


def test_a_jobs_process_is_of_its_own_account_for_whoever_looks(station: Station, shell: Site) -> None:
    with Gate(station.installation.top / "gate2") as gate:
        order = station.order(shell, station.mission(shell), "do.sh", gate.in_shell)
        pid = station.start_job(order)["pid"]
        assert shell.account is not None
        assert Path(f"/proc/{pid}").stat().st_uid == shell.account.uid
        assert Path(f"/proc/{pid}/status").read_text().split("Name:\t")[1].startswith("sh\n")
        gate.open()
        station.client.event(str(order["job_id"]), "ended")


def test_an_audit_line_tells_who_asked_who_ran_it_and_what(station: Station, shell: Site) -> None:
    order = station.order(shell, station.mission(shell), "do.sh", "echo 'a  b'")
    pid = station.start_job(order)["pid"]
    line = station.daemon.wait_event(
        lambda event: event["event"] == "job started" and event["job_id"] == order["job_id"]
    )
    account, watcher = shell.account, station.installation.accounts.user("baserunner")
    assert account is not None
    wanted = {"site": "shell", "asked_by": watcher.uid, "pid": pid, "uid": account.uid, "gid": account.gid}
    assert wanted.items() <= line.items()
    assert line["groups"] == [account.gid]
    assert line["command"] == f"/bin/sh {station.installation.scripts}/do.sh 'echo '\"'\"'a  b'\"'\"''"
