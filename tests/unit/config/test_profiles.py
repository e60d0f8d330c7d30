"""What applications.yaml may say, what the built-in profiles are, and how mistakes are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from basestation_runner.config.model import Config

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
        ("hosts: {}", "1:1: hosts: unknown field (known: default_application, applications)"),
        ("applications: {base: {}}", f"1:15: applications: expected a list of entries, found a mapping {BEGIN}"),
        ("applications:", f"1:14: applications: expected a list of entries, found nothing {BEGIN}"),
        ("[]", "1:1: expected a mapping of fields, found a list (known fields: default_application, applications)"),
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
