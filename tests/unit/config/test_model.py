"""Properties of the configuration once it is loaded."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve, fields_dict
from attrs.exceptions import FrozenInstanceError
from hypothesis import given, settings
from hypothesis import strategies as st

from basestation_runner.config.load import Source, load_sources
from basestation_runner.config.model import Application
from basestation_runner.config.parts import Host

if TYPE_CHECKING:
    from collections.abc import Callable

    from basestation_runner.config.model import Config

ENTRY: dict[str, Any] = {
    "watch_dir": "/srv/a",
    "runner_user": "runner-a",
    "groups": ["science", 4711],
    "env": {"A": "1", "B": "2"},
    "archive": True,
    "applications": ["base", "extra"],
}
PROFILE: dict[str, Any] = {
    "name": "extra",
    "scripts": ["Extra.py"],
    "env": {"C": "3", "D": "4"},
    "timing_line": True,
    "mode": "sandbox",
    "launch_type": "openmpi",
    "job_pre_post_exec": "allow",
    "job_exec_dirs": ["/a"],
    "limits": {"runtime": "1h", "cpu": "50%"},
}

# A field that decides how jobs run, and another value for it.
CHANGES: dict[str, Any] = {
    "watch_dir": "/srv/b",
    "runner_user": "runner-b",
    "groups": [4711, "science"],
    "jail_root": "/srv",
    "archive": False,
    "ignore_lock": True,
    "python_version": "/usr/bin/python3",
    "basestation_dir": "/opt/basestation3",
    "applications": ["extra"],
    "queue_scripts": False,
    "max_running": 1,
    "cpu_quota_pct": 1,
    "cpu_weight": 1,
    "memory_high_mb": 1,
    "memory_max_mb": 1,
    "tasks_max": 1,
    "env": {"A": "1", "B": "3"},
    "docker_image": "image",
    "docker_uid": 1,
    "docker_gid": 1,
    "docker_mount": ["/a:/a"],
    "use_docker_basestation": True,
}
PROFILE_CHANGES: dict[str, Any] = {
    "description": "Another",
    "scripts": ["Other.py"],
    "command": "/opt/solve",
    "mode": "direct",
    "sandbox": {"network": True},
    "launch_type": "mpich",
    "job_env": ["PYTHONPATH"],
    "pre_exec": ["/a"],
    "post_exec": ["/a"],
    "job_pre_post_exec": "forbid",
    "job_exec_dirs": ["/b"],
    "limits": {"runtime": "2h", "cpu": "50%"},
    "tasks": {"max": 2},
    "resreq": "select[a]",
    "leftovers": "kill",
    "env": {"C": "3"},
    "append_args": ["{job_id}"],
    "strip_args": ["-d"],
    "timing_line": False,
    "visualiser": True,
    "priority": "interactive",
}
# What must change with a field for the profile to stay a valid one.
TOGETHER: dict[str, Any] = {"command": {"scripts": []}, "job_pre_post_exec": {"job_exec_dirs": []}}


def written(entry: dict[str, Any], profile: dict[str, Any], default: str | None = None) -> Config:
    """Load a config with one site, and one profile besides the built-in ones. JSON is YAML."""
    profiles = {"default_application": default, "applications": [profile]}
    return load_sources(
        Source("sites.yaml", json.dumps({"a": entry}).encode()),
        Source("applications.yaml", json.dumps(profiles).encode()),
    )


@st.composite
def reordered(draw: st.DrawFn, mapping: dict[str, Any]) -> dict[str, Any]:
    items = draw(st.permutations(list(mapping.items())))
    return {key: draw(reordered(value)) if isinstance(value, dict) else value for key, value in items}


DIGEST = written(ENTRY, PROFILE).digest("a")


@settings(deadline=None)
@given(reordered(ENTRY), reordered(PROFILE))
def test_the_order_of_keys_does_not_change_the_config_or_its_digest(
    entry: dict[str, Any], profile: dict[str, Any]
) -> None:
    assert written(entry, profile) == written(ENTRY, PROFILE)
    assert written(entry, profile).digest("a") == DIGEST


def test_defaults_written_out_comments_and_other_sites_do_not_change_the_digest(load: Callable[..., Config]) -> None:
    plain = load("a: {watch_dir: /srv/a, runner_user: b}")
    other = load("""
        b: {watch_dir: /srv/b, runner_user: b}
        a:  # a comment
          runner_user: "b"
          watch_dir: /srv/a/
          groups: null
          jailed: false
          tasks_max: 4096
          applications: [early-gps, base-login, base]
          docker_uid: -1
    """, "applications: [{name: other, scripts: [Other.py]}]")  # fmt: skip
    assert plain.digest("a") == other.digest("a")


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_of_a_site_changes_its_digest(field: str) -> None:
    assert ENTRY.get(field) != CHANGES[field]
    assert written({**ENTRY, field: CHANGES[field]}, PROFILE).digest("a") != DIGEST


@pytest.mark.parametrize("field", PROFILE_CHANGES)
def test_every_field_of_a_profile_changes_the_digest_of_a_site_that_may_use_it(field: str) -> None:
    assert PROFILE.get(field) != PROFILE_CHANGES[field]
    changed = {**PROFILE, **TOGETHER.get(field, {}), field: PROFILE_CHANGES[field]}
    others = {**PROFILE, **TOGETHER.get(field, {})}
    assert written(ENTRY, changed).digest("a") != DIGEST
    if field != "job_pre_post_exec":  # the others alone are no valid profile
        assert written(ENTRY, changed).digest("a") != written(ENTRY, others).digest("a")
    without = {**ENTRY, "applications": ["base"]}
    assert written(without, changed).digest("a") == written(without, PROFILE).digest("a")


def test_no_field_of_a_profile_has_been_left_out_here() -> None:
    assert {"name", *PROFILE_CHANGES} == set(fields_dict(Application))


def test_what_the_host_is_changes_the_digest() -> None:
    config = written(ENTRY, PROFILE)
    for host in (Host(attributes=(("ssd", True),)), Host(resources=(("foam", 1),))):
        assert evolve(config, host=host).digest("a") != DIGEST


def test_the_default_application_changes_the_digest() -> None:
    assert written(ENTRY, PROFILE, "extra").digest("a") != DIGEST


def test_another_process_with_another_hash_seed_makes_the_same_digest() -> None:
    program = (
        "from basestation_runner.config.load import Source, load_sources\n"
        "sites = b'a: {watch_dir: /srv/a, runner_user: b, env: {A: b, C: d}, applications: all}'\n"
        "print(load_sources(Source('s', sites), None).digest('a'))\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_config_is_frozen_and_survives_pickling(load: Callable[..., Config]) -> None:
    config = load("a: {watch_dir: /srv/a, runner_user: b, env: {A: b}, groups: [c, 5]}")
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes
    assert hash(config.sites["a"]) == hash(pickle.loads(pickle.dumps(config.sites["a"])))  # noqa: S301 - the same
    with pytest.raises(FrozenInstanceError):
        config.sites["a"].watch_dir = "/srv/b"  # type: ignore[misc]
