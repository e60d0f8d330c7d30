"""The one-file program on a booted Debian: its daemons run as the package's do, and jobs outlive what is installed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.vm.host import HELPER, WATCHER, Host

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY: Final = "/usr/lib/basestation-runner"


@pytest.fixture(scope="module")
def booted(privileged: None) -> Iterator[Host]:  # noqa: ARG001 - only for what it decides
    with Host("bookworm", Path(os.environ["RUNNER_BINARY"])) as host:
        yield host


def executables(host: Host) -> set[str]:
    """Return what the two daemons were started from."""
    return {host.check(f"readlink /proc/{host.main_pid(unit)}/exe") for unit in (HELPER, WATCHER)}


def test_installing_enables_and_starts_nothing(booted: Host) -> None:
    assert set(booted.check("cat /var/tmp/enabled").split()) == {"disabled"}
    assert set(booted.check("cat /var/tmp/active").split()) == {"inactive"}


def test_the_daemons_run_from_what_is_installed_and_systemd_knows_their_processes(booted: Host) -> None:
    for unit in (HELPER, WATCHER):
        booted.wait_active(unit)
        assert "sites" in booted.check(f"systemctl show -P StatusText {unit}")
    (executable,) = executables(booted)
    assert re.fullmatch(rf"{LIBRARY}/[^/]+-[0-9a-f]{{16}}/runner", executable)


def test_an_upgrade_starts_the_daemons_anew_and_no_job_notices(booted: Host) -> None:
    job = booted.start("alpha", "wait")
    before = {unit: booted.main_pid(unit) for unit in (HELPER, WATCHER)}
    booted.check("cp -r $(dirname $(readlink -f /usr/bin/runner)) /srv/newer")
    said = booted.check("/srv/newer/runner install")
    assert "the daemons that ran were started anew; jobs go on" in said
    assert f"still in use, and removed by a later install: {LIBRARY}/" in said
    for unit, pid in before.items():
        booted.wait_active(unit, pid)
    assert executables(booted) == {f"{LIBRARY}/newer/runner"}
    assert booted.is_alive(job.pid)
    booted.finish(job, 6)
    assert booted.end(job)["exit_code"] == 6
    booted.wait(f"runner install >/dev/null && [[ $(ls {LIBRARY}) == $'manifest\\nnewer' ]]")


def test_installing_the_same_again_starts_nothing_anew(booted: Host) -> None:
    before = {unit: booted.main_pid(unit) for unit in (HELPER, WATCHER)}
    assert booted.check("runner install").startswith("nothing to do")
    assert {unit: booted.main_pid(unit) for unit in (HELPER, WATCHER)} == before


def test_uninstalling_ends_the_daemons_and_no_job(booted: Host) -> None:
    job = booted.start("beta", "wait")
    booted.check("runner uninstall --purge")
    units = f"{HELPER} {WATCHER}"
    assert booted.run(f"systemctl is-active {units}").stdout.split() == ["inactive", "inactive"]
    assert "baserunner" not in booted.check("ls /etc/systemd/system/multi-user.target.wants")
    assert booted.run(f"ls /usr/bin/runner {LIBRARY} /usr/lib/systemd/system/baserunner*").stdout == ""
    assert booted.is_alive(job.pid)
    booted.finish(job, 0)
    booted.wait(f"! kill -0 {job.pid}")
