"""Parallel jobs under Debian's launchers: real ranks, and an environment that reaches them and not the launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.privexec.launch import LAUNCHERS
from tests.host.helper_client import Station
from tests.needs import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site

RANK = {"openmpi": "OMPI_COMM_WORLD_RANK", "mpich": "PMI_RANK"}
PARENT = "/proc/$PPID/environ"


@pytest.fixture
def station(installation: Installation) -> Iterator[Station]:
    with Station(installation) as station:
        yield station


@pytest.fixture(params=list(LAUNCHERS))
def launcher(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    need(Path(LAUNCHERS[name][0]).exists(), LAUNCHERS[name][0])
    return name


def profile(station: Station, launcher: str, **fields: Any) -> Site:  # noqa: ANN401 - as a file has them
    entry = {"name": "do", "scripts": ["do.py", "do.sh"], "launch_type": launcher, "tasks": {"min": 1, "max": 4}}
    site = station.add_shell_site("one")
    assert site.account
    # Open MPI keeps files of its own, and not every host under test has a /tmp that others may write in.
    own = station.installation.make_directory(station.installation.top / "tmp", site.account, site.group, mode=0o700)
    fields = {"env": {"TMPDIR": str(own), "LEVEL": "3"}, **fields}
    text = json.dumps({"applications": [entry | fields]})
    station.installation.write(station.installation.applications_config, text)
    return site


def lines(station: Station, site: Site, code: str, **additions: Any) -> list[str]:  # noqa: ANN401 - JSON
    job = station.order(site, station.mission(site), "do.sh", code, additions=additions)
    record = station.run(job)
    assert record["exit_code"] == 0, record
    return sorted(str(record["log_tail"]).splitlines())


@pytest.mark.parametrize("mode", ["direct", "sandbox"])
def test_as_many_ranks_run_as_the_job_has_tasks(station: Station, launcher: str, mode: str) -> None:
    site = profile(station, launcher, mode=mode, **({"env": {"LEVEL": "3"}} if mode == "sandbox" else {}))
    station.start()
    code = f'echo "rank ${RANK[launcher]} $CASE $LEVEL ${{RUNNER_JOB_ENV-none}}"'
    assert lines(station, site, code, tasks=2, env={"CASE": "a 'b' \"c\" $x"}) == [
        "rank 0 a 'b' \"c\" $x 3 none",
        "rank 1 a 'b' \"c\" $x 3 none",
    ]


def test_a_job_that_names_no_number_has_the_fewest_tasks(station: Station, launcher: str) -> None:
    site = profile(station, launcher)
    station.start()
    assert lines(station, site, f"echo rank ${RANK[launcher]}") == ["rank 0"]


def test_the_launcher_has_nothing_of_what_the_job_adds(station: Station, launcher: str) -> None:
    site = profile(station, launcher, job_env=["LD_PRELOAD"])
    station.start()
    code = f"env | grep -a LD_PRELOAD; tr '\\0' '\\n' < {PARENT} | grep -ac '^LD_PRELOAD'; true"
    shown = lines(station, site, code, env={"LD_PRELOAD": "/none.so"})
    assert "LD_PRELOAD=/none.so" in shown
    assert "0" in shown


def test_what_its_ranks_end_with_is_what_the_job_ends_with(station: Station, launcher: str) -> None:
    site = profile(station, launcher)
    station.start()
    record = station.run(station.order(site, station.mission(site), "do.sh", "exit 3", additions={"tasks": 2}))
    assert record["exit_code"] == 3
