"""What a job may add to its application's profile: never less than the profile, in any order, every conflict told."""

from __future__ import annotations

from contextlib import suppress
from posixpath import dirname
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve, fields_dict
from hypothesis import assume, example, given
from hypothesis import strategies as st

from basestation_runner.config.additions import NOTHING, Additions, of_data
from basestation_runner.config.effective import ConflictsError, Effective, Value, effective
from basestation_runner.config.environment import is_always_set, runs_code
from basestation_runner.config.model import Application, Site
from basestation_runner.config.parts import Limits, Sandbox, TaskRange
from basestation_runner.config.resreq import SECTIONS, Requirement, parse
from basestation_runner.paths import lies_beneath

if TYPE_CHECKING:
    from random import Random

SITE = Site(name="one", watch_dir="/srv/one/run", runner_user="runner-one", env=(("SITE_VAR", "s"),))
JAILED = evolve(SITE, jail_root="/srv/one", jailed=True)
GROUPED = evolve(SITE, groups=("one", "data", 4711))
PROFILE = Application(
    name="solver",
    scripts=("Solve.py",),
    mode="sandbox",
    sandbox=Sandbox(inputs=("/data/tides",), job_inputs=("/data", "/srv/one/home"), job_outputs=("/out",)),
    launch_type="openmpi",
    env=(("LEVEL", "3"),),
    job_env=("PYTHONPATH",),
    pre_exec=("/opt/steps/mount",),
    post_exec=("/opt/steps/unmount",),
    job_pre_post_exec="allow",
    job_exec_dirs=("/srv/steps",),
    limits=Limits(runtime=3600, memory=8 << 30),
    tasks=TaskRange(min=2, max=8),
    resreq=parse("select[ssd] rusage[foam=1] span[hosts=1]"),
)


def conflicts(data: dict[str, Any], profile: Application = PROFILE, site: Site = SITE) -> list[str]:
    with pytest.raises(ConflictsError) as raised:
        effective(site, profile, of_data(data))
    return [str(conflict) for conflict in raised.value.conflicts]


def test_a_job_that_adds_nothing_has_the_profile_and_the_least_number_of_tasks() -> None:
    made = effective(SITE, PROFILE, NOTHING)
    assert made.env == {"LEVEL": Value("3", "profile"), "SITE_VAR": Value("s", "site")}
    assert made.tasks == Value(2, "profile")
    assert made.limits == {"memory": Value(8 << 30, "profile"), "runtime": Value(3600, "profile")}
    assert made.groups == Value(None, "site")
    assert (made.mode, made.launch_type) == (Value("sandbox", "profile"), Value("openmpi", "profile"))


def test_what_a_job_adds_is_told_from_what_the_profile_says() -> None:
    data = {
        "env": {"CASE": "a", "PYTHONPATH": "/x"},
        "pre_exec": ["/srv/steps/prepare", "-v"],
        "post_exec": ["/srv/steps/tidy"],
        "limits": {"runtime": "30m", "cpu": "50%"},
        "groups": ["one", 4711],
        "tasks": 4,
        "resreq": "select[big && ssd] rusage[scratch=5] order[load]",
        "inputs": ["/data/wind", "/data/tides"],
        "outputs": ["/out/a"],
    }
    assert effective(GROUPED, PROFILE, of_data(data)) == Effective(
        mode=Value("sandbox", "profile"),
        launch_type=Value("openmpi", "profile"),
        network=Value(value=False, origin="profile"),
        inputs=(Value("/data/tides", "profile"), Value("/data/wind", "job")),
        outputs=(Value("/out/a", "job"),),
        env={
            "CASE": Value("a", "job"),
            "LEVEL": Value("3", "profile"),
            "PYTHONPATH": Value("/x", "job"),
            "SITE_VAR": Value("s", "site"),
        },
        groups=Value(("one", 4711), "job"),
        limits={"cpu": Value(50, "job"), "memory": Value(8 << 30, "profile"), "runtime": Value(1800, "job")},
        tasks=Value(4, "job"),
        select=(Value("big", "job"), Value("ssd", "profile")),
        rusage={"foam": Value(1, "profile"), "scratch": Value(5, "job")},
        span=Value("hosts=1", "profile"),
        same=None,
        order=Value("load", "job"),
        before=(Value(("/opt/steps/mount",), "profile"), Value(("/srv/steps/prepare", "-v"), "job")),
        after=(Value(("/srv/steps/tidy",), "job"), Value(("/opt/steps/unmount",), "profile")),
    )


