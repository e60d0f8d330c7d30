"""What is written into cgroups, and that nothing there can fail a job; against a plain directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from basestation_runner.config.model import Site
from basestation_runner.privexec import cgroups
from basestation_runner.privexec.cgroups import Cgroups


def site(**fields: Any) -> Site:  # noqa: ANN401 - any field of a site
    return Site(name="one", watch_dir="/srv/one", runner_user="runner-one", **fields)


@pytest.mark.parametrize(
    ("fields", "file", "text"),
    [
        ({"cpu_quota_pct": 1}, "cpu.max", "1000 100000"),
        ({"cpu_quota_pct": 100}, "cpu.max", "100000 100000"),
        ({"cpu_quota_pct": 1050}, "cpu.max", "1050000 100000"),
        ({"cpu_weight": 10000}, "cpu.weight", "10000"),
        ({"tasks_max": 7}, "pids.max", "7"),
        ({}, "pids.max", "4096"),
    ],
)
def test_a_sites_limits_have_the_kernels_units(tmp_path: Path, fields: dict[str, int], file: str, text: str) -> None:
    assert Cgroups(str(tmp_path)).prepare(site(**fields)) is None
    assert (tmp_path / "site-one" / file).read_text() == text


def test_a_jobs_cgroup_is_in_its_sites_and_removed_when_nothing_is_left_in_it(tmp_path: Path) -> None:
    groups = Cgroups(str(tmp_path))
    groups.prepare(site())
    empty, other = groups.leaf("one", "ab-1"), groups.leaf("one", "ab-2")
    assert empty == str(tmp_path / "site-one/job-ab-1")
    for leaf in (empty, other):
        assert leaf is not None
        Path(leaf).mkdir()
    (tmp_path / "site-one/job-ab-2/file").touch()
    for job_id in ("ab-1", "ab-2", "gone"):
        groups.remove_leaf("one", job_id)
    assert [path.name for path in (tmp_path / "site-one").glob("job-*")] == ["job-ab-2"]
    assert list(groups.leaves()) == [("one", "ab-2")]


def test_a_sites_cgroup_that_was_removed_is_made_again_for_the_next_job(tmp_path: Path) -> None:
    groups = Cgroups(str(tmp_path))
    groups.prepare(site(tasks_max=7))
    shutil.rmtree(tmp_path / "site-one")
    groups.leaf("one", "ab-1")
    assert (tmp_path / "site-one/pids.max").read_text() == "7"


@pytest.mark.parametrize(
    ("text", "is_populated"), [("populated 1\nfrozen 0\n", True), ("populated 0\nfrozen 0\n", False), (None, False)]
)
def test_a_leaf_is_populated_while_the_kernel_says_so(tmp_path: Path, text: str | None, *, is_populated: bool) -> None:
    groups = Cgroups(str(tmp_path))
    groups.prepare(site())
    (tmp_path / "site-one/job-ab").mkdir()
    if text is not None:
        (tmp_path / "site-one/job-ab/cgroup.events").write_text(text)
    assert groups.is_populated("one", "ab") is is_populated


def test_without_a_root_nothing_is_done_and_nothing_warned_of() -> None:
    groups = Cgroups(None)
    assert groups.prepare(site(cpu_weight=1)) is None
    assert groups.leaf("one", "ab") is None
    assert not groups.is_populated("one", "ab")
    groups.kill("one", "ab")
    groups.remove_leaf("one", "ab")


def test_what_is_in_a_leaf_is_killed_at_once(tmp_path: Path) -> None:
    groups = Cgroups(str(tmp_path))
    groups.prepare(site())
    (tmp_path / "site-one/job-ab").mkdir()
    groups.kill("one", "ab")
    assert (tmp_path / "site-one/job-ab/cgroup.kill").read_text() == "1"
    groups.kill("one", "gone")


def test_a_warning_names_every_fault_and_no_job(tmp_path: Path) -> None:
    (tmp_path / "site-one").mkdir()
    for name in ("cpu.max", "pids.max", "cgroup.subtree_control"):
        (tmp_path / "site-one" / name).mkdir()  # cannot be written, by root either
    warning = Cgroups(str(tmp_path)).prepare(site(cpu_quota_pct=5, cpu_weight=5))
    assert warning is not None
    assert warning.startswith("limits are not applied: ")
    assert "cpu.max cannot be set: Is a directory" in warning
    assert "pids.max cannot be set: Is a directory" in warning
    assert "cpu.weight" not in warning


def test_a_site_whose_limits_cannot_be_applied_is_known_until_they_can(tmp_path: Path) -> None:
    blocking = tmp_path / "site-one"
    blocking.write_text("no directory")
    groups = Cgroups(str(tmp_path))
    assert groups.prepare(site()) is not None
    assert groups.is_faulty("one")
    blocking.unlink()
    groups.leaf("one", "ab")
    assert not groups.is_faulty("one")


@pytest.mark.parametrize("delegated", [True, False])
def test_the_root_is_the_directory_jobs_beside_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, delegated: bool
) -> None:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    unit = tmp_path / "slice" / "unit"
    jobs = tmp_path / "slice" / "jobs"
    for directory in (unit, jobs):
        directory.mkdir(parents=True)
    if delegated:
        for file in (jobs.parent / "cgroup.procs", jobs / "cgroup.procs", jobs / "cgroup.subtree_control"):
            file.touch()
    # As if this process's own cgroup were below the unit; a kernel without version 2 has none.
    monkeypatch.setattr(cgroups, "_MOUNT", str(unit) if own == "/" else str(unit / "x"))
    assert cgroups.delegated_root() == (str(jobs) if delegated and own is not None else None)
