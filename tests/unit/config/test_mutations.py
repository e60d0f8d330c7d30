"""Whatever is done to a good file gives a Config, or faults that all stand inside the file."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from attrs import fields_dict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from basestation_runner.config.load import ConfigErrors, Source, load_sources
from basestation_runner.config.model import Application, Site
from basestation_runner.config.validate import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from basestation_runner.config.document import Document
    from basestation_runner.config.findings import Finding
    from basestation_runner.config.model import Config

SITES = b"""\
# Two sites, written in all the ways that YAML has.
seaglider:
  watch_dir: &rundir /home/seaglider/home/rundir
  jail_root: "/home/sea\\x67lider"
  runner_user: ioprunner
  groups: [ioptest, 4711]   # effective group first
  applications: all
  env:
    RUNDIR: *rundir
    LEVEL: '3'
  docker_mount:
    - /data:/data
'iop.test': {watch_dir: /srv/ioptest, runner_user: b, archive: true, cpu_quota_pct: 60,
  tasks_max: 0x40, docker_image: ""}
third:
  watch_dir: >-
    /srv/third
  runner_user: |-
    third
"""
APPLICATIONS = b"""\
default_application: extra
host: {attributes: {os: linux, n: 5}, resources: {foam: 1}}
applications:
  - name: extra
    description: one more
    scripts: [Extra.py, Other.py]
    append_args: ["--id={job_id}"]
  - name: solver
    command: /opt/solve
    mode: sandbox
    sandbox: {inputs: [/srv/in], job_outputs: [/srv/out]}
    limits: {runtime: 24h, memory: 1G, cpu: 50%, tasks: 10}
    launch_type: openmpi
    tasks: {min: 1, max: 4}
    pre_exec: [/opt/pre, -x]
    job_env: [PYTHONPATH]
    resreq: select[os == linux && (a || !b)] rusage[foam=1] span[ptile=2] same[a:b] order[-a]
  - {name: base, scripts: [Base.py], timing_line: yes please}
""".replace(b"yes please", b"true")

INSERTIONS = [
    *(
        b"\t",
        b" ",
        b"  ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\0",
        b"\xff",
        b"\xc3\xa9",
        b"\xe2\x80\xa8",
        b"\xef\xbb\xbf",
        b"\x1b",
    ),
    *(
        b":",
        b": ",
        b"- ",
        b"? ",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b"'",
        b'"',
        b"|\n",
        b">+9\n",
        b"#",
        b"%",
        b"@",
        b"`",
        b"!",
    ),
    *(b"&a ", b"*a", b"*rundir", b"<<: *rundir\n", b"!!str ", b"!<", b"\n---\n", b"\n...\n", b"%YAML 1.1\n---\n"),
    *(b"5", b"-1", b"0", b"1.5", b"true", b"yes", b"null", b"~", b"root", b"..", b"/", b"9" * 5000, b"all", b".inf"),
    *(b'"\\UFFFFFFFF"', b'"\\ud800"', b"\nx: y\n", b"\n  x: y\n", b"\nthird: {}\n", b"[" * 40, b"x" * 40000),
]


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        lines = content.splitlines(keepends=True) or [b""]
        line = draw(st.integers(0, len(lines) - 1))
        content = draw(
            st.sampled_from(
                [
                    content[:start] + content[start + draw(st.integers(1, 20)) :],
                    content[:start] + draw(st.sampled_from(INSERTIONS)) + content[start:],
                    content[:start] + draw(st.binary(min_size=1, max_size=3)) + content[start + 1 :],
                    b"".join([*lines[:line], *lines[line + 1 :]]),
                    b"".join([*lines, lines[line]]),
                    b"".join([*lines[:line], lines[line].upper(), *lines[line + 1 :]]),
                ]
            )
        )
    return content


def check(sites: bytes, applications: bytes) -> None:
    files = {"sites.yaml": sites, "applications.yaml": applications}
    try:
        load_sources(*(Source(name, content) for name, content in files.items()))
    except ConfigErrors as errors:
        assert errors.faults  # noqa: PT017 - everything else that is raised fails the test
        for fault in errors.faults:
            lines = files[fault.file].decode(errors="replace").split("\n")
            assert 1 <= fault.line <= len(lines)
            assert 1 <= fault.column <= len(lines[fault.line - 1]) + 1
            assert str(fault).isprintable()


def test_the_files_that_are_mutated_are_good() -> None:
    config = load_sources(Source("sites.yaml", SITES), Source("applications.yaml", APPLICATIONS))
    assert list(config.sites) == ["seaglider", "iop.test", "third"]


@settings(max_examples=200, deadline=None)
@given(mutated(SITES))
@example(b"a: {watch_dir: /a, runner_user: [b]}")
@example(b'a: {watch_dir: "\\UFFFFFFFF"}')
def test_any_mutation_of_the_sites_gives_a_config_or_faults_inside_the_file(sites: bytes) -> None:
    check(sites, APPLICATIONS)


@settings(max_examples=100, deadline=None)
@given(mutated(APPLICATIONS))
def test_any_mutation_of_the_profiles_gives_a_config_or_faults_inside_a_file(applications: bytes) -> None:
    check(SITES, applications)


@settings(deadline=None)
@given(st.binary() | st.text().map(str.encode) | st.lists(st.sampled_from(INSERTIONS)).map(b"".join))
def test_any_bytes_give_faults_inside_the_file(content: bytes) -> None:
    check(content, b"")
    check(SITES, content)


@settings(max_examples=100, deadline=None)
@given(st.just(SITES) | mutated(SITES), st.just(APPLICATIONS) | mutated(APPLICATIONS))
def test_a_host_is_looked_at_for_a_good_configuration_only(sites: bytes, applications: bytes) -> None:
    looked_at: list[Sequence[str]] = []

    def check_host(_: Document, config: Config, files: Sequence[str]) -> list[Finding]:
        assert config == load_sources(Source(files[0], sites), Source(files[1], applications))
        looked_at.append(files)
        return []

    with TemporaryDirectory() as name, redirect_stdout(None), redirect_stderr(None):
        files = Path(name, "sites.yaml"), Path(name, "applications.yaml")
        for file, content in zip(files, (sites, applications), strict=True):
            file.write_bytes(content)
        status = run(files[:1], check_host=check_host)
    assert looked_at == ([tuple(map(str, files))] if status == 0 else [])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["/srv/b", "root"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.sampled_from(list(fields_dict(Site))), VALUES)
def test_any_value_of_any_field_of_a_site_gives_a_config_or_faults(field: str, value: object) -> None:
    check(json.dumps({"a": {"watch_dir": "/srv/a", "runner_user": "b", field: value}}).encode(), APPLICATIONS)


@settings(deadline=None)
@given(st.sampled_from(list(fields_dict(Application))), VALUES)
def test_any_value_of_any_field_of_a_profile_gives_a_config_or_faults(field: str, value: object) -> None:
    check(SITES, json.dumps({"applications": [{"name": "a", "scripts": ["A.py"], field: value}]}).encode())
