"""What is said of one spoiled fact after the other; and that of any facts something is said of each subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.config.findings import Finding
from basestation_runner.config.hostfacts import NOT_BY_THIS_USER, Absent, Daemon
from basestation_runner.config.probes import Unseen
from basestation_runner.doctor.checks import CHECKS, PROBE, judge
from basestation_runner.doctor.daemons import NEEDED
from basestation_runner.doctor.facts import SLICE, UNITS, Cgroups, Configuration, Ledger, Lock, Systemd
from basestation_runner.doctor.points import LEVELS, Point, fault, ok
from basestation_runner.doctor.run import lines
from basestation_runner.doctor.sites import NOT_ASKED
from basestation_runner.errors import RunnerError
from basestation_runner.watch import lockfile, schema
from tests.unit.config import facts as config_facts
from tests.unit.doctor.good import (
    CONFIG,
    GOOD,
    HELPER,
    HELPER_SAYS,
    PROBED,
    STATE,
    WATCHER,
    WATCHER_SAYS,
    changed,
    probed,
    with_directory,
    with_drop_in,
    with_process,
    with_socket,
    with_system,
    with_unit,
)

if TYPE_CHECKING:
    from basestation_runner.doctor.facts import Facts

HELD = lockfile.Seen(7, is_held=True)
HUNG = Unseen("does not answer within 10 s", is_fault=True)
RESTART_HELPER = f"systemctl restart {UNITS['helper']}"
RESTART_WATCHER = f"systemctl restart {UNITS['watcher']}"


def wrong(facts: Facts) -> list[tuple[str, Point]]:
    return [(subject, point) for subject, point in judge(facts) if point.level != "ok"]


def test_of_a_host_in_good_order_each_subject_is_ok() -> None:
    said = list(judge(evolve(GOOD, probes={"one": PROBED})))
    assert [subject for subject, _ in said] == [subject for subject, _ in (*CHECKS, PROBE)]
    assert {point.level for _, point in said} == {"ok"}


def test_no_subject_is_there_twice() -> None:
    assert len({subject for subject, _ in CHECKS}) == len(CHECKS)


SANDBOXED = {**CONFIG.applications, "base": evolve(CONFIG.applications["base"], mode="sandbox")}
NO_SANDBOX = {"missing": {"mode sandbox": "no userns", "launch_type mpich": "/usr/bin/mpirun.mpich is not installed"}}


def not_asked(*, may_pass: bool) -> dict[str, Any]:
    return {"outcome": NOT_ASKED, "reason": "no", "may_pass": may_pass}


CASES: list[tuple[Facts, str, str, str, str]] = [
    # facts, subject, level, some of the words, the command
    (with_system(has_openat2=False), "kernel", "fault", "no openat2", ""),
    (with_system(libc="glibc 2.31"), "C library", "warning", "older than 2.35", ""),
    (with_system(libc=None), "C library", "warning", "not glibc", ""),
    (changed(systemd=None), "systemd", "skipped", "does not run this host", ""),
    (changed(systemd=Systemd(247, {})), "systemd", "fault", "older than 249", ""),
    (with_unit(UNITS["helper"], load_state="not-found"), "units", "fault", "is not-found", "apt install --reinstall"),
    (with_unit(UNITS["helper"], load_state="masked"), "units", "fault", "masked", "systemctl unmask"),
    (with_unit(UNITS["watcher"], active_state="failed"), "units", "fault", "is failed", "systemctl start"),
    (with_unit(UNITS["watcher"], file_state="disabled"), "units", "warning", "does not start with", "systemctl enable"),
    (with_unit(UNITS["watcher"], needs_reload=True), "units", "warning", "not read", "systemctl daemon-reload"),
    (with_unit(SLICE, shipped=None), "units", "skipped", "not compared", ""),
    (
        with_drop_in(UNITS["helper"], "[Service]\nKillMode=mixed\n"), "units", "fault",
        "KillMode= is mixed in /etc/", "systemctl revert baserunner-exec.service",
    ),
    (
        with_drop_in(UNITS["helper"], "[Service]\nAmbientCapabilities=CAP_KILL\n"), "units", "fault",
        "AmbientCapabilities= is CAP_SETUID CAP_SETGID, CAP_KILL", "systemctl revert",
    ),
    (with_drop_in(UNITS["helper"], "[Service]\nPrivateTmp=yes\n"), "units", "warning", "jobs inherit", "systemctl rev"),
    (with_unit(UNITS["helper"], text=""), "units", "fault", "KillMode= is not set", "apt install --reinstall"),
    (
        changed(trusted=RunnerError("others can write it", where="/opt/x", hint="chmod")), "program", "fault",
        "/opt/x: others can write it", "",
    ),
    (
        changed(host=evolve(GOOD.host, helper=Daemon(name="h", account=None))), "accounts", "fault",
        "there is no account h", "useradd",
    ),
    (with_process(HELPER, groups=frozenset({2})), "accounts", "fault", "not in the watcher's group", RESTART_HELPER),
    (
        changed(configuration=Configuration(
            document=GOOD.configuration.document, config=CONFIG,
            faults=(Finding(level="fault", what="bad", file="/s.yaml", line=3, column=1, path="one"),),
        )),
        "configuration", "fault", "/s.yaml:3:1: one: bad", "",
    ),
    (
        changed(host=evolve(GOOD.host, files={"/s.yaml": RunnerError("bad", where="/s", hint="mend")})),
        "configuration", "fault", "/s: bad", "",
    ),
    (
        with_socket("helper", answer={**HELPER_SAYS, "config": "x"}), "configuration", "warning", "changed",
        "runner reload",
    ),
    (
        with_socket("watcher", answer={**WATCHER_SAYS, "helper": {"same_config": False}}),
        "configuration", "warning", "different", "runner reload",
    ),
    (with_process(HELPER, has_old_program=True), "helper", "warning", "has been replaced", RESTART_HELPER),
    (with_process(WATCHER, uid=77), "watcher", "fault", "runs as uid 77", RESTART_WATCHER),
    (with_socket("helper", answer={**HELPER_SAYS, "program": "2"}), "helper", "warning", "version 2", RESTART_HELPER),
    (changed(processes=HUNG), "helper", "fault", "does not answer", ""),
    (with_process(HELPER, held=NEEDED | 1 << 5), "helper's capabilities", "fault", "more than", RESTART_HELPER),
    (with_process(HELPER, effective=1 << 7), "helper's capabilities", "fault", "a part of", RESTART_HELPER),
    (with_process(HELPER, held=0, effective=0), "helper's capabilities", "fault", "no capability", RESTART_HELPER),
    (with_process(HELPER, bounding=NEEDED | 1), "helper's capabilities", "warning", "could get other", RESTART_HELPER),
    (with_process(WATCHER, held=1), "watcher's capabilities", "fault", "holds capabilities: 0x1", RESTART_WATCHER),
    (
        changed(
            configuration=evolve(GOOD.configuration, config=evolve(CONFIG, applications=SANDBOXED)),
            sockets=with_socket("helper", answer={**HELPER_SAYS, **NO_SANDBOX}).sockets,
        ),
        "profiles", "fault", "jobs of base wait, mode sandbox does not work: no userns",
        f"apt install bubblewrap && {RESTART_HELPER}",
    ),
    (with_socket("helper", answer=None, why_not=NOT_BY_THIS_USER), "sockets", "skipped", "is answered cannot", ""),
    (with_socket("helper", uid=0), "sockets", "fault", "belongs to uid 0", RESTART_HELPER),
    (with_socket("helper", gid=0), "sockets", "fault", "belongs to GID 0", RESTART_HELPER),
    (with_socket("watcher", mode=0o600), "sockets", "warning", "mode 0600, not 0666", "chmod 0666 /run/w.sock"),
    (with_socket("watcher", why_not="refused", answer=None), "sockets", "fault", "refused", RESTART_WATCHER),
    (with_socket("helper", is_socket=False), "sockets", "fault", "is no socket", "rm /run/h.sock"),
    (changed(ledger=Absent("/state/w/ledger.db")), "ledger", "fault", "though a watcher runs", RESTART_WATCHER),
    (changed(ledger=Ledger(schema.VERSION + 1, ())), "ledger", "fault", "a newer one has used it", ""),
    (changed(ledger=Ledger(schema.VERSION - 1, ())), "ledger", "warning", "brings it to", RESTART_WATCHER),
    (changed(ledger=Ledger(schema.VERSION, ("/a", "/b b"))), "ledger", "warning", "/b b", "rm -r /a '/b b'"),
    (changed(ledger=NOT_BY_THIS_USER), "ledger", "skipped", "cannot be checked as this user", ""),
    (with_directory("/log/w", may=False), "directories", "fault", "cannot write in /log/w", RESTART_WATCHER),
    (with_directory("/log/w", may_write_file=False), "directories", "fault", "write /log/w/w", "chown -h w:w /log/w/w"),
    (with_directory("/state/h", uid=9), "directories", "fault", "belongs to uid 9", "chown h:h /state/h"),
    (with_directory("/state/h", mode=0o770), "directories", "fault", "by others", "chmod 0700 /state/h"),
    (with_directory("/cache", mode=0o755), "directories", "warning", "mode 0755", "chmod 1777 /cache"),
    (with_directory("/cache", is_read_only=True), "directories", "fault", "read-only", "mount -o remount,rw /cache"),
    (
        with_directory("/cache", is_directory=False), "directories", "fault", "not a directory",
        f"mv -nT /cache /cache.old && {RESTART_HELPER}",
    ),
    (with_directory("/state/w", free_bytes=100 << 20), "free space", "warning", "100 MiB are free", "df -h /state/w"),
    (with_directory("/state/w", free_bytes=1 << 20), "free space", "fault", "1 MiB are free", "df -h /state/w"),
    (with_directory("/state/w", free_files=3), "free space", "warning", "3 files more", "df -i /state/w"),
    (changed(cgroups=evolve(GOOD.cgroups, root=None)), "cgroups", "warning", "no cgroup is delegated", RESTART_HELPER),
    (
        changed(cgroups=evolve(GOOD.cgroups, root=None, has_version_2=False)), "cgroups", "warning",
        "no cgroup version 2", "",
    ),
    (changed(cgroups=evolve(GOOD.cgroups, controllers=None)), "cgroups", "fault", "cannot be read", RESTART_HELPER),
    (
        changed(cgroups=evolve(GOOD.cgroups, controllers=frozenset({"cpu"}))), "cgroups", "warning",
        "no controller memory, pids", RESTART_HELPER,
    ),
    (changed(cgroups=Cgroups(has_version_2=False, unseen=HUNG)), "cgroups", "fault", "does not answer", ""),
    (changed(cgroups=evolve(GOOD.cgroups, closed=("/c",))), "cgroups", "fault", "cannot write /c", "chown h /c"),
    (
        changed(host=evolve(GOOD.host, limits={"max_user_instances": 1})), "inotify", "warning", "is 1: too low",
        "sysctl -w fs.inotify.max_user_instances=128",
    ),
    (
        changed(host=evolve(GOOD.host, limits={"max_queued_events": 100})), "inotify", "warning", "is 100",
        "sysctl -w fs.inotify.max_queued_events=16384",
    ),
    (with_system(is_synchronised=False), "clock", "warning", "nothing keeps", "timedatectl set-ntp true"),
    (with_system(is_synchronised=None), "clock", "skipped", "does not say", ""),
    (with_system(latest=1_000_061.0), "clock", "fault", "later than that", "timedatectl set-ntp true"),
    (
        changed(host=config_facts.rundir(mode=0o042777)), "sites", "fault", "everybody has access",
        "chmod o-rwx /srv/one",
    ),
    (
        with_process(WATCHER, groups=frozenset({1, 30})), "watcher's groups", "fault",
        "the running watcher (pid 100) is not in the site's group runner-one", RESTART_WATCHER,
    ),
    (
        changed(host=evolve(GOOD.host, watcher=evolve(GOOD.host.watcher, groups=frozenset({1, 30})))),
        "watcher's groups", "fault", "account w is not in", f"usermod -aG runner-one w && {RESTART_WATCHER}",
    ),
    (
        changed(host=evolve(GOOD.host, helper=evolve(GOOD.host.helper, groups=frozenset({1, 2, 10})))),
        "watcher's groups", "warning", "it needs no site's group", "gpasswd -d h runner-one",
    ),
    (
        changed(locks={"one": Lock(HELD, 10, "python3 BaseRunner.py", "old.service")}), "locks", "fault",
        "held by process 7 (python3 BaseRunner.py)", "systemctl disable --now old.service",
    ),
    (changed(locks={"one": Lock(HELD, 10, "BaseRunner.py")}), "locks", "fault", "held by process 7", "kill 7"),
    (
        changed(locks={"one": Lock(lockfile.Seen(7, is_held=False))}), "locks", "warning", "process 7, which is gone",
        "rm /srv/one/.base_runner_lockfile",
    ),
    (changed(states={"one": STATE}), "sites' states", "warning", "does not know the site", "runner reload"),
    (changed(states=None), "sites' states", "skipped", "does not tell this user", ""),
    (
        changed(states={**dict.fromkeys(CONFIG.sites, STATE), "one": {**STATE, "state": "pending", "reason": "gone"}}),
        "sites' states", "fault", "it is pending: gone", "",
    ),
    (
        changed(states={**dict.fromkeys(CONFIG.sites, STATE), "one": {**STATE, "hold": {"by": 0}}}),
        "sites' states", "warning", "it is held", "runner release one",
    ),
    (changed(probes={"one": not_asked(may_pass=False)}), "probe", "fault", "cannot be probed: no", ""),
    (changed(probes={"one": not_asked(may_pass=True)}, is_root=False), "probe", "fault", "cannot be probed: no", ""),
    (changed(probes={"one": not_asked(may_pass=False)}, is_root=False), "probe", "skipped", "as this user", ""),
    (changed(probes={"none": PROBED}), "probe", "fault", "it is not configured", ""),
    (changed(probes={"one": {"outcome": "refused", "reason": "no"}}), "probe", "fault", "would not be started: no", ""),
    (probed(uids=[10, 10, 0]), "probe", "fault", "its uids are 0,10, not 10", ""),
    (probed(gids=[10, 10, 0]), "probe", "fault", "its GIDs are 0,10, not 10", ""),
    (probed(groups=[10, 4]), "probe", "fault", "its groups are 4,10, not 10", ""),
    (probed(capabilities={"ambient": 1}), "probe", "fault", "it has capabilities, ambient", ""),
    (probed(no_new_privs=False), "probe", "fault", "no_new_privs", ""),
    (probed(cgroup="/"), "probe", "fault", "its cgroup is /, not /baserunner.slice/jobs/", ""),
    (probed(cgroup_root=None), "probe", "warning", "no cgroup", ""),
    (probed(cgroup_limits={}), "probe", "warning", "pids.max is not there, not 4096", ""),
    (probed(cgroup_limits={"pids.max": "max"}), "probe", "warning", "pids.max is max, not 4096", ""),
    (probed(warnings=["limits are not applied"]), "probe", "warning", "limits are not applied", ""),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "subject", "level", "words", "command"), CASES, ids=[case[3] for case in CASES])
def test_a_spoiled_fact_is_told_with_what_mends_it(
    facts: Facts, subject: str, level: str, words: str, command: str
) -> None:
    found = [point for about, point in wrong(facts) if about == subject]
    (point,) = (point for point in found if words in point.what)
    assert point.level == level
    assert command in point.command
    assert bool(command) == bool(point.command)


def test_options_of_the_program_are_the_administrators_to_choose() -> None:
    text = "[Service]\nExecStart=\nExecStart=/usr/bin/runner watch --metrics 127.0.0.1:9464\nEnvironment=TZ=UTC\n"
    assert wrong(with_drop_in(UNITS["watcher"], text)) == []


def test_where_nothing_runs_each_thing_is_said_once() -> None:
    nothing = {"helper": Absent("/run/h.sock"), "watcher": Absent("/run/w.sock")}
    found = wrong(changed(processes=(), sockets=nothing, states=None, systemd=None, locks={}))
    assert [subject for subject, point in found if point.level == "fault"] == ["helper", "watcher"]
    commands = [point.command for _, point in found if point.level == "fault"]
    assert commands[0].startswith("setpriv --reuid h --regid h --init-groups --inh-caps=+setuid,+setgid")
    assert commands[0].endswith(" runner privexec --watcher-user w")
    assert commands[1] == "setpriv --reuid w --regid w --init-groups runner watch"


def test_what_this_user_may_not_see_of_many_sites_is_said_once() -> None:
    hidden = {name: evolve(site, rundir=NOT_BY_THIS_USER) for name, site in GOOD.host.sites.items()}
    locks = dict.fromkeys(CONFIG.sites, NOT_BY_THIS_USER)
    found = wrong(changed(host=evolve(GOOD.host, sites=hidden), locks=locks))
    assert [(subject, point.level, point.hint) for subject, point in found] == [
        ("sites", "skipped", "run it as root"),
        ("locks", "skipped", "run it as root"),
    ]


UIDS = st.integers(0, 11)
MASKS = st.integers(0, 2**41)
UNSEEN = st.sampled_from([HUNG, NOT_BY_THIS_USER])
ABSENT = st.just(Absent("/somewhere"))
PROCESSES = st.lists(
    st.builds(
        evolve,
        st.sampled_from([HELPER, WATCHER]),
        pid=st.integers(1, 300),
        uid=st.integers(0, 3),
        held=MASKS,
        effective=MASKS,
        bounding=MASKS,
        groups=st.frozensets(st.integers(0, 40)),
        has_old_program=st.none() | st.booleans(),
    ),
    max_size=4,
).map(tuple)
SOCKETS = st.builds(
    evolve,
    st.sampled_from(list(GOOD.sockets.values())),
    uid=st.integers(0, 3),
    mode=st.integers(0, 0o7777),
    is_socket=st.booleans(),
    listener=st.none() | st.integers(1, 300),
    answer=st.sampled_from([None, {}, {"ok": False, "error": "no\x1b"}, HELPER_SAYS, WATCHER_SAYS]),
    why_not=st.none() | st.text() | UNSEEN,
)
DIRECTORIES = st.builds(
    lambda **changes: evolve(next(iter(GOOD.directories.values())), **changes),
    uid=st.integers(0, 3),
    mode=st.integers(0, 0o7777),
    is_directory=st.booleans(),
    is_read_only=st.booleans(),
    free_bytes=st.integers(0, 2**40),
    free_files=st.none() | st.integers(0, 2**20),
    may=st.none() | st.booleans() | UNSEEN,
)
LOCKS = (
    st.none()
    | UNSEEN
    | st.builds(
        Lock,
        st.builds(lockfile.Seen, st.none() | st.integers(1, 300), is_held=st.booleans()),
        st.none() | UIDS,
        st.text(),
        st.text(),
    )
)
STATES = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["watching", "starting", "pending"]),
        "reason": st.none() | st.text(),
        "remarks": st.lists(st.text(), max_size=2),
        "hold": st.none() | st.just({"by": 0, "at": 0.0}),
    }
)
NO_CONFIGURATION = Configuration(document=None, config=None, faults=(Finding(level="fault", what="bad"),))
CONFIGURATIONS = st.sampled_from([GOOD.configuration, NO_CONFIGURATION])
PROBES = st.none() | st.dictionaries(
    st.sampled_from(["one", "two", "other"]),
    st.sampled_from([PROBED, {"outcome": "refused", "reason": "\n"}, not_asked(may_pass=False)]),
)


@given(
    st.fixed_dictionaries(
        {
            "processes": PROCESSES | UNSEEN,
            "sockets": st.fixed_dictionaries(dict.fromkeys(GOOD.sockets, SOCKETS | ABSENT | UNSEEN)),
            "directories": st.fixed_dictionaries(dict.fromkeys(GOOD.directories, DIRECTORIES | ABSENT | UNSEEN)),
            "ledger": st.builds(Ledger, st.integers(0, 9), st.lists(st.text()).map(tuple)) | ABSENT | UNSEEN,
            "systemd": st.none() | st.just(GOOD.systemd) | st.builds(Systemd, st.none(), UNSEEN),
            "locks": st.fixed_dictionaries({}, optional=dict.fromkeys(CONFIG.sites, LOCKS)),
            "states": st.none() | st.fixed_dictionaries({}, optional=dict.fromkeys(CONFIG.sites, STATES)),
            "configuration": CONFIGURATIONS,
            "trusted": st.none() | UNSEEN | st.just(RunnerError("x", where="/y")),
            "probes": PROBES,
        }
    )
)
def test_whatever_the_facts_something_is_said_of_each_subject_on_lines_of_their_own(facts: dict[str, Any]) -> None:
    said = list(judge(changed(**facts)))
    subjects = {subject for subject, _ in said}
    assert subjects >= {subject for subject, _ in CHECKS}
    assert all(point.level in LEVELS for _, point in said)
    shown = list(lines(said))
    assert all(line.isprintable() for line in shown)
    different = {(subject, evolve(point, site="")) for subject, point in said}
    assert len(shown) == len(different) + sum(bool(point.command) for _, point in different) + 1
    assert shown[-1].startswith(f"{len(different)} points: ")


@given(PROCESSES)
def test_the_helpers_capabilities_are_ok_exactly_if_it_and_all_its_children_have_the_two(processes: Any) -> None:  # noqa: ANN401 - a tuple of processes
    facts = changed(processes=processes)
    running = facts.running("helper")
    found = [point.level for subject, point in judge(facts) if subject == "helper's capabilities"]
    if not running:
        assert found == ["skipped"]
        return
    is_right = all(each.held and each.effective == NEEDED and not each.bounding & ~NEEDED for each in running)
    has_more = any(each.held & ~NEEDED for each in processes if each.uid == running[0].uid)
    assert (found == ["ok"]) is (is_right and not has_more)
    assert not has_more or "fault" in found


@pytest.mark.parametrize(
    "lock",
    [
        Lock(HELD, 0, "/usr/sbin/sshd BaseRunner", "ssh.service"),
        Lock(HELD, 20, "BaseRunner.py", "of-another-site.service"),
        Lock(HELD, 10, "vim", "session.service"),
        Lock(HELD, None, "BaseRunner.py", "old.service"),
    ],
)
def test_no_process_is_to_be_ended_because_a_sites_people_have_written_its_number(lock: Lock) -> None:
    ((_, point),) = wrong(changed(locks={"one": lock}))
    assert (point.level, point.command) == ("fault", "rm /srv/one/.base_runner_lockfile")


def test_a_job_of_ours_that_poses_as_a_legacy_daemon_does_not_have_our_unit_stopped() -> None:
    ((_, point),) = wrong(changed(locks={"one": Lock(HELD, 10, "BaseRunner.py", UNITS["helper"])}))
    assert point.command == "kill 7"


def pending(facts: Facts) -> Facts:
    states = {**dict.fromkeys(CONFIG.sites, STATE), "one": {**STATE, "state": "pending", "reason": "so"}}
    return evolve(facts, states=states)


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        (GOOD, ""),
        (changed(locks={"one": Lock(HELD, 10, "BaseRunner.py", "old.service")}), "systemctl disable --now old.service"),
        (changed(locks={"two": Lock(HELD, 10, "BaseRunner.py", "old.service")}), ""),
        (with_process(WATCHER, groups=frozenset({1, 30})), RESTART_WATCHER),
        (changed(locks={"one": Lock(lockfile.Seen(None, is_held=False))}), ""),  # a mere warning
    ],
)
def test_with_a_pending_site_comes_what_mends_the_fault_that_is_found_there(facts: Facts, command: str) -> None:
    (point,) = (point for subject, point in wrong(pending(facts)) if subject == "sites' states")
    assert (point.what, point.command) == ("it is pending: so", command)


def test_several_daemons_none_of_which_listens_are_to_be_ended_and_one_started() -> None:
    two = (evolve(WATCHER, pid=5), evolve(WATCHER, pid=6), HELPER)
    found = wrong(changed(processes=two, sockets={**GOOD.sockets, "watcher": Absent("/run/w.sock")}))
    (point,) = (point for subject, point in found if subject == "watcher")
    assert (point.level, point.command) == ("warning", "kill 5 6")
    assert point.hint.endswith(f"then: systemctl start {UNITS['watcher']}")


def test_what_is_the_same_at_several_sites_is_one_line() -> None:
    said = [("sites", fault("/x does not exist", site=f"s{number}")) for number in range(10)]
    assert list(lines([*said[:1], ("clock", ok("right"))])) == [
        "fault    sites  site s0: /x does not exist",
        "ok       clock  right",
        "2 points: 1 fault, 1 ok.",
    ]
    assert list(lines(said)) == [
        "fault    sites  sites s0, s1, s2, s3, s4, s5, s6, s7 and 2 more: /x does not exist",
        "1 point: 1 fault.",
    ]


def test_where_processes_are_hidden_nothing_is_taken_for_stopped() -> None:
    found = wrong(changed(processes=NOT_BY_THIS_USER, is_root=False))
    assert {point.level for _, point in found} == {"skipped"}


def test_who_sees_some_sites_only_is_told_of_those() -> None:
    assert wrong(changed(states={"one": STATE}, is_root=False)) == []


def test_what_units_make_when_they_start_is_no_fault_while_they_do_not_run() -> None:
    gone = dict.fromkeys(GOOD.directories, Absent("/var"))
    facts = with_unit(UNITS["helper"], active_state="inactive")
    facts = evolve(facts, directories=gone, processes=(WATCHER,), sockets={**GOOD.sockets, "helper": Absent("/run")})
    faults = [(subject, point.command) for subject, point in wrong(facts) if point.level == "fault"]
    assert faults[0] == ("units", f"systemctl start {UNITS['helper']}")
    assert faults[1:] == [("directories", RESTART_WATCHER)] * 2