def test_the_sites_own_limits_and_variables_stand_over_the_profiles() -> None:
    site = evolve(SITE, memory_max_mb=1024, env=(("LEVEL", "5"),))
    made = effective(site, PROFILE, NOTHING)
    assert (made.env["LEVEL"], made.limits["memory"]) == (Value("5", "site"), Value(1 << 30, "site"))
    assert conflicts({"env": {"LEVEL": "1"}, "limits": {"memory": "2G"}}, site=site) == [
        "env.LEVEL: site one sets it to '5'",
        "limits.memory: 2G is above the 1G of site one",
    ]
    assert effective(evolve(site, memory_max_mb=1 << 20), PROFILE, NOTHING).limits["memory"].origin == "profile"


def test_paths_of_a_jailed_sites_job_are_as_seen_in_the_jail() -> None:
    made = effective(JAILED, PROFILE, of_data({"inputs": ["/home/sg123/a"]}))
    assert Value("/srv/one/home/sg123/a", "job") in made.inputs
    assert conflicts({"inputs": ["/data/wind"]}, site=JAILED)


@pytest.mark.parametrize(
    ("data", "answers"),
    [
        ({"env": {"LEVEL": "3"}}, ["env.LEVEL: application solver sets it to '3'"]),
        ({"env": {"SITE_VAR": "x"}}, ["env.SITE_VAR: site one sets it to 's'"]),
        ({"env": {"PATH": "/x"}}, ["env.PATH: the runner sets it for every job"]),
        (
            {"env": {"LD_PRELOAD": "/x"}},
            ["env.LD_PRELOAD: it can make other code run, and application solver allows of those: PYTHONPATH"],
        ),
        ({"limits": {"runtime": "61m"}}, ["limits.runtime: 61m is above the 1h of application solver"]),
        ({"tasks": 9}, ["tasks: application solver runs with 2 to 8"]),
        ({"tasks": 1}, ["tasks: application solver runs with 2 to 8"]),
        ({"resreq": "rusage[foam=1]"}, ["resreq: application solver has rusage[foam=1]"]),
        ({"resreq": "span[ptile=2]"}, ["resreq: application solver has span[hosts=1]"]),
        (
            {"inputs": ["/database/x"]},
            ["inputs: '/database/x' is not where application solver allows them: /data, /srv/one/home"],
        ),
        (
            {"pre_exec": ["/srv/steps/sub/x"]},
            ["pre_exec: '/srv/steps/sub/x' is not directly in a directory of application solver: /srv/steps"],
        ),
    ],
)
def test_a_conflict_names_what_stands_against_it(data: dict[str, Any], answers: list[str]) -> None:
    assert conflicts(data) == answers


def test_a_profile_that_allows_nothing_says_so() -> None:
    plain = Application(name="plain", pre_exec=("/opt/a",))
    assert conflicts(
        {"inputs": ["/a", "/b"], "outputs": ["/a"], "post_exec": ["/a"], "tasks": 2, "env": {"IFS": "x"}}, plain
    ) == [
        "inputs: application plain runs jobs in mode direct, where there are none",
        "outputs: application plain runs jobs in mode direct, where there are none",
        "env.IFS: it can make other code run, and application plain allows of those: none",
        "tasks: application plain runs with 1",
        "post_exec: application plain has job_pre_post_exec: forbid",
    ]


def test_groups_are_the_sites_with_the_same_effective_one_first() -> None:
    assert conflicts({"groups": ["data", "other", "one"]}, site=GROUPED) == [
        "groups: the first must be one, the effective group of site one",
        "groups: 'other' is not one of site one: one, data, 4711",
    ]
    assert effective(SITE, PROFILE, of_data({"groups": ["any"]})).groups == Value(("any",), "job")


