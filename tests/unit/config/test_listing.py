"""`runner applications`: the profiles as a person and as a program sees them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.config.listing import profile_data, run
from basestation_runner.config.load import Source, load_sources
from basestation_runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SITES = """
one: {watch_dir: /srv/one, runner_user: a, applications: [solver, base], env: {LEVEL: "9"}, memory_max_mb: 1024}
two: {watch_dir: /srv/two, runner_user: b}
"""
SOLVER: dict[str, Any] = {
    "name": "solver",
    "description": "The vendor's",
    "command": "/opt/bin/solve",
    "mode": "sandbox",
    "sandbox": {"network": True, "inputs": ["/a", "/b"]},
    "launch_type": "openmpi",
    "env": {"B": "x\ny", "LEVEL": "3"},
    "job_env": ["PYTHONPATH"],
    "pre_exec": ["/opt/pre", "a b"],
    "job_pre_post_exec": "allow",
    "job_exec_dirs": ["/srv/steps"],
    "limits": {"runtime": "36h", "memory": "128G", "cpu": "250%", "tasks": 100},
    "tasks": {"min": 2, "max": 4},
    "resreq": "select[ssd] rusage[foam=1]",
    "leftovers": "kill",
}
APPLICATIONS = json.dumps({"default_application": "rest", "applications": [{"name": "rest"}, SOLVER]})


@pytest.fixture
def listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    sites, applications = tmp_path / "sites.yaml", tmp_path / "applications.yaml"
    sites.write_text(SITES)
    applications.write_text(APPLICATIONS)

    def show(site: str | None = None, *, as_json: bool = False) -> str:
        assert run(sites, applications, site=site, as_json=as_json) == 0
        return capsys.readouterr().out

    return show


def test_a_profile_is_listed_as_a_file_says_it() -> None:
    config = load_sources(Source("s", SITES.encode()), Source("a", APPLICATIONS.encode()))
    assert profile_data(config.applications["solver"]) == SOLVER
    again = json.dumps({"applications": [profile_data(made) for made in config.applications.values()]})
    assert load_sources(Source("s", SITES.encode()), Source("a", again.encode())).applications == config.applications


def test_all_profiles_are_listed_with_the_sites_that_may_use_them(listed: Callable[..., str]) -> None:
    entries = {entry["name"]: entry["sites"] for entry in json.loads(listed(as_json=True))["applications"]}
    assert entries == {
        "base": ["one", "two"],
        "base-login": ["two"],
        "early-gps": ["two"],
        "rest": ["two"],
        "solver": ["one"],
    }


def test_a_site_sees_its_own_profiles_with_what_its_entry_says_over_them(listed: Callable[..., str]) -> None:
    base, solver = listed("one").split("\n\n")
    assert base.splitlines() == [
        "base: Full processing of a mission",
        "  scripts: Base.py",
        "  append_args: --job_id '{job_id}' --queue_length '{queue_length}'",
        "  strip_args: --daemon",
        "  visualiser: true",
        "  env: LEVEL=9 (the site's)",
        "  limits: memory=1G (the site's)",
    ]
    assert solver.splitlines() == [
        "solver: The vendor's",
        "  command: /opt/bin/solve",
        "  mode: sandbox",
        "  sandbox: network=true, inputs=/a, /b",
        "  launch_type: openmpi",
        "  job_env: PYTHONPATH",
        "  pre_exec: /opt/pre 'a b'",
        "  job_pre_post_exec: allow",
        "  job_exec_dirs: /srv/steps",
        "  tasks: min=2, max=4",
        "  resreq: select[ssd] rusage[foam=1]",
        "  leftovers: kill",
        r"  env: B=x\ny, LEVEL=9 (the site's)",
        "  limits: cpu=250%, memory=1G (the site's), runtime=36h, tasks=100",
    ]
    assert "rest (the default)" in listed("two")


def test_a_program_sees_where_each_value_is_from(listed: Callable[..., str]) -> None:
    (_, solver) = json.loads(listed("one", as_json=True))["applications"]
    effective = solver["effective"]
    assert effective["env"] == {"B": {"value": "x\ny", "from": "profile"}, "LEVEL": {"value": "9", "from": "site"}}
    assert effective["limits"]["memory"] == {"value": "1G", "from": "site"}
    assert effective["before"] == [{"value": ["/opt/pre", "a b"], "from": "profile"}]
    assert effective["tasks"] == {"value": 2, "from": "profile"}
    assert effective["span"] is None


def test_a_site_that_is_not_configured_is_an_error_that_names_the_ones_that_are(listed: Callable[..., str]) -> None:
    with pytest.raises(RunnerError, match=r"site onee is not configured .*did you mean one\?"):
        listed("onee")
