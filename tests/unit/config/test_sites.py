"""What sites.yaml may say, and how each mistake in it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from basestation_runner.config.model import NO_CONTAINERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from basestation_runner.config.model import Config

WHOLE = "(a whole number from 1 to 4194304, without a unit)"
LIST = "(a list such as [base, early-gps], or all)"
MINIMAL = "a:\n  watch_dir: /srv/a\n  runner_user: runner-a\n"


def test_the_defaults_of_a_minimal_entry(load: Callable[..., Config]) -> None:
    site = load(MINIMAL).sites["a"]
    assert (site.name, site.watch_dir, site.runner_user) == ("a", "/srv/a", "runner-a")
    assert (site.groups, site.jail_root, site.jailed, site.archive, site.ignore_lock) == (
        None,
        None,
        False,
        False,
        False,
    )
    assert (site.python_version, site.basestation_dir) == ("/opt/basestation/bin/python", "/usr/local/basestation3")
    assert site.applications == ("base", "base-login", "early-gps")
    assert (site.queue_scripts, site.max_running, site.tasks_max, site.env) == (True, None, 4096, ())
    assert (site.cpu_quota_pct, site.cpu_weight, site.memory_high_mb, site.memory_max_mb) == (None, None, None, None)
    assert site.not_supported is None
    assert site.roots == ("/srv/a",)


def test_every_field_is_taken(load: Callable[..., Config]) -> None:
    site = load("""
        all.of_it-1:
          watch_dir: /srv//a/./rundir/
          runner_user: DOMAIN\\runner
          groups: [ioptest, 4711, domain users, 4294967294]
          jail_root: /srv/a
          jailed: false
          archive: true
          ignore_lock: true
          python_version: /usr/bin/python3
          basestation_dir: /opt/basestation3
          applications: [early-gps, base]
          queue_scripts: false
          max_running: 3
          cpu_quota_pct: 250
          cpu_weight: 10000
          memory_high_mb: 512
          memory_max_mb: 512
          tasks_max: 64
          env: {ZED: "1", DATA_DIR: /srv/data}
    """).sites["all.of_it-1"]
    assert site.watch_dir == "/srv/a/rundir"
    assert site.roots == ("/srv/a/rundir", "/srv/a")
    assert site.runner_user == "DOMAIN\\runner"
    assert site.groups == ("ioptest", 4711, "domain users", 4294967294)
    assert (site.jailed, site.archive, site.ignore_lock, site.queue_scripts) == (False, True, True, False)
    assert (site.python_version, site.basestation_dir) == ("/usr/bin/python3", "/opt/basestation3")
    assert site.applications == ("base", "early-gps")
    assert (site.max_running, site.cpu_quota_pct, site.cpu_weight, site.tasks_max) == (3, 250, 10000, 64)
    assert (site.memory_high_mb, site.memory_max_mb) == (512, 512)
    assert site.env == (("DATA_DIR", "/srv/data"), ("ZED", "1"))


def test_two_jails_a_wide_root_and_groups_are_one_good_file(load: Callable[..., Config]) -> None:
    sites = load("""
        # Two jails sharing one account, one unjailed site with a wider root, one with groups and limits.
        seaglider:
          watch_dir: /home/seaglider/home/rundir
          jail_root: /home/seaglider
          runner_user: ioprunner
        train:
          watch_dir: /home/trainjail/home/rundir
          jail_root: /home/trainjail
          runner_user: ioprunner
        test:
          watch_dir: /home/rundir
          jail_root: /home
          jailed: false
          runner_user: sg090-runner
        ioptest:
          watch_dir: /srv/ioptest/rundir
          runner_user: runner-ioptest
          groups: [ioptest, instruments]   # effective group first, then supplementary
          archive: true
          cpu_quota_pct: 60
          cpu_weight: 50
    """).sites
    assert list(sites) == ["seaglider", "train", "test", "ioptest"]
    assert [site.jailed for site in sites.values()] == [True, True, False, False]
    assert sites["test"].roots == ("/home/rundir", "/home")
    assert sites["ioptest"].groups == ("ioptest", "instruments")


def test_a_jail_root_makes_a_site_jailed_unless_the_file_says_otherwise(load: Callable[..., Config]) -> None:
    assert load(MINIMAL + "  jail_root: /srv\n").sites["a"].jailed
    assert not load(MINIMAL + "  jail_root: /srv\n  jailed: false\n").sites["a"].jailed
    assert not load(MINIMAL + "  jail_root: null\n").sites["a"].jailed


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("runner_usr: b", "4:3: a.runner_usr: unknown field (did you mean runner_user?)"),
        ("Max-Running: 5", "4:3: a.Max-Running: unknown field (did you mean max_running?)"),
        ("name: b", "4:3: a.name: unknown field (the entry's key says it)"),
        ("archive: yes", "4:12: a.archive: expected true or false, found the text 'yes' (write true, without quotes)"),
        ("archive: Off", "4:12: a.archive: expected true or false, found the text 'Off' (write false, without quotes)"),
        (
            "archive: 'true'",
            "4:12: a.archive: expected true or false, found the text 'true' (write true, without quotes)",
        ),
        ("archive: 1", "4:12: a.archive: expected true or false, found the number 1 (write true or false)"),
        ("archive:", "4:11: a.archive: expected true or false, found nothing (write true or false)"),
        ("jail_root: srv", "4:14: a.jail_root: 'srv' is not an absolute path (write the whole path from / on)"),
        ("jail_root: /srv/../b", "4:14: a.jail_root: '/srv/../b' contains '..' (write the path without it)"),
        (
            "jail_root: 5",
            "4:14: a.jail_root: expected text, found the number 5 (put the value in quotes if text is meant)",
        ),
        ("jailed: true", "4:11: a.jailed: a jailed site needs jail_root (name jail_root, or write jailed: false)"),
        (
            "groups: []",
            "4:11: a.groups: the list of groups is empty (leave groups out to use the account's own groups)",
        ),
        ("groups: b", "4:11: a.groups: expected a list of groups, found the text 'b' (for example [science, 4711])"),
        ("groups: [b, '5']", "4:15: a.groups[1]: '5' is a number in quotes (write a group's number without quotes)"),
        ("tasks_max: ten", f"4:14: a.tasks_max: expected a whole number, found the text 'ten' {WHOLE}"),
        ("tasks_max: true", f"4:14: a.tasks_max: expected a whole number, found true {WHOLE}"),
        ("tasks_max: null", f"4:14: a.tasks_max: expected a whole number, found nothing {WHOLE}"),
        ("cpu_quota_pct: 0", "4:18: a.cpu_quota_pct: the number 0 is out of range (from 1 to 1000000)"),
        (
            "cpu_quota_pct: 60%",
            (
                "4:18: a.cpu_quota_pct: expected a whole number, found the text '60%' "
                "(a whole number from 1 to 1000000, without a unit)"
            ),
        ),
        ("cpu_weight: 10001", "4:15: a.cpu_weight: the number 10001 is out of range (from 1 to 10000)"),
        ("max_running: 0", "4:16: a.max_running: the number 0 is out of range (from 1 to 4194304)"),
        ("max_running: 1.5", f"4:16: a.max_running: expected a whole number, found the number 1.5 {WHOLE}"),
        ("memory_max_mb: -1", "4:18: a.memory_max_mb: the number -1 is out of range (from 1 to 1099511627776)"),
        ("env: {A: 5}", "4:12: a.env.A: expected text, found the number 5 (put the value in quotes)"),
        ("env: {A: on, B: true}", "4:19: a.env.B: expected text, found true (put the value in quotes)"),
        (
            "env: {1A: b}",
            "4:9: a.env.1A: '1A' is not a variable's name (letters, digits and '_', the first not a digit)",
        ),
        ('env: {A: "b\\0"}', "4:12: a.env.A: the value contains a NUL character"),
        ("env: {RUNNER_SITE: b}", "4:9: a.env.RUNNER_SITE: RUNNER_SITE is always set by the runner (use another name)"),
        ("env:", "4:7: a.env: expected a mapping of names to texts, found nothing (remove the line, or write {})"),
        ("applications: [bas]", "4:18: a.applications[0]: application bas is not defined (did you mean base?)"),
        (
            "applications: base",
            f"4:17: a.applications: expected a list of application names, or all, found the text 'base' {LIST}",
        ),
        (
            "applications: [base, base]",
            "4:24: a.applications[1]: the text 'base' is listed twice (remove one of the two)",
        ),
        ("docker_mount: [5]", "4:18: a.docker_mount[0]: expected text, found the number 5 (put the value in quotes)"),
    ],
)
def test_a_wrong_field_is_answered_with_its_place_and_what_would_be_right(
    fault_of: Callable[[str], str], line: str, answer: str
) -> None:
    assert fault_of(line) == answer


@pytest.mark.parametrize("account", ["root", "0", "'0'", "0x0", "-0"])
def test_no_site_runs_as_root(faults_of: Callable[..., list[str]], account: str) -> None:
    assert faults_of(f"a: {{watch_dir: /srv/a, runner_user: {account}}}") == [
        "sites.yaml:1:37: a.runner_user: jobs never run as root (the name of an account that only this site's jobs use)"
    ]


@pytest.mark.parametrize("account", ["1007", "''", "a/b", ".", "..", "-a", "'a '", '"a\\nb"', "[a]", "null", "a:b"])
def test_an_account_is_named(faults_of: Callable[..., list[str]], account: str) -> None:
    (fault,) = faults_of(f"a: {{watch_dir: /srv/a, runner_user: {account}}}")
    assert fault.startswith("sites.yaml:1:37: a.runner_user: ")


@pytest.mark.parametrize(
    "group", ["0", "root", "-1", "4294967295", "4294967296", "9" * 99, "1.0", "true", "null", "''", "[]"]
)
def test_group_0_the_unchanged_group_and_what_is_no_group_are_refused(
    fault_of: Callable[[str], str], group: str
) -> None:
    assert fault_of(f"groups: [b, {group}]").startswith("4:15: a.groups[1]: ")


def test_at_most_256_groups_are_listed_repeats_included(
    load: Callable[..., Config], fault_of: Callable[[str], str]
) -> None:
    groups = load(f"{MINIMAL}  groups: {[7] * 256}").sites["a"].groups
    assert groups == (7,) * 256
    assert fault_of(f"groups: {[7] * 257}") == "4:11: a.groups: 257 groups are listed (at most 256)"


def test_throttling_starts_at_or_below_the_memory_maximum(faults_of: Callable[..., list[str]]) -> None:
    what = "memory_high_mb (5) is above memory_max_mb (4) (throttling starts below the maximum)"
    found = faults_of(MINIMAL + "  memory_max_mb: 4\n  memory_high_mb: 5\n")
    assert found == [f"sites.yaml:5:19: a.memory_high_mb: {what}"]


def test_container_fields_leave_a_site_valid_but_not_served(load: Callable[..., Config]) -> None:
    defaults = {
        "docker_image": "''",
        "docker_uid": -1,
        "docker_gid": -1,
        "docker_mount": [],
        "use_docker_basestation": "false",
    }
    written_out = MINIMAL + "".join(f"  {field}: {value}\n" for field, value in defaults.items())
    assert load(written_out).sites["a"].not_supported is None
    real = {
        "docker_image": "image:1",
        "docker_uid": 0,
        "docker_gid": 7,
        "docker_mount": ["/a:/b"],
        "use_docker_basestation": "true",
    }
    for field, value in real.items():
        assert load(f"{MINIMAL}  {field}: {value}\n").sites["a"].not_supported == NO_CONTAINERS


@pytest.mark.parametrize("name", ["A", "-a", ".a", "a/b", "../up", "''", '"a\\nb"', "a" * 65, "ä", "a b"])
def test_a_sites_name_must_suit_a_cgroup_and_a_log(faults_of: Callable[..., list[str]], name: str) -> None:
    (fault,) = faults_of(f"{name}: {{watch_dir: /srv/a, runner_user: b}}")
    assert fault.startswith("sites.yaml:1:1: ")
    assert "is not a valid name (at most 64 of a-z" in fault


def test_an_unquoted_no_is_a_good_name_and_an_unquoted_number_is_not(
    load: Callable[..., Config], faults_of: Callable[..., list[str]]
) -> None:
    assert list(load("no: {watch_dir: /srv/no, runner_user: b}").sites) == ["no"]
    assert list(load("'5': {watch_dir: /srv/5, runner_user: b}").sites) == ["5"]
    for key in ("5", "true", "1.5", "0x1f"):
        (fault,) = faults_of(f"{MINIMAL}{key}: {{watch_dir: /srv/5, runner_user: b}}")
        assert fault.startswith("sites.yaml:4:1: a key must be a text, found ")
        assert fault.endswith(f'(write "{key}")')


def test_two_sites_on_one_rundir_are_refused_however_it_is_spelt(faults_of: Callable[..., list[str]]) -> None:
    what = "/srv/a is the rundir of site a too, in line 2 (give each site a rundir of its own)"
    found = faults_of(MINIMAL + "b:\n  watch_dir: //srv/./a/\n  runner_user: b\n")
    assert found == [f"sites.yaml:5:14: b.watch_dir: {what}"]


def test_a_rundir_inside_another_is_refused_wherever_it_stands(faults_of: Callable[..., list[str]]) -> None:
    inner, outer = "in: {watch_dir: /srv/a/b/c, runner_user: b}", "out: {watch_dir: /srv/a, runner_user: b}"
    answer = "in.watch_dir: /srv/a/b/c lies inside the rundir of site out (put it beside the other, not inside)"
    assert faults_of(f"{inner}\n{outer}") == [f"sites.yaml:1:17: {answer}"]
    assert faults_of(f"{outer}\n{inner}") == [f"sites.yaml:2:17: {answer}"]


def test_rundirs_are_compared_by_components_and_roots_may_overlap(load: Callable[..., Config]) -> None:
    load("""
        a: {watch_dir: /srv/a, runner_user: b, jail_root: /}
        b: {watch_dir: /srv/ab, runner_user: b, jail_root: /srv/a, jailed: false}
    """)


def test_the_root_directory_is_no_rundir(faults_of: Callable[..., list[str]]) -> None:
    (fault,) = faults_of("a: {watch_dir: //, runner_user: b}")
    assert "/ cannot be a rundir" in fault


@pytest.mark.parametrize("path", ["/" + "a" * 256, "/a" * 2048, '"/a\\tb"', '"/\\U0001F600\\e"'])
def test_paths_that_no_file_can_have_are_refused(fault_of: Callable[[str], str], path: str) -> None:
    assert fault_of(f"jail_root: {path}").startswith("4:14: a.jail_root: ")


def test_missing_fields_are_shown_at_the_entrys_name(faults_of: Callable[..., list[str]]) -> None:
    assert faults_of("\n\na:\n  archive: true\n") == [
        "sites.yaml:3:1: a.watch_dir: is missing (this field is required)",
        "sites.yaml:3:1: a.runner_user: is missing (this field is required)",
    ]


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n", "{}", "null", "[]"])
def test_a_file_without_sites_is_refused(faults_of: Callable[..., list[str]], content: str) -> None:
    (fault,) = faults_of(content)
    assert ": no sites (a mapping with at least one site's name and its fields)" in fault


def test_a_file_that_is_no_mapping_is_refused(faults_of: Callable[..., list[str]]) -> None:
    hint = "a mapping with at least one site's name and its fields"
    assert faults_of("- a\n") == [f"sites.yaml:1:1: expected a mapping, found a list ({hint})"]
    assert faults_of("a: []") == [
        "sites.yaml:1:4: a: expected a mapping of fields, found a list (required fields: watch_dir, runner_user)"
    ]


def test_all_faults_are_told_at_once_in_the_order_of_their_places(faults_of: Callable[..., list[str]]) -> None:
    found = faults_of("""\
        A:
          watch_dir: srv
          watch_dir: /srv/b
          archive: yes
          groups: [b, 0, 4294967295]
          env: {1: a, B: 2}
        b:
          runner_usr: c
          jailed: true
          memory_high_mb: 2
          memory_max_mb: 1
          applications: [none, base, base]
        c: {watch_dir: /srv/c, runner_user: root, tasks_max: 0}
        d: {watch_dir: /srv/c/d, runner_user: d, tasks_max: x}
    """)
    assert [fault.removeprefix("sites.yaml:").split(": ", 2)[:2] for fault in found] == [
        ["1:1", "A"],
        ["1:1", "A.runner_user"],
        ["2:14", "A.watch_dir"],
        ["3:3", "A.watch_dir"],
        ["4:12", "A.archive"],
        ["5:15", "A.groups[1]"],
        ["5:18", "A.groups[2]"],
        ["6:9", "A.env"],
        ["6:18", "A.env.B"],
        ["7:1", "b.watch_dir"],
        ["7:1", "b.runner_user"],
        ["8:3", "b.runner_usr"],
        ["9:11", "b.jailed"],
        ["10:19", "b.memory_high_mb"],
        ["12:18", "b.applications[0]"],
        ["12:30", "b.applications[2]"],
        ["13:37", "c.runner_user"],
        ["13:54", "c.tasks_max"],
        ["14:16", "d.watch_dir"],
        ["14:53", "d.tasks_max"],
    ]


def test_what_a_file_says_is_echoed_escaped_and_cut(faults_of: Callable[..., list[str]]) -> None:
    (fault,) = faults_of('a: {watch_dir: "x\\n\\e[31m' + "y" * 500 + '", runner_user: b}')
    assert "'x\\n\\x1b[31myyy" in fault
    assert fault.isprintable()
    assert len(fault) < 250
