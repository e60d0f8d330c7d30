"""What a job's child is told to open and to execute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner import nss
from basestation_runner.privexec.identity import Identity
from basestation_runner.privexec.job import JobPlan, StepPlan, Work
from basestation_runner.privexec.order import Order, OrderedSite, RefusedError, Sandbox, Step

if TYPE_CHECKING:
    from basestation_runner.privexec.job import Found, Plan

JAIL: Final = "/home/seaglider"
HOME: Final = "/home/sg123"
MISSION: Final = f"{HOME}/mission1"
ACCOUNT: Final = nss.Account("runner-one", 1001, 1001, "/home/runner-one", "")
CACHE: Final = "/var/cache/baserunner-exec/runner-one"
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
PLACES = st.sampled_from([HOME, MISSION, f"{MISSION}/sg123.conf", f"{MISSION}2", "/home", "/etc/passwd", "--verbose"])


def order(**fields: Any) -> Order:  # noqa: ANN401 - as an order has them
    site = OrderedSite("one", "runner-one", None, ("/srv/one", JAIL), JAIL, None, None)
    defaults = Order(
        job_id="a1",
        site=site,
        application="base",
        timing_line=False,
        home=HOME,
        mission_dir=MISSION,
        log_file=f"{MISSION}/baselog.log",
        jailed=True,
        script="Base.py",
        program=("/usr/bin/python3", "/usr/local/basestation3/Base.py"),
        own_args=(),
        appended_args=("--job_id", "a1"),
        env={},
        request=None,
    )
    return defaults._replace(**fields)


def work(**fields: Any) -> Work:  # noqa: ANN401 - as an order has them
    return Work(order(**fields), ACCOUNT, Identity(1001, (2002, 1001)), "/var/cache/baserunner-exec")


def found(plan: Plan, **told: str) -> Found:
    """Return what a child says whose site has all that is wished for, and no link; `told` by a wish's first word."""
    ready = {"private": "1", "cache": "1", "try": "1", "here": f"16:{JAIL}{MISSION}", "place": "17:/data"} | told
    return {wish: ready.get(wish.words[0], "") for wish in (*plan.opening(), *plan.view())}


def executed(plan: Plan, **told: str) -> Any:  # noqa: ANN401 - an Execution, and its sandbox's parts
    facts = found(plan, **told)
    plan.take(facts)
    return plan.execution(facts)


def test_the_log_is_opened_first_and_the_program_seen_before_it_is_executed() -> None:
    assert [wish.words[0] for wish in JobPlan(work()).opening()] == [
        *("tree", "log", "enter", "directory", "program", "script", "private", "cache"),
    ]


def test_a_jailed_job_has_the_jail_alone_as_its_tree_and_any_other_all_roots() -> None:
    assert JobPlan(work()).opening()[0].words == ("tree", "1", "1", JAIL)
    assert JobPlan(work(jailed=False)).opening()[0].words == ("tree", "0", "2", "/srv/one", JAIL)


def test_a_log_that_is_made_gets_the_effective_group() -> None:
    assert JobPlan(work()).opening()[1].words == ("log", f"{MISSION}/baselog.log", "2002")


@given(st.lists(st.one_of(WORDS, PLACES), max_size=8))
def test_only_arguments_beneath_mission_and_home_directory_are_translated(words: list[str]) -> None:
    argv = executed(JobPlan(work(own_args=words))).argv
    expected = [JAIL + word if word == HOME or word.startswith((f"{HOME}/", f"{HOME}//")) else word for word in words]
    assert argv == ["/usr/bin/python3", "/usr/local/basestation3/Base.py", *expected, "--job_id", "a1"]


def test_an_argument_that_a_link_leads_elsewhere_is_where_that_leads() -> None:
    plan = JobPlan(work(own_args=(MISSION,)))
    assert executed(plan, translate="/srv/elsewhere").argv[2] == "/srv/elsewhere"


def test_an_unjailed_job_gets_its_arguments_as_they_are() -> None:
    plan = JobPlan(work(jailed=False, own_args=(MISSION,)))
    assert all(wish.words[0] != "translate" for wish in plan.opening())
    assert executed(plan).argv[2] == MISSION


@given(st.dictionaries(st.sampled_from(["PATH", "HOME", "USER", "RUNNER_SITE", "RUNNER_JOB_ID", "OTHER"]), WORDS))
def test_nothing_makes_a_job_another_sites_or_another_job(env: dict[str, str]) -> None:
    environment = executed(JobPlan(work(env=env))).environment
    assert (environment["RUNNER_SITE"], environment["RUNNER_JOB_ID"]) == ("one", "a1")


@pytest.mark.parametrize(
    ("told", "home", "has_cache"),
    [
        ({}, ACCOUNT.home, True),
        ({"private": "0"}, CACHE, True),
        ({"cache": "0"}, ACCOUNT.home, False),
        ({"private": "0", "cache": "0"}, "/nonexistent", False),
    ],
)
def test_home_is_a_directory_that_is_the_accounts_own(told: dict[str, str], home: str, *, has_cache: bool) -> None:
    plan = JobPlan(work())
    environment = executed(plan, **told).environment
    assert environment["HOME"] == home
    assert ("MPLCONFIGDIR" in environment) == has_cache
    assert bool(plan.warnings) != has_cache


def test_a_profiles_command_must_be_roots_own() -> None:
    wishes = JobPlan(work(program=("/opt/tool",))).opening()
    assert [wish.words for wish in wishes if wish.what == "the command /opt/tool"] == [
        ("program", "/opt/tool"),
        ("roots", "/opt/tool"),
    ]


def test_a_profiles_step_must_be_roots_own_and_gets_nothing_of_the_jobs() -> None:
    steps = {"before": [Step("profile", ("/opt/pre", "x")), Step("job", ("/opt/own",))]}
    told = work(env={"ADDED": "1", "SITES": "2"}, added_env=("ADDED",), **steps)
    outer, inner = StepPlan(told, 0), StepPlan(told, 1)
    assert [wish.words[0] for wish in outer.opening()] == ["try", "program", "roots", "private", "cache"]
    assert [wish.words[0] for wish in inner.opening()] == ["try", "program", "private", "cache"]
    assert "ADDED" not in executed(outer).environment
    assert executed(inner).environment["ADDED"] == "1"


def test_what_a_sandbox_shows_is_opened_last_and_handed_over() -> None:
    sandbox = Sandbox(network=False, inputs=[["/data", "/data"], ["/data", "/data"]], outputs=[])
    plan = JobPlan(work(sandbox=sandbox))
    assert [wish.words[0] for wish in plan.view()] == ["here", "here", "translate", "place"]
    execution = executed(plan)
    assert execution.argv[:3] == ["/usr/bin/bwrap", "--args", "4"]
    assert sorted(execution.sandbox.places) == [16, 17]
    assert b"--ro-bind-fd\x0017\x00/data\x00" in execution.sandbox.options
    assert b"--bind-fd\x0016\x00/home/seaglider/home/sg123/mission1\x00" in execution.sandbox.options


def test_a_step_of_a_jobs_own_does_not_run_in_a_sandbox_without_its_directory() -> None:
    sandbox = Sandbox(network=False, inputs=[], outputs=[])
    plan = StepPlan(work(sandbox=sandbox, after=[Step("job", ("/opt/own",))]), 0)
    with pytest.raises(RefusedError, match="mission directory is gone"):
        executed(plan, **{"try": "0"})
