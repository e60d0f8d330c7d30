"""Whatever a job must have and this helper cannot give keeps it from running, with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from basestation_runner.config.additions import NOTHING, of_data
from basestation_runner.config.effective import Value, effective
from basestation_runner.config.model import Application, Site
from basestation_runner.config.parts import Limits
from basestation_runner.config.resreq import parse
from basestation_runner.privexec.unsupported import reason

SITE = Site(name="one", watch_dir="/srv/one", runner_user="a", memory_max_mb=100)
PLAIN = Application(name="plain", scripts=("a",))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"mode": "sandbox"}, "mode sandbox"),
        ({"launch_type": "openmpi"}, "launch_type openmpi"),
        ({"launch_type": "mpich"}, "launch_type mpich"),
    ],
)
def test_what_does_not_work_on_this_host_is_told_with_the_reason(changes: dict[str, Any], what: str) -> None:
    values = effective(SITE, evolve(PLAIN, **changes), NOTHING)
    assert (
        reason(values, {what: "it is not there", "other": "no"})
        == f"{what} does not work on this host: it is not there"
    )
    assert reason(values, {"other": "no"}) is None


def test_a_mode_that_nobody_has_built_is_told_by_name() -> None:
    values = evolve(effective(SITE, PLAIN, NOTHING), mode=Value("container", "profile"))
    assert reason(values, {}) == "mode container is not supported by this helper yet"


def test_what_this_helper_does_is_no_reason() -> None:
    application = evolve(
        PLAIN,
        env=(("A", "b"),),
        limits=Limits(runtime=1, memory=1 << 20),
        resreq=parse("select[a] rusage[foam=1] span[hosts=1]"),
        priority="interactive",
    )
    values = effective(SITE, application, of_data({"env": {"B": "c"}, "groups": ["one"], "tasks": 1}))
    assert reason(values, {}) is None


def test_every_field_of_a_profile_is_one_that_has_been_thought_of() -> None:
    """A field that is new here is either done by the helper, or told of by `reason`."""
    done = {
        "name",
        "description",
        "scripts",
        "env",
        "job_env",
        "append_args",
        "strip_args",
        "timing_line",
        "visualiser",
    }
    decided = {
        "resreq",
        "command",
        "leftovers",
        "pre_exec",
        "post_exec",
        "limits",
        "job_pre_post_exec",
        "job_exec_dirs",
        "tasks",
        "sandbox",
        "priority",
    }
    told = {"mode", "launch_type"}
    assert {field.name for field in Application.__attrs_attrs__} == done | decided | told