def test_many_conflicts_are_one_short_line() -> None:
    with pytest.raises(ConflictsError) as raised:
        effective(SITE, PROFILE, of_data({"env": {f"LD_{'X' * 60}{number}": "" for number in range(50)}}))
    assert len(raised.value.conflicts) == 50
    assert str(raised.value).endswith("; and 47 more")
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES", "GCONV_PATH", "PYTHONPATH", "PYTHONSTARTUP"),
        *("PERL5LIB", "PERL5OPT", "RUBYOPT", "NODE_OPTIONS", "JAVA_TOOL_OPTIONS", "BASH_ENV", "ENV", "IFS"),
        *("OMPI_MCA_component_path", "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "MPLCONFIGDIR"),
        *("RUNNER_SITE", "RUNNER_ANYTHING"),
    ],
)
def test_no_job_sets_what_the_runner_sets_or_what_runs_other_code(name: str) -> None:
    assert is_always_set(name) or runs_code(name)


def test_a_variable_of_a_programs_own_is_a_jobs_to_set() -> None:
    assert not any(is_always_set(name) or runs_code(name) for name in ("CASE", "OMP_NUM_THREADS", "DATA_DIR", "R"))


# Properties

NAMES = st.sampled_from(["LEVEL", "CASE", "SITE_VAR", "PATH", "LD_PRELOAD", "PYTHONPATH", "RUNNER_X"])
ENVIRONMENTS = st.dictionaries(NAMES, st.sampled_from(["", "1", "2"]), max_size=4)
OWN_ENVIRONMENTS = st.dictionaries(st.sampled_from(["LEVEL", "SITE_VAR", "LD_PRELOAD", "PATH"]), st.just("3"))
AMOUNTS = st.none() | st.integers(1, 4)
LIMITS = st.builds(
    Limits,
    runtime=AMOUNTS,
    memory=AMOUNTS.map(lambda gib: gib and gib << 30),
    cpu=AMOUNTS,
    tasks=AMOUNTS,
)
PLACES = st.lists(st.sampled_from(["/", "/a", "/ab", "/a/b", "/srv/one/a", "/c"]), max_size=3, unique=True).map(
    lambda paths: tuple(sorted(paths))
)
GROUPS = st.none() | st.lists(st.sampled_from(["one", "data", 4711]), min_size=1, max_size=3).map(tuple)
STEPS = st.none() | st.sampled_from([("/s/a",), ("/s/b", "x"), ("/s/c/d",), ("/t/a",)])
TERMS = st.lists(st.sampled_from(["a", "b == 1", "(c || d)", "!(a && b)"]), max_size=3)
RESREQS = st.builds(
    lambda terms, rusage, **rest: evolve(
        parse(f"select[{' && '.join(terms)}]" if terms else ""), rusage=tuple(sorted(rusage.items())), **rest
    ),
    TERMS,
    st.dictionaries(st.sampled_from(["foam", "scratch"]), st.integers(1, 2)),
    span=st.sampled_from([None, "hosts=1"]),
    same=st.sampled_from([None, "a", "b"]),
    order=st.sampled_from([None, "a", "-a"]),
)
PROFILES = st.builds(
    Application,
    name=st.just("app"),
    mode=st.sampled_from(["direct", "sandbox"]),
    sandbox=st.builds(Sandbox, inputs=PLACES, outputs=PLACES, job_inputs=PLACES, job_outputs=PLACES),
    launch_type=st.sampled_from(["serial", "openmpi", "mpich"]),
    env=OWN_ENVIRONMENTS.map(lambda env: tuple(sorted(env.items()))),
    job_env=st.sampled_from([(), ("PYTHONPATH",)]),
    pre_exec=STEPS,
    post_exec=STEPS,
    job_pre_post_exec=st.sampled_from(["allow", "forbid"]),
    job_exec_dirs=st.sampled_from([(), ("/s",), ("/s", "/t")]),
    limits=LIMITS,
    tasks=st.builds(lambda low, more: TaskRange(min=low, max=low + more), st.integers(1, 3), st.integers(0, 2)),
    resreq=RESREQS,
)
SITES = st.builds(
    lambda groups, memory, env, jailed: evolve(
        JAILED if jailed else SITE, groups=groups, memory_max_mb=memory and memory << 10, env=tuple(sorted(env.items()))
    ),
    GROUPS,
    AMOUNTS,
    OWN_ENVIRONMENTS,
    st.booleans(),
)
ADDITIONS = st.builds(
    Additions,
    env=ENVIRONMENTS.map(lambda env: tuple(sorted(env.items()))),
    pre_exec=STEPS,
    post_exec=STEPS,
    limits=LIMITS,
    groups=GROUPS,
    tasks=AMOUNTS,
    resreq=RESREQS,
    inputs=PLACES,
    outputs=PLACES,
)


