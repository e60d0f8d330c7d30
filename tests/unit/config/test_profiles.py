"""What applications.yaml may say, what the built-in profiles are, and how mistakes are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from basestation_runner.config.parts import Host, Limits, Sandbox, TaskRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from basestation_runner.config.model import Config

DURATION = "(a number and s, m, h or d, such as 90m or 24h)"
MEMORY = "(a number and M, G or T, such as 512M or 128G)"
CPU = "(such as 200%, which is two processors)"
EVERY = "(limits.tasks counts every process and thread of a job)"
DIRECTORIES = "(list in job_exec_dirs the directories whose programs a job may name)"
WHOLE = "(a whole number from 0 to 2147483647, without a unit)"
AMOUNTS = "(for example {license_foam: 2, scratch_gb: 500})"
SANDBOX = "(known fields: network, inputs, outputs, job_inputs, job_outputs)"
JOB_ENV = "(job_env is for names that a job could not set otherwise)"
STEP = "(for example [/opt/steps/mount-data, --quiet])"
FORM = "(for example select[os == linux] rusage[license_foam=1])"
COMPOUND = "compound and alternative requirements ({…} || {…}, 2*{…} + …) are not supported (write one)"
RESOURCE = "(at most 64 letters, digits and '_', the first not a digit)"
BEGIN = "(begin each entry with '- name: …')"
KNOWN = "({job_id} and {queue_length} are known)"
SITES = "a: {watch_dir: /srv/a, runner_user: b}\n"
SITES_WITH_ALL = "a: {watch_dir: /srv/a, runner_user: b, applications: all}\n"
EXTRA = "applications: [{name: extra, scripts: [Extra.py]}]\n"


def test_the_built_in_profiles_serve_the_three_scripts_as_the_existing_daemon_does(load: Callable[..., Config]) -> None:
    applications = load(SITES).applications
    assert {name: application.scripts for name, application in applications.items()} == {
        "base": ("Base.py",),
        "base-login": ("BaseLogin.py",),
        "early-gps": ("GliderEarlyGPS.py",),
    }
    assert applications["base"].append_args == ("--job_id", "{job_id}", "--queue_length", "{queue_length}")
    assert applications["base-login"].append_args == applications["early-gps"].append_args == ()
    assert {application.strip_args for application in applications.values()} == {("--daemon",)}
    assert [application.timing_line for application in applications.values()] == [False, True, True]
    assert [application.visualiser for application in applications.values()] == [True, False, False]
    assert [application.priority for application in applications.values()] == ["normal", "normal", "interactive"]


def test_a_profile_with_every_field(load: Callable[..., Config]) -> None:
    made = load(
        SITES_WITH_ALL,
        """
        applications:
          - name: extra
            description: of all sorts
            scripts: [One.py, two]
            env: {LEVEL: "3"}
            append_args: ["--id={job_id}", "{queue_length}"]
            strip_args: ["-x"]
            timing_line: true
            visualiser: true
            priority: interactive
        """,
    ).applications["extra"]
    assert (made.name, made.description, made.scripts) == ("extra", "of all sorts", ("One.py", "two"))
    assert (made.env, made.append_args, made.strip_args) == (
        (("LEVEL", "3"),),
        ("--id={job_id}", "{queue_length}"),
        ("-x",),
    )
    assert (made.timing_line, made.visualiser, made.priority) == (True, True, "interactive")


def test_a_profile_says_all_that_a_job_must_have(load: Callable[..., Config]) -> None:
    config = load(
        SITES_WITH_ALL,
        """
        host: {attributes: {ssd: true, mem_gb: 64, os: linux}, resources: {license_foam: 2}}
        applications:
          - name: solver
            command: /opt/foam/bin/solve
            mode: sandbox
            sandbox: {network: true, inputs: [/srv/b, /srv/a/], job_outputs: [/srv/out]}
            launch_type: openmpi
            job_env: [PYTHONPATH, LD_LIBRARY_PATH]
            pre_exec: [/opt/steps/mount, --quiet]
            post_exec: [/opt/steps/unmount]
            job_pre_post_exec: allow
            job_exec_dirs: [/srv/steps]
            limits: {runtime: 24h, memory: 128G, cpu: 200%, tasks: 500}
            tasks: {min: 2, max: 16}
            resreq: select[ssd && mem_gb>=32] rusage[license_foam=1] span[hosts=1]
            leftovers: kill
        """,
    )
    made = config.applications["solver"]
    assert (made.command, made.claims, made.mode, made.launch_type) == (
        "/opt/foam/bin/solve",
        ("solve",),
        "sandbox",
        "openmpi",
    )
    assert made.sandbox == Sandbox(network=True, inputs=("/srv/a", "/srv/b"), job_outputs=("/srv/out",))
    assert made.job_env == ("LD_LIBRARY_PATH", "PYTHONPATH")
    assert (made.pre_exec, made.post_exec) == (("/opt/steps/mount", "--quiet"), ("/opt/steps/unmount",))
    assert (made.job_pre_post_exec, made.job_exec_dirs) == ("allow", ("/srv/steps",))
    assert made.limits == Limits(runtime=86400, memory=128 << 30, cpu=200, tasks=500)
    assert made.tasks == TaskRange(min=2, max=16)
    assert str(made.resreq) == "select[mem_gb >= 32 && ssd] rusage[license_foam=1] span[hosts=1]"
    assert made.leftovers == "kill"
    assert config.host == Host(
        attributes=(("mem_gb", 64), ("os", "linux"), ("ssd", True)), resources=(("license_foam", 2),)
    )
    assert config.application_for(config.sites["a"], "solve") == made


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("runtime: 60m", "runtime: 1h"),
        ("runtime: 1d", "runtime: 86400s"),
        ("memory: 2048M", "memory: 2G"),
        ("memory: 1024G", "memory: 1T"),
    ],
)
def test_the_same_limit_in_another_unit_is_the_same(load: Callable[..., Config], one: str, other: str) -> None:
    profile = "applications: [{{name: b, limits: {{{}}}}}]"
    assert load(SITES, profile.format(one)) == load(SITES, profile.format(other))


@pytest.mark.parametrize(
    "content", ["", "# all commented out\n", "{}", "applications: []", "default_application: null"]
)
def test_an_empty_file_leaves_the_built_in_profiles(load: Callable[..., Config], content: str) -> None:
    assert load(SITES, content) == load(SITES)


def test_a_file_adds_profiles_and_replaces_whole_ones_by_name(load: Callable[..., Config]) -> None:
    config = load(SITES, EXTRA + "  # and\n")
    assert list(config.applications) == ["base", "base-login", "early-gps", "extra"]
    replaced = load(SITES, "applications: [{name: base, scripts: [Other.py]}]").applications["base"]
    assert (replaced.scripts, replaced.append_args, replaced.visualiser) == (("Other.py",), (), False)


def test_a_site_uses_the_built_in_profiles_unless_it_names_others(load: Callable[..., Config]) -> None:
    config = load(SITES + "b: {watch_dir: /b, runner_user: b, applications: [extra]}", EXTRA)
    assert config.sites["a"].applications == ("base", "base-login", "early-gps")
    assert config.sites["b"].applications == ("extra",)
    assert load(SITES_WITH_ALL, EXTRA).sites["a"].applications == ("base", "base-login", "early-gps", "extra")


def test_the_default_application_takes_what_no_profile_claims_at_sites_that_may_use_it(
    load: Callable[..., Config],
) -> None:
    config = load(
        SITES + "b: {watch_dir: /b, runner_user: b, applications: [base]}\n",
        "default_application: extra\n" + EXTRA,
    )
    ours, narrowed = config.sites["a"], config.sites["b"]
    assert ours.applications == ("base", "base-login", "early-gps", "extra")
    assert config.application_for(ours, "Base.py") == config.applications["base"]
    assert config.application_for(ours, "Unheard.py") == config.applications["extra"]
    assert config.application_for(narrowed, "Base.py") == config.applications["base"]
    assert config.application_for(narrowed, "Unheard.py") is None
    assert load(SITES).application_for(load(SITES).sites["a"], "Unheard.py") is None


def test_a_script_is_not_served_by_a_profile_that_the_site_may_not_use(load: Callable[..., Config]) -> None:
    config = load(SITES, EXTRA)
    assert config.application_for(config.sites["a"], "Extra.py") is None


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("default_aplication: base", "1:1: default_aplication: unknown field (did you mean default_application?)"),
        ("default_application: bas", "1:22: default_application: application bas is not defined (did you mean base?)"),
        ("hosts: {}", "1:1: hosts: unknown field (did you mean host?)"),
        ("applications: {base: {}}", f"1:15: applications: expected a list of entries, found a mapping {BEGIN}"),
        ("applications:", f"1:14: applications: expected a list of entries, found nothing {BEGIN}"),
        (
            "[]",
            "1:1: expected a mapping of fields, found a list (known fields: default_application, host, applications)",
        ),
        (
            "applications: [base]",
            "1:16: applications[0]: expected a mapping of fields, found the text 'base' (required fields: name)",
        ),
        ("applications: [{scripts: [a]}]", "1:16: applications[0].name: is missing (this field is required)"),
        (
            "applications: [{name: all}]",
            (
                "1:23: applications[0].name: 'all' cannot be the name of an application "
                "(in a site's list it means every application)"
            ),
        ),
        ("applications: [{name: b, script: a}]", "1:26: applications[0].script: unknown field (did you mean scripts?)"),
        (
            "applications: [{name: b, scripts: a}]",
            "1:35: applications[0].scripts: expected a list of scripts, found the text 'a' (for example [Base.py])",
        ),
        (
            "applications: [{name: b, scripts: [a, a]}]",
            "1:39: applications[0].scripts[1]: the text 'a' is listed twice (remove one of the two)",
        ),
        (
            "applications: [{name: b, priority: high}]",
            "1:36: applications[0].priority: expected interactive or normal, found the text 'high'",
        ),
        (
            "applications: [{name: b, append_args: ['{job}']}]",
            "1:40: applications[0].append_args[0]: '{job}' contains an unknown placeholder " + KNOWN,
        ),
        (
            "applications: [{name: b, append_args: ['{{job_id}}']}]",
            "1:40: applications[0].append_args[0]: '{{job_id}}' contains an unknown placeholder " + KNOWN,
        ),
        (
            "applications: [{name: b, append_args: [5]}]",
            "1:40: applications[0].append_args[0]: expected text, found the number 5 (put the value in quotes)",
        ),
        (
            "applications: [{name: b, strip_args: ['']}]",
            "1:39: applications[0].strip_args[0]: an empty argument (remove it)",
        ),
        ("applications: [{name: b}, {name: b}]", "1:34: applications[1].name: b is there twice (first in line 1)"),
    ],
)
def test_a_mistake_is_answered_with_its_place_and_what_would_be_right(
    faults_of: Callable[..., list[str]], content: str, answer: str
) -> None:
    assert faults_of(SITES, content) == ["applications.yaml:" + answer]


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ("mode: container", "mode: containers are not supported yet (write direct or sandbox)"),
        ("mode: jail", "mode: expected direct or sandbox, found the text 'jail'"),
        ("launch_type: mpi", "launch_type: expected serial or openmpi or mpich, found the text 'mpi'"),
        ("leftovers: keep", "leftovers: expected report or kill, found the text 'keep'"),
        ("command: solve", "command: 'solve' is not an absolute path (write the whole path from / on)"),
        (
            "command: /opt/a b",
            "command: 'a b' is not a script's file name (the file's name alone, without a directory)",
        ),
        ("command: /b, scripts: [a]", "command: a profile has scripts or a command, not both (make two profiles)"),
        ("sandbox: {}", "sandbox: sandbox is for profiles of mode sandbox (write mode: sandbox)"),
        (
            "mode: sandbox, sandbox: {net: true}",
            "sandbox.net: unknown field (did you mean network?)",
        ),
        ("mode: sandbox, sandbox: true", f"sandbox: expected a mapping of fields, found true {SANDBOX}"),
        (
            "mode: sandbox, sandbox: {inputs: [srv]}",
            "sandbox.inputs[0]: 'srv' is not an absolute path (write the whole path from / on)",
        ),
        ("limits: {runtime: 24}", f"limits.runtime: expected a duration, found the number 24 {DURATION}"),
        ("limits: {runtime: 24 h}", f"limits.runtime: expected a duration, found the text '24 h' {DURATION}"),
        ("limits: {runtime: 0s}", "limits.runtime: the text '0s' is out of range (from 1s to 3650d)"),
        ("limits: {runtime: 9999d}", "limits.runtime: the text '9999d' is out of range (from 1s to 3650d)"),
        (
            "limits: {memory: 1.5G}",
            f"limits.memory: expected an amount of memory, found the text '1.5G' {MEMORY}",
        ),
        (
            "limits: {cpu: 200}",
            f"limits.cpu: expected per cent of a processor, found the number 200 {CPU}",
        ),
        ("limits: {tasks: 0}", "limits.tasks: the number 0 is out of range (from 1 to 4194304)"),
        ("tasks: 4", "tasks: expected a mapping of fields, found the number 4 (known fields: min, max)"),
        ("tasks: {max: 4}", "tasks: a serial job is one task (write launch_type: openmpi or mpich)"),
        ("launch_type: mpich, tasks: {min: 4, max: 2}", "tasks.min: min (4) is above max (2)"),
        (
            "launch_type: mpich, tasks: {min: 4}, limits: {tasks: 3}",
            f"limits.tasks: 3 processes are not enough for 4 tasks {EVERY}",
        ),
        ("job_env: [MY_LEVEL]", f"job_env[0]: a job may set MY_LEVEL anyway {JOB_ENV}"),
        ("job_env: [PATH]", "job_env[0]: PATH is always set by the runner (a job cannot set it)"),
        ("job_env: [RUNNER_X]", "job_env[0]: RUNNER_X is always set by the runner (a job cannot set it)"),
        (
            "job_env: [LD_PRELOAD, LD_PRELOAD]",
            "job_env[1]: the text 'LD_PRELOAD' is listed twice (remove one of the two)",
        ),
        ("pre_exec: [mount]", "pre_exec[0]: 'mount' is not an absolute path (write the whole path from / on)"),
        ("pre_exec: []", f"pre_exec: no program is named {STEP}"),
        (
            "post_exec: /opt/a",
            f"post_exec: expected a list of a program's path and its arguments, found the text '/opt/a' {STEP}",
        ),
        (
            "job_pre_post_exec: allow",
            f"job_pre_post_exec: no directory is listed for it {DIRECTORIES}",
        ),
        ("job_exec_dirs: [/srv]", "job_exec_dirs: no job may use it (write job_pre_post_exec: allow)"),
        ("resreq: 'select[a'", "resreq: character 9: expected ']', found the end " + FORM),
        ("resreq: '{select[a]}'", f"resreq: character 1: {COMPOUND}"),
    ],
)
def test_a_mistake_in_what_a_job_must_have_is_answered_with_what_would_be_right(
    faults_of: Callable[..., list[str]], fields: str, answer: str
) -> None:
    (fault,) = faults_of(SITES, f"applications: [{{name: b, {fields}}}]")
    position, found = fault.split(": applications[0].", 1)
    assert found == answer
    assert position.startswith("applications.yaml:1:")


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("[]", "1:7: host: expected a mapping of fields, found a list (known fields: attributes, resources)"),
        ("{attribute: {}}", "1:8: host.attribute: unknown field (did you mean attributes?)"),
        (
            "{attributes: {os: [a]}}",
            "1:25: host.attributes.os: expected a text, a number, true or false, found a list",
        ),
        (
            "{attributes: {os: 1e999}}",
            "1:25: host.attributes.os: expected a text, a number, true or false, found the number inf",
        ),
        ("{attributes: {a-b: 1}}", f"1:21: host.attributes.a-b: 'a-b' is not a valid name {RESOURCE}"),
        (
            "{resources: {foam: 1.5}}",
            f"1:26: host.resources.foam: expected a whole number, found the number 1.5 {WHOLE}",
        ),
        (
            "{resources: [foam]}",
            f"1:19: host.resources: expected a mapping of names to amounts, found a list {AMOUNTS}",
        ),
    ],
)
def test_a_mistake_about_the_host_is_answered(faults_of: Callable[..., list[str]], host: str, answer: str) -> None:
    assert faults_of(SITES, f"host: {host}") == [f"applications.yaml:{answer}"]


def test_all_mistakes_of_a_part_are_told_together(faults_of: Callable[..., list[str]]) -> None:
    found = faults_of(SITES, "applications: [{name: b, limits: {cpu: 5, memory: 1G, time: 1}, tasks: {min: 0}}]")
    assert [fault.split(": ")[1] for fault in found] == [
        "applications[0].limits.cpu",
        "applications[0].limits.time",
        "applications[0].tasks.min",
    ]


def test_a_command_and_a_script_of_one_name_are_claimed_twice(faults_of: Callable[..., list[str]]) -> None:
    profiles = "applications: [{name: c, command: /opt/Base.py}]"
    (fault,) = faults_of(SITES_WITH_ALL, profiles)
    assert fault.startswith("applications.yaml:1:35: applications[0].command: application base claims Base.py too, ")


@pytest.mark.parametrize("script", ["a/b", "/a", "..", ".", "-c", "''", "a b", '"a\\nb"', "a" * 256])
def test_a_script_is_a_bare_file_name(faults_of: Callable[..., list[str]], script: str) -> None:
    (fault,) = faults_of(SITES, f"applications: [{{name: b, scripts: [{script}]}}]")
    assert fault.startswith("applications.yaml:1:36: applications[0].scripts[0]: ")


def test_a_script_that_two_profiles_of_one_site_claim_is_refused_once(faults_of: Callable[..., list[str]]) -> None:
    profiles = "applications:\n- {name: base, scripts: [Base.py, BaseLogin.py]}\n- {name: z, scripts: [A, Base.py]}\n"
    both = "may use both (claim it once, or list only one of the two in the site's applications)"
    login = f"2:35: applications[0].scripts[1]: application base-login claims BaseLogin.py too, and site a {both}"
    base = f"3:26: applications[1].scripts[1]: application base claims Base.py too, and site b {both}"
    sites = SITES + SITES_WITH_ALL.replace("a:", "b:").replace("/a", "/b")
    assert faults_of(sites, profiles) == ["applications.yaml:" + login, "applications.yaml:" + base]


def test_a_script_may_be_claimed_twice_where_no_site_may_use_both(load: Callable[..., Config]) -> None:
    profiles = "applications: [{name: other, scripts: [Base.py]}]"
    config = load(SITES + "b: {watch_dir: /b, runner_user: b, applications: [other]}", profiles)
    assert config.application_for(config.sites["a"], "Base.py") == config.applications["base"]
    assert config.application_for(config.sites["b"], "Base.py") == config.applications["other"]


def test_faults_of_both_files_are_told_together_without_those_that_only_follow_from_others(
    faults_of: Callable[..., list[str]],
) -> None:
    sites = "a: {watch_dir: /a, runner_user: root, applications: [new, none]}"
    profiles = "applications: [{name: new, scripts: [Base.py], priority: 5}, {name: base, scripts: 5}]"
    assert [fault.split(": ")[1] for fault in faults_of(sites, profiles)] == [
        "applications[0].priority",
        "applications[1].scripts",
        "a.runner_user",
        "a.applications[1]",
    ]


def test_with_profiles_that_are_not_even_yaml_the_sites_are_checked_all_the_same(
    faults_of: Callable[..., list[str]],
) -> None:
    found = faults_of("a: {watch_dir: a, runner_user: a, applications: [unknown]}", "applications: [")
    assert [fault.split(": ")[0] for fault in found] == ["applications.yaml:1:16", "sites.yaml:1:16"]
