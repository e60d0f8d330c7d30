"""Which application a request's job gets, what is refused at the door, and what keeps an accepted job waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.config.load import Source, load_sources
from basestation_runner.runfile import RequestError, parse
from basestation_runner.watch.admission import application_for, why_held
from basestation_runner.watch.ledger import Unfinished
from basestation_runner.watch.states import State

if TYPE_CHECKING:
    from basestation_runner.config.model import Config

SITES = """
one: {watch_dir: /srv/one, runner_user: a}
two: {watch_dir: /srv/two, runner_user: b, applications: [base, solver]}
"""
APPLICATIONS = """
default_application: rest
applications:
  - {name: rest}
  - {name: solver, command: /opt/bin/solve, env: {LEVEL: "3"}, limits: {runtime: 1h}}
"""


def config(applications: str = APPLICATIONS) -> Config:
    return load_sources(Source("sites.yaml", SITES.encode()), Source("applications.yaml", applications.encode()))


def chosen(lines: str, *, site: str = "one", script: str = "Base.py") -> str:
    known = config()
    return application_for(known, known.sites[site], parse(f"/h /m /l {script}\n{lines}".encode())).name


def refused(lines: str, *, site: str = "one", script: str = "Base.py") -> str:
    with pytest.raises(RequestError) as raised:
        chosen(lines, site=site, script=script)
    return raised.value.reason


def test_a_request_gets_the_application_that_its_script_belongs_to_or_the_default() -> None:
    assert chosen("") == "base"
    assert chosen("", script="Unheard.py") == "rest"
    assert chosen("", site="two", script="solve") == "solver"


def test_a_request_may_name_its_application() -> None:
    assert chosen("application: base") == "base"
    assert chosen("application: rest", script="Unheard.py") == "rest"


@pytest.mark.parametrize(
    ("site", "script", "lines", "answer"),
    [
        ("one", "Base.py", "application: none", "application none is not defined"),
        (
            "one",
            "solve",
            "application: solver",
            "application solver is not one that site one may use: base, base-login, early-gps, rest",
        ),
        # Whoever could choose the default for a listed script would be rid of what its profile says.
        ("one", "Base.py", "application: rest", "application rest does not run Base.py: that is for application base"),
        (
            "two",
            "Base.py",
            "application: solver",
            "application solver does not run Base.py: that is for application base",
        ),
        ("two", "Unheard.py", "", "no application that this site may use runs Unheard.py"),
        ("two", "Unheard.py", "application: base", "no application that this site may use runs Unheard.py"),
        (
            "two",
            "solve",
            "env: {LEVEL: '9'}\nlimits: {runtime: 2h}",
            "env.LEVEL: application solver sets it to '3'; limits.runtime: 2h is above the 1h of application solver",
        ),
    ],
)
def test_what_a_request_may_not_have_is_refused_at_the_door(site: str, script: str, lines: str, answer: str) -> None:
    assert refused(lines, site=site, script=script) == answer


def job(**changes: Any) -> Unfinished:  # noqa: ANN401 - each field has its own type
    facts = {
        "seq": 1,
        "job_id": "a",
        "site": "two",
        "application": "solver",
        "script": "solve",
        "home": "/h",
        "mission_dir": "/m",
        "state": State.QUEUED,
        "boot": None,
    }
    return Unfinished(**{**facts, **changes})


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, None),
        ({"additions": {"limits": {"runtime": "30m"}}}, None),
        ({"site": "three"}, "site three is not configured"),
        ({"application": "gone"}, "application gone is not defined"),
        ({"application": "early-gps"}, "application early-gps is not one that site two may use: base, solver"),
        ({"script": "other"}, "application solver does not run other at this site any more"),
        ({"application": "base"}, "application base does not run solve at this site any more"),
        ({"additions": {"limits": {"runtime": "2h"}}}, "limits.runtime: 2h is above the 1h of application solver"),
        ({"additions": {"tasks": "x"}}, "tasks: expected a whole number, found the text 'x'"),
    ],
)
def test_an_accepted_job_waits_while_the_present_profile_does_not_allow_it(
    changes: dict[str, Any], answer: str | None
) -> None:
    assert why_held(config(), job(**changes)) == answer


def test_a_profile_that_is_back_lets_its_jobs_go_on() -> None:
    without = APPLICATIONS[: APPLICATIONS.index("  - {name: solver")] + "  - {name: solver2}\n"
    known = load_sources(
        Source("sites.yaml", SITES.replace("solver", "solver2").encode()),
        Source("applications.yaml", without.encode()),
    )
    assert why_held(known, job()) == "application solver is not defined"
    assert why_held(config(), job()) is None