def without_conflicts(site: Site, profile: Application, additions: Additions) -> tuple[Additions, Effective]:
    """Given additions, return those parts of them that are allowed, so that few tries go to waste."""
    allowed = NOTHING
    for part in parts(additions):
        with suppress(ConflictsError):
            effective(site, profile, part)
            allowed = joined(allowed, part)
    return allowed, effective(site, profile, allowed)


def parts(additions: Additions) -> list[Additions]:
    """Return additions of one thing each that are these together."""
    singles: list[Additions] = [Additions(env=(entry,)) for entry in additions.env]
    singles += [Additions(limits=Limits(**{name: most})) for name, most in additions.limits.named.items()]
    singles += [Additions(inputs=(path,)) for path in additions.inputs]
    singles += [Additions(outputs=(path,)) for path in additions.outputs]
    singles += [Additions(**{name: getattr(additions, name)}) for name in ("pre_exec", "post_exec", "groups", "tasks")]
    singles += [Additions(resreq=Requirement(select=(term,))) for term in additions.resreq.select]
    singles += [Additions(resreq=Requirement(rusage=(entry,))) for entry in additions.resreq.rusage]
    for section in ("span", "same", "order"):
        singles.append(Additions(resreq=Requirement(**{section: getattr(additions.resreq, section)})))
    return singles


def joined(one: Additions, other: Additions) -> Additions:
    def either(name: str) -> Any:  # noqa: ANN401 - each field has its own type
        return getattr(other, name) or getattr(one, name)

    def united(name: str) -> Any:  # noqa: ANN401 - the same
        return tuple(sorted({*getattr(one, name), *getattr(other, name)}))

    resreq: dict[str, Any] = {
        name: tuple(sorted({*getattr(one.resreq, name), *getattr(other.resreq, name)}))
        if name in {"select", "rusage"}
        else getattr(other.resreq, name) or getattr(one.resreq, name)
        for name in SECTIONS
    }
    return Additions(
        limits=Limits(**{**one.limits.named, **other.limits.named}),
        resreq=Requirement(**resreq),
        **{name: united(name) for name in ("env", "inputs", "outputs")},
        **{name: either(name) for name in ("pre_exec", "post_exec", "groups", "tasks")},
    )


@given(SITES, PROFILES, ADDITIONS)
@example(GROUPED, PROFILE, Additions(groups=("one", 4711), inputs=("/data/x",), pre_exec=("/srv/steps/a",), tasks=3))
def test_no_addition_makes_a_job_weaker_than_its_profile(site: Site, profile: Application, wanted: Additions) -> None:
    additions, made = without_conflicts(site, profile, wanted)
    plain = effective(site, profile, NOTHING)
    # What cannot be changed
    assert (made.mode.value, made.launch_type.value) == (profile.mode, profile.launch_type)
    assert made.network.value is profile.sandbox.network
    # What can only grow, and what the profile has keeps its value
    for name in ("env", "rusage"):
        assert getattr(plain, name).items() <= getattr(made, name).items()
    for name in ("select", "inputs", "outputs"):
        assert set(getattr(plain, name)) <= set(getattr(made, name))
    for name in ("span", "same", "order"):
        assert getattr(profile.resreq, name) in {None, getattr(made, name) and getattr(made, name).value}
    # What can only shrink
    for name, most in profile.limits.named.items():
        assert made.limits[name].value <= most
    if site.memory_max_mb is not None:
        assert made.limits["memory"].value <= site.memory_max_mb << 20
    assert profile.tasks.min <= made.tasks.value <= profile.tasks.most
    if site.groups is not None:
        assert made.groups.value is not None
        assert set(made.groups.value) <= set(site.groups)
        assert made.groups.value[0] == site.groups[0]
    # Where it may come from
    for name, variable in made.env.items():
        assert variable.origin != "job" or (
            not is_always_set(name) and (not runs_code(name) or name in profile.job_env)
        )
    for field in ("inputs", "outputs"):
        prefixes = getattr(profile.sandbox, f"job_{field}")
        added = [place.value for place in getattr(made, field) if place.origin == "job"]
        assert not added or profile.mode == "sandbox"
        assert all(any(lies_beneath(path, prefix) for prefix in prefixes) for path in added)
    # The outer layer is outermost
    assert profile.pre_exec is None or made.before[0] == Value(profile.pre_exec, "profile")
    assert profile.post_exec is None or made.after[-1] == Value(profile.post_exec, "profile")
    for step in (*made.before, *made.after):
        assert step.origin == "profile" or (
            profile.job_pre_post_exec == "allow" and dirname(step.value[0]) in profile.job_exec_dirs
        )
    # And nothing that was asked for is left out
    assert all(made.env[name] == Value(value, "job") for name, value in additions.env)
    assert all(made.limits[name].value == most for name, most in additions.limits.named.items())
    assert set(additions.resreq.select) <= {term.value for term in made.select}
    assert additions.tasks in {None, made.tasks.value}


