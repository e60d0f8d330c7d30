"""The judge of chaos sees each way in which a promise can be broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from attrs import evolve

from tests.chaos.host import Job, Request
from tests.chaos.verdict import Harm, faults

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.host import Host


class Told:
    """A host of which only is known what the judge asks for: two requests of one mission."""

    def __init__(self, directory: Path) -> None:
        (directory / "runs").mkdir()
        self.directory = directory
        self.requests = {name: Request(name, "one", directory, "count.sh", 0, "-") for name in ("a", "b")}
        self.rows = [self.row(1, "a"), self.row(2, "b")]
        self.runs(a=["id-a"], b=["id-b"])
        self.order("+a", "-a", "+b", "-b")

    def row(self, seq: int, name: str) -> Job:
        return Job(seq, f"id-{name}", "one", name, "succeeded", None, 0, None, ended=True)

    def change(self, number: int, **fields: Any) -> None:  # noqa: ANN401 - a job's fields
        self.rows[number] = evolve(self.rows[number], **fields)

    def runs(self, **ids: list[str]) -> None:
        for name, of_it in ids.items():
            (self.directory / "runs" / name).write_text("".join(f"{job_id}\n" for job_id in of_it))

    def order(self, *words: str) -> None:
        (self.directory / "order").write_text("".join(f"{word[0]} {word[1:]}\n" for word in words))

    def jobs(self) -> list[Job]:
        return self.rows

    def faults(self, harm: Harm | None = None) -> list[str]:
        return faults(cast("Host", self), harm or Harm())


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_two_requests_that_ran_once_each_and_in_order_are_well(told: Told) -> None:
    assert told.faults() == []


def test_a_second_run_is_seen(told: Told) -> None:
    told.runs(a=["id-a", "id-a"])
    assert told.faults() == ["a: it ran 2 times, as ['id-a', 'id-a']; its job is id-a"]


def test_a_run_as_another_job_is_seen(told: Told) -> None:
    told.runs(a=["id-c"])
    assert told.faults() == ["a: it ran 1 times, as ['id-c']; its job is id-a"]


def test_a_request_without_a_job_and_one_with_two_are_seen(told: Told) -> None:
    told.rows[0] = evolve(told.row(3, "b"), job_id="again")
    assert sorted(told.faults())[:2] == [
        "a: it became 0 jobs, which ran 1 times",
        "b: it became 2 jobs, which ran 1 times",
    ]


def test_a_job_that_nobody_asked_for_is_seen(told: Told) -> None:
    told.rows.append(told.row(3, "c"))
    assert told.faults() == ["a job that nobody asked for: c"]


def test_an_end_that_says_success_of_what_never_ran_is_seen(told: Told) -> None:
    (told.directory / "runs/a").unlink()
    assert told.faults() == ["a: it is succeeded and never ran"]


@pytest.mark.parametrize("fields", [{"exit_code": 3}, {"state": "failed"}, {"exit_code": None, "signal": 9}])
def test_another_end_than_the_jobs_own_is_seen_unless_it_was_killed(told: Told, fields: dict[str, Any]) -> None:
    told.change(0, **fields)
    (fault,) = told.faults()
    assert fault.startswith("a: it is (")
    told.change(0, state="failed", exit_code=None, signal=9)
    assert told.faults(Harm(killed={"id-a"})) == []


def test_a_lost_job_is_a_fault_unless_its_keeper_was_killed_and_it_says_why(told: Told) -> None:
    told.change(0, state="lost", exit_code=None, reason="its keeper ended")
    assert told.faults() == ["a: it is lost although its keeper was left alone: its keeper ended"]
    assert told.faults(Harm(without_keeper={"id-a"})) == []
    told.change(0, reason=None)
    assert told.faults(Harm(without_keeper={"id-a"})) == ["a: it is lost without a reason"]


def test_a_job_of_another_site_is_seen(told: Told) -> None:
    told.change(0, site="two")
    assert told.faults() == ["a: it ran for two"]


def test_a_queue_out_of_order_is_seen(told: Told) -> None:
    told.order("+b", "-b", "+a", "-a")
    (fault,) = told.faults()
    assert fault.endswith("its jobs did not run in their order: [2, 1]")


def test_two_jobs_of_one_queue_side_by_side_are_seen_unless_the_first_was_killed(told: Told) -> None:
    told.order("+a", "+b", "-a", "-b")
    assert [fault.partition(": ")[2] for fault in told.faults()] == [
        "b began while a ran",
        "a ended while b ran",
        "b ended while None ran",
    ]
    told.order("+a", "+b", "-b")
    assert len(told.faults()) == 1
    assert told.faults(Harm(killed={"id-a"})) == []
