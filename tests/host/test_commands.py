"""Profiles that name a program, and those that clear up after a job; with real jobs."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

import pytest

from tests.host.helper_client import DEADLINE, Station

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site

PROGRAM = '#!/bin/sh\necho "$0: $*"\necho $$ > pid; if [ "$1" = leave ]; then sleep 1000 & echo $! > left; fi\n'
PROFILES = """\
applications:
  - name: solver
    command: {}
    append_args: ["--id={{job_id}}"]
  - name: do
    scripts: [do.sh]
    leftovers: kill
"""


@pytest.fixture
def program(installation: Installation) -> Path:
    path = installation.make_directory(installation.top / "programs") / "solve"
    installation.write(path, PROGRAM)
    path.chmod(0o755)
    return path


@pytest.fixture
def station(installation: Installation, program: Path) -> Iterator[Station]:
    with Station(installation) as station:
        installation.write(installation.applications_config, PROFILES.format(program))
        yield station


@pytest.fixture
def site(station: Station) -> Site:
    return station.add_shell_site("one")


def test_a_profile_may_name_a_program_which_requests_mean_by_its_last_component(
    station: Station, site: Site, program: Path
) -> None:
    station.start()
    order = station.order(site, station.mission(site), "solve", "a b", application="solver")
    assert station.run(order)["log_tail"] == f"{program}: a b --id={order['job_id']}\n"
    wrong = station.order(site, station.mission(site), "other", application="solver")
    assert station.refusal(wrong) == "script other is not listed in application solver"


@pytest.mark.parametrize("what", ["the program", "its directory", "missing", "not executable"])
def test_a_program_that_others_than_root_could_change_is_not_run(
    station: Station, site: Site, program: Path, what: str
) -> None:
    assert site.account
    match what:
        case "the program":
            os.chown(program, site.account.uid, site.account.gid)
            reason = f"others than root could change {program}"
        case "its directory":
            program.parent.chmod(0o777)
            reason = f"others than root could change {program.parent}"
        case "missing":
            program.unlink()
            reason = "No such file or directory"
        case _:
            program.chmod(0o644)
            reason = "Permission denied"
    station.start()
    order = station.order(site, station.mission(site), "solve", application="solver")
    assert station.refusal(order) == f"the command {program}: {reason}"


def test_what_a_job_leaves_behind_is_killed_if_its_profile_says_so(station: Station, site: Site) -> None:
    station.start()
    mission = station.mission(site)
    order = station.order(site, mission, "do.sh", "sleep 1000 & echo $! > left")
    station.start_job(order)
    station.client.event(order["job_id"], "ended")
    try:
        pidfd = os.pidfd_open(int((mission / "left").read_text()))
    except ProcessLookupError:
        return
    assert select.select([pidfd], [], [], DEADLINE)[0]
    os.close(pidfd)
