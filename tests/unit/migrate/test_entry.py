"""What a legacy unit becomes in sites.yaml, and that nothing of it is lost silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.config.load import Source, load_sources
from basestation_runner.errors import RunnerError
from basestation_runner.migrate import unit as units
from basestation_runner.migrate.entry import Loss, People, Proposal, Variables, not_accepted, propose
from basestation_runner.migrate.legacy import DIRECTIVES, command_line, site_of
from basestation_runner.migrate.sitesfile import added
from basestation_runner.migrate.unit import Directive
from tests.unit.migrate import samples

PEOPLE = People(user="runner-alpha", groups=("alpha", "science", 4711), foreign=(), homes=("/nonexistent",))


def proposal(argv: str, text: str, people: People = PEOPLE, **values: str) -> Proposal:
    unit = units.parse(samples.shown(argv, **values), text)
    return propose("alpha", unit, people, Variables(values=unit.variables))


def is_valid(entry: dict[str, Any]) -> bool:
    text = added(Path("sites.yaml"), "", "alpha", entry)
    site = load_sources(Source("sites.yaml", text.encode()), None).sites["alpha"]
    return site.watch_dir == str(entry["watch_dir"])


def test_a_jailed_site() -> None:
    made = proposal(samples.JAILED_ARGV, samples.JAILED, Environment="PYTHONUNBUFFERED=true")
    assert made.entry == {
        "watch_dir": "/home/alpha/home/rundir",
        "jail_root": "/home/alpha",
        "runner_user": "runner-alpha",
        "groups": ["alpha", "science", 4711],
        "env": {"PYTHONUNBUFFERED": "true"},
    }
    assert [loss.name for loss in made.losses] == ["RuntimeMaxSec"]
    assert any("baserunner.log" in line for line in made.ours)
    assert is_valid(made.entry)


def test_a_site_whose_jobs_run_in_a_container_is_told() -> None:
    made = proposal(samples.CONTAINER_ARGV, samples.CONTAINER, CPUQuotaPerSecUSec="600ms")
    assert made.wants_container
    assert made.entry["docker_image"] == "basestation:latest"
    assert (made.entry["docker_uid"], made.entry["docker_gid"]) == (1007, 1007)
    assert made.entry["docker_mount"] == ["/data/models:/models:ro"]
    assert made.entry["use_docker_basestation"] is True
    assert made.entry["archive"] is True
    assert made.entry["queue_scripts"] is False
    assert made.entry["python_version"] == "/opt/basestation/bin/python3"
    assert made.entry["cpu_quota_pct"] == 60
    assert made.entry["watch_dir"] == "/home/iop/rundir"


def test_a_plain_unit_with_limits_and_without_a_jail() -> None:
    people = evolve(PEOPLE, homes=("/srv/train/gliders/sg1", "/"), foreign=("secretive",))
    made = proposal(samples.PLAIN_ARGV, samples.PLAIN, people, **samples.PLAIN_VALUES)
    assert made.entry == {
        "watch_dir": "/srv/train/run dir",
        "jail_root": "/srv/train",
        "jailed": False,
        "runner_user": "runner-alpha",
        "groups": ["alpha", "science", 4711],
        "basestation_dir": "/usr/local/base station",
        "cpu_quota_pct": 250,
        "cpu_weight": 50,
        "memory_high_mb": 2048,
        "memory_max_mb": 3072,
        "tasks_max": 100,
        "env": {"GREETING": "hello there", "CASE": "8"},
    }
    assert [(loss.name, loss.value) for loss in made.losses] == [
        ("Nice", "Nice=7"),
        ("SupplementaryGroups", "SupplementaryGroups=secretive"),
    ]
    assert is_valid(made.entry)


def test_a_default_limit_of_tasks_is_not_taken_for_the_administrators() -> None:
    assert "tasks_max" not in proposal(samples.JAILED_ARGV, samples.JAILED, TasksMax="4915").entry


@pytest.mark.parametrize(
    ("homes", "root"),
    [
        (("/home/sg1", "/home/sg2"), "/home"),
        (("/srv/a/b",), "/srv/a"),
        (("/home/sg1",), "/srv/a/alpha"),
        ((), "/srv/a/alpha"),
    ],
)
def test_without_a_jail_the_directory_above_rundir_and_homes_is_proposed(homes: tuple[str, ...], root: str) -> None:
    rundir = "/home/rundir" if root == "/home" else "/srv/a/alpha/rundir"
    text = f"[Service]\nExecStart=/p /x/BaseRunner.py {rundir}\n"
    made = proposal(f"/p /x/BaseRunner.py {rundir}", text, evolve(PEOPLE, homes=homes))
    assert (made.entry["jail_root"], made.entry["jailed"]) == (root, False)
    assert any(root in note for note in made.notes)
    if root == "/srv/a/alpha" and homes:
        assert any("/home/sg1" in note for note in made.notes), "what lies elsewhere is told"


def test_variables_in_the_command_come_from_the_units_environment() -> None:
    text = "[Service]\nEnvironment=TOP=/srv/a\nExecStart=/p /x/BaseRunner.py --base_log $LOG ${TOP}/rundir\n"
    made = proposal("/p /x/BaseRunner.py --base_log $LOG ${TOP}/rundir", text, Environment="TOP=/srv/a LOG=/log")
    assert made.entry["watch_dir"] == "/srv/a/rundir"


def test_a_unit_that_names_no_rundir_is_refused() -> None:
    with pytest.raises(RunnerError, match="names no rundir"):
        proposal("/p /x/BaseRunner.py --archive", "[Service]\nExecStart=/p /x/BaseRunner.py --archive\n")


def test_variables_that_cannot_be_carried_are_lost_openly() -> None:
    unit = units.parse(samples.shown(samples.JAILED_ARGV), samples.JAILED)
    variables = Variables(values={"RUNNER_SITE": "x", "a-b": "y"}, secret=("/etc/secret",), missing=("/etc/none",))
    made = propose("alpha", unit, PEOPLE, variables)
    assert "env" not in made.entry
    assert [loss.value for loss in made.losses if loss.name.startswith("Environment")] == [
        "Environment=RUNNER_SITE",
        "Environment=a-b",
        "EnvironmentFile=/etc/secret",
        "EnvironmentFile=/etc/none",
    ]


def test_a_loss_is_accepted_by_name_or_with_all() -> None:
    losses = [Loss("Nice", "Nice=5", ""), Loss("--config", "--config /x", "")]
    assert not_accepted(losses, {"Nice"}) == losses[1:]
    assert not_accepted(losses, {"Nice", "--config"}) == []
    assert not_accepted(losses, {"all"}) == []
    assert not_accepted(losses, ()) == losses


NAMES = st.sampled_from(sorted(DIRECTIVES)) | st.from_regex(r"[A-Z][A-Za-z]{2,12}", fullmatch=True)


@given(
    st.lists(
        st.builds(
            Directive, st.sampled_from(["Unit", "Service", "Install"]), NAMES, PATHS := st.text(min_size=1), PATHS
        )
    )
)
def test_every_directive_is_carried_or_told_of(directives: list[Directive]) -> None:
    unit = units.parse(samples.shown(samples.JAILED_ARGV), samples.JAILED)
    made = propose("alpha", evolve(unit, directives=(*unit.directives, *directives)), PEOPLE, Variables(values={}))
    for directive in directives:
        fate, _ = DIRECTIVES.get(directive.name, ("lost", ""))
        is_lost = any(loss.name == directive.name for loss in made.losses)
        is_ours = any(line.startswith(f"{directive.name}=") for line in made.ours)
        assert (is_lost, is_ours) == (fate == "lost", fate == "ours")


@pytest.mark.parametrize(
    ("words", "rundir", "unknown"),
    [
        ("--archive /r", "/r", []),
        ("/r --archive", "/r", []),
        ("--jail_root=/j --verbose -v --debug /r", "/r", []),
        ("--config /c /r", "/r", ["--config /c /r"]),
        ("--config /c --archive /r", "/r", ["--config /c"]),
        ("/r --config /c", "/r", ["--config /c"]),
        ("--config=/c /r", "/r", ["--config=/c"]),
        ("--docker_mount a:/a b:/b --archive -- /r", "/r", []),
        ("--archive", "", []),
    ],
)
def test_the_rundir_is_found_among_options_that_nobody_knows(words: str, rundir: str, unknown: list[str]) -> None:
    line = command_line(["/p", "/x/BaseRunner.py", *words.split()])
    assert line.watch_dir == rundir
    assert [text for _, text in line.unknown] == unknown


@given(st.lists(st.sampled_from(["--archive", "--jail_root", "--docker_mount", "--x", "--", "-q", "/r", "w", "--y=z"])))
def test_no_command_line_breaks_the_parser(words: list[str]) -> None:
    line = command_line(["/p", "/x/BaseRunner.py", *words])
    assert line.watch_dir in {"", "/r"}


@pytest.mark.parametrize(
    ("unit", "site"),
    [
        ("baserunner-seaglider@runner-seaglider.service", "seaglider"),
        ("baserunnertrain@train.service", "train"),
        ("baserunner-ioptest@.service", "ioptest"),
        ("baserunner-plain.service", "plain"),
        ("baserunner@runner-alpha.service", "alpha"),
        ("BaseRunner@beta.service", "beta"),
        ("baserunner.service", ""),
    ],
)
def test_a_units_name_tells_its_site(unit: str, site: str) -> None:
    assert site_of(unit) == site


def test_that_there_is_a_limit_of_tasks_where_there_was_none_is_said() -> None:
    made = proposal(samples.JAILED_ARGV, f"{samples.JAILED}\n[Service]\nTasksMax=infinity\n", TasksMax="infinity")
    assert "tasks_max" not in made.entry
    assert "a site has a limit of tasks: in place of TasksMax=infinity it is 4096 (tasks_max)" in made.notes
