"""Which cgroups the helper makes and what it writes there, in a plain directory that stands for the tree."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

import pytest

from tests.host.helper_client import DEADLINE, Gate, Station, parent_of

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.sandbox.installation import Site

MIB = 1 << 20


def run(station: Station, site: Site) -> Path:
    """Run a job and return where its cgroup was: a plain directory with files in it cannot be removed."""
    order = station.order(site, station.mission(site), "do.sh", "echo ran")
    assert station.run(order)["log_tail"] == "ran\n"
    return station.installation.cgroup_root / f"site-{site.name}" / f"job-{order['job_id']}"


def files(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir() if path.is_file()}


def test_a_sites_limits_are_written_when_the_helper_starts(station: Station) -> None:
    station.add_shell_site("limited", cpu_quota_pct=250, cpu_weight=50, tasks_max=77)
    station.add_shell_site("unlimited")
    station.start()
    root = station.installation.cgroup_root
    limited, unlimited = files(root / "site-limited"), files(root / "site-unlimited")
    assert limited.pop("cgroup.subtree_control") == unlimited.pop("cgroup.subtree_control") == "+pids"
    assert limited == {"cpu.max": "250000 100000", "cpu.weight": "50", "pids.max": "77"}
    assert unlimited == {"pids.max": "4096"}
    assert not station.warnings()


def test_a_limit_that_the_config_no_longer_sets_is_taken_back(station: Station) -> None:
    station.add_shell_site("one", cpu_quota_pct=250, cpu_weight=50)
    station.start()
    station.daemon.stop()
    station.installation.write_config({"one": {"cpu_quota_pct": None, "cpu_weight": None}})
    station.start()
    left = files(station.installation.cgroup_root / "site-one")
    assert (left["cpu.max"], left["cpu.weight"]) == ("max 100000", "100")


def test_a_job_is_in_a_leaf_of_its_own_with_its_memory_limits(station: Station) -> None:
    site = station.add_shell_site("one", memory_high_mb=100, memory_max_mb=200)
    station.start()
    leaves = [run(station, site) for _ in range(2)]
    assert leaves[0] != leaves[1]
    for leaf in leaves:
        assert files(leaf) == {
            "memory.high": str(100 * MIB),
            "memory.max": str(200 * MIB),
            "cgroup.procs": "0",
        }


def test_a_job_without_limits_is_in_a_leaf_without_any(station: Station) -> None:
    site = station.add_shell_site("one")
    station.start()
    assert files(run(station, site)) == {"cgroup.procs": "0"}


def test_a_job_joins_its_leaf_as_the_helper_before_it_is_the_sites(station: Station) -> None:
    """Afterwards it could not: the files are the helper's."""
    site = station.add_shell_site("one")
    station.start()
    leaf = run(station, site)
    helper = station.installation.accounts.user("baserunner-exec").uid
    assert (leaf.stat().st_uid, (leaf / "cgroup.procs").stat().st_uid) == (helper, helper)
    assert leaf.stat().st_mode & 0o022 == 0


def test_a_jobs_peak_of_memory_is_in_its_record(station: Station) -> None:
    site = station.add_shell_site("one")
    station.start()
    with Gate(station.installation.top / "gate") as gate:
        order = station.order(site, station.mission(site), "do.sh", gate.in_shell)
        station.start_job(order)
        leaf = station.installation.cgroup_root / "site-one" / f"job-{order['job_id']}"
        (leaf / "memory.peak").write_text("123456\n")
        gate.open()
        record = station.client.event(order["job_id"], "ended")["record"]
    assert record["memory_peak_bytes"] == 123456


def test_what_a_killed_keeper_left_is_killed_through_its_cgroup_and_lost_when_that_is_empty(station: Station) -> None:
    """Also what the job has started itself, whatever became of the job's own process."""
    site = station.add_shell_site("one")
    station.start()
    with Gate(station.installation.top / "gate") as gate:
        order = station.order(site, station.mission(site), "do.sh", gate.in_shell)
        pid = station.start_job(order)["pid"]
        leaf = station.installation.cgroup_root / "site-one" / f"job-{order['job_id']}"
        (leaf / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        os.kill(parent_of(pid), 9)
        station.daemon.wait_event(lambda event: event["event"] == "job without a keeper")
        assert (leaf / "cgroup.kill").read_text() == "1"
        ended = os.pidfd_open(pid)
        gate.open()
        assert select.select([ended], [], [], DEADLINE)[0]
        os.close(ended)
        assert station.inquire(order["job_id"])["event"] == "started"
        (leaf / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        station.client.event(order["job_id"], "lost")


@pytest.mark.parametrize("refused", ["the root", "the site's", "the leaf's files"])
def test_a_refused_cgroup_stops_no_job_and_is_warned_of_once_a_site(station: Station, refused: str) -> None:
    sites = [station.add_shell_site(name, memory_max_mb=100) for name in ("one", "two")]
    root = station.installation.cgroup_root
    if refused == "the root":
        os.chown(root, 0, 0)
    station.start()
    if refused == "the site's":
        for site in sites:
            os.chown(root / f"site-{site.name}", 0, 0)
    elif refused == "the leaf's files":
        for site in sites:
            (root / f"site-{site.name}").chmod(0o3555)
    for _ in range(3):
        for site in sites:
            run(station, site)
    for site in sites:
        (warning,) = station.warnings(site=site.name)
        assert warning["event"].startswith("limits are not applied: ")


def test_a_site_whose_cgroup_was_removed_gets_it_back_with_its_next_job(station: Station) -> None:
    site = station.add_shell_site("one", cpu_weight=50)
    station.start()
    directory = station.installation.cgroup_root / "site-one"
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    run(station, site)
    assert files(directory)["cpu.weight"] == "50"