@given(SITES, PROFILES, ADDITIONS)
def test_what_a_job_is_run_with_taken_as_the_profile_changes_nothing(
    site: Site, profile: Application, wanted: Additions
) -> None:
    additions, made = without_conflicts(site, profile, wanted)
    assume(additions.pre_exec is None and additions.post_exec is None)  # a profile has one step each
    again = evolve(
        profile,
        env=tuple((name, value.value) for name, value in made.env.items()),
        sandbox=evolve(
            profile.sandbox,
            inputs=tuple(place.value for place in made.inputs),
            outputs=tuple(place.value for place in made.outputs),
        ),
        limits=Limits(**{name: value.value for name, value in made.limits.items()}),
        tasks=TaskRange(min=made.tasks.value),
        resreq=Requirement(
            select=tuple(term.value for term in made.select),
            rusage=tuple((name, value.value) for name, value in made.rusage.items()),
            **{name: value.value for name in ("span", "same", "order") if (value := getattr(made, name))},
        ),
    )
    assert plain(effective(evolve(site, groups=made.groups.value), again, NOTHING)) == plain(made)


def plain(made: Effective) -> dict[str, object]:
    """Return the values without their origins."""

    def bare(value: object) -> object:
        match value:
            case Value(inner, _):
                return inner
            case dict():
                return {name: bare(inner) for name, inner in value.items()}
            case tuple():
                return tuple(map(bare, value))
        return value

    return {name: bare(getattr(made, name)) for name in fields_dict(Effective)}


def shuffled(value: Any, random: Random) -> Any:  # noqa: ANN401 - JSON
    """Return additions' data that say the same in another order, some of it twice."""
    if isinstance(value, dict):
        return {
            name: shuffled(inner, random)
            if name in {"env", "limits", "inputs", "outputs"}
            else _other_order(inner, random)
            if name == "resreq"
            else inner
            for name, inner in random.sample(list(value.items()), len(value))
        }
    repeated = [*value, *value[:1]]
    return random.sample(repeated, len(repeated))


def _other_order(written: str, random: Random) -> str:
    made = parse(written)
    terms = random.sample([*made.select, *made.select], 2 * len(made.select))
    amounts = [f"{name}={amount}" for name, amount in random.sample(made.rusage, len(made.rusage))]
    sections = [
        f"select[{'&&'.join(terms)}]" if terms else "",
        f"rusage[{','.join(amounts)}]" if amounts else "",
        *(f"{name}[{body}]" for name in SECTIONS[2:] if (body := getattr(made, name))),
    ]
    return " ".join(random.sample(sections, len(sections)))


@given(SITES, PROFILES, ADDITIONS, st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_said_does_not_matter(
    site: Site, profile: Application, additions: Additions, random: Random
) -> None:
    def outcome(added: Additions) -> object:
        try:
            return effective(site, profile, added)
        except ConflictsError as error:
            return error.conflicts

    assert outcome(of_data(shuffled(additions.data, random))) == outcome(additions)


@given(SITES, PROFILES, ADDITIONS)
def test_every_conflict_is_told_at_once(site: Site, profile: Application, additions: Additions) -> None:
    def told(added: Additions) -> set[str]:
        try:
            effective(site, profile, added)
        except ConflictsError as error:
            return {str(conflict) for conflict in error.conflicts}
        return set()

    assert told(additions) == set().union(*map(told, parts(additions)))
