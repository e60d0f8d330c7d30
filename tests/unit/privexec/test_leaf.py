"""A job's own cgroup as its keeper uses it, and that nothing there can fail a job; against a plain directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from basestation_runner.privexec.leaf import Leaf, limits_warning

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def leaf(tmp_path: Path) -> Leaf:
    leaf = Leaf(str(tmp_path / "job-ab"))
    leaf.make(memory_high_mb=None, memory_max_mb=None)
    return leaf


@pytest.mark.parametrize(
    ("high", "limit", "wanted"),
    [(None, None, {}), (3, None, {"memory.high": "3145728"}), (None, 1, {"memory.max": "1048576"})],
)
def test_a_jobs_limits_are_in_bytes(
    tmp_path: Path, high: int | None, limit: int | None, wanted: dict[str, str]
) -> None:
    leaf = Leaf(str(tmp_path / "job-ab"))
    procs = str(tmp_path / "job-ab/cgroup.procs")
    assert leaf.make(memory_high_mb=high, memory_max_mb=limit) == (procs, [])
    assert {path.name: path.read_text() for path in (tmp_path / "job-ab").iterdir()} == wanted


def test_one_of_an_earlier_try_is_used_again(leaf: Leaf) -> None:
    assert leaf.make(memory_high_mb=None, memory_max_mb=None)[1] == []


def test_it_is_removed_unless_something_is_left_in_it(leaf: Leaf, tmp_path: Path) -> None:
    (tmp_path / "job-ab/file").touch()
    leaf.remove()
    assert (tmp_path / "job-ab").exists()
    (tmp_path / "job-ab/file").unlink()
    leaf.remove()
    assert not (tmp_path / "job-ab").exists()
    leaf.remove()


@pytest.mark.parametrize(("text", "peak"), [("12345\n", 12345), ("max\n", None), ("", None), (None, None)])
def test_a_peak_that_cannot_be_read_is_not_known(
    leaf: Leaf, tmp_path: Path, text: str | None, peak: int | None
) -> None:
    if text is not None:
        (tmp_path / "job-ab/memory.peak").write_text(text)
    assert leaf.memory_peak() == peak


@pytest.mark.parametrize(
    ("text", "seconds"), [("usage_usec 1500000\nuser_usec 1\n", 1.5), ("user_usec 1\n", None), ("", None), (None, None)]
)
def test_processor_time_that_cannot_be_read_is_not_known(
    leaf: Leaf, tmp_path: Path, text: str | None, seconds: float | None
) -> None:
    if text is not None:
        (tmp_path / "job-ab/cpu.stat").write_text(text)
    assert leaf.cpu_seconds() == seconds


@pytest.mark.parametrize(("text", "number"), [("12\n13\n", 2), ("", 0), (None, None)])
def test_what_is_left_over_is_counted(leaf: Leaf, tmp_path: Path, text: str | None, number: int | None) -> None:
    if text is not None:
        (tmp_path / "job-ab/cgroup.procs").write_text(text)
    assert leaf.processes() == number


def test_without_a_path_nothing_is_done_and_nothing_known() -> None:
    leaf = Leaf(None)
    assert leaf.make(memory_high_mb=1, memory_max_mb=1) == (None, [])
    assert (leaf.memory_peak(), leaf.cpu_seconds(), leaf.processes()) == (None, None, None)
    leaf.remove()


def test_what_went_wrong_is_the_same_text_for_every_job(tmp_path: Path) -> None:
    faults = [Leaf(f"{tmp_path}/gone/job-{n}").make(memory_high_mb=1, memory_max_mb=None) for n in range(2)]
    assert faults[0] == faults[1] == (None, ["a job's cgroup cannot be made: No such file or directory"])
    assert (
        limits_warning(faults[0][1])
        == "limits are not applied: a job's cgroup cannot be made: No such file or directory"
    )


def test_a_limit_that_cannot_be_set_is_told(leaf: Leaf, tmp_path: Path) -> None:
    (tmp_path / "job-ab/memory.high").mkdir()
    assert leaf.make(memory_high_mb=1, memory_max_mb=1)[1] == ["memory.high cannot be set: Is a directory"]
    assert (tmp_path / "job-ab/memory.max").read_text() == "1048576"


def test_a_jobs_own_limits_have_the_kernels_units(tmp_path: Path) -> None:
    leaf = Leaf(str(tmp_path))
    assert leaf.limit({"memory": 1 << 30, "cpu": 150, "tasks": 7}) == []
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "memory.max": str(1 << 30),
        "cpu.max": "150000 100000",
        "pids.max": "7",
    }


def test_limits_that_cannot_be_set_are_named(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").mkdir()
    assert Leaf(str(tmp_path)).limit({"memory": 1, "cpu": 1}) == ["cpu"]
    assert Leaf(None).limit({"memory": 1, "tasks": 1}) == ["memory", "tasks"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("oom 1\noom_kill 0\n", False), ("oom 1\noom_kill 2\n", True), ("oom_kill\n", False), ("", False)],
)
def test_a_kill_for_want_of_memory_is_read_from_the_kernels_count(tmp_path: Path, text: str, *, expected: bool) -> None:
    leaf = Leaf(str(tmp_path))
    assert not leaf.ran_out_of_memory()
    (tmp_path / "memory.events").write_text(text)
    assert leaf.ran_out_of_memory() is expected
    assert not Leaf(None).ran_out_of_memory()


def test_what_is_in_it_can_be_killed(tmp_path: Path) -> None:
    leaf = Leaf(str(tmp_path))
    leaf.kill()
    assert (tmp_path / "cgroup.kill").read_text() == "1"
    Leaf(None).kill()
