"""What runs when: queues, bounds, turns, priorities, through the whole watcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.watch.conftest import Bench

EARLY = "GliderEarlyGPS.py"


def missions(bench: Bench) -> list[str]:
    return [sent["mission_dir"].rpartition("/")[2] for sent in bench.helper.dispatched]


def settled(bench: Bench, accepted: int) -> None:
    """Wait until so many requests were accepted and whatever may start has started."""
    bench.until(lambda: len(bench.events("request accepted")) == accepted)
    bench.on_loop(lambda: None)


def test_two_requests_of_one_queue_run_in_order_and_one_after_the_other(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for name in ("b.run", "a.run", "c.run"):
        bench.drop(rundir, name)
    settled(bench, 3)
    for count in (1, 2, 3):
        bench.until(lambda count=count: len(bench.helper.dispatched) == count)  # type: ignore[misc]
        bench.helper.finish(bench.helper.dispatched[-1]["job_id"])
    bench.until(lambda: len(bench.events("job ended")) == 3)
    by_id = {entry["job_id"]: entry["request"] for entry in bench.events("request accepted")}
    assert [by_id[sent["job_id"]] for sent in bench.helper.dispatched] == ["b.run", "a.run", "c.run"]
    assert [sent["queue_length"] for sent in bench.helper.dispatched] in ([0, 1, 0], [1, 1, 0], [2, 1, 0])


def test_different_queues_run_side_by_side(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run", n=1)
    bench.drop(rundir, "2.run", n=2)  # another mission
    bench.drop(rundir, "3.run", n=1, script="BaseLogin.py")  # another script
    other = "/home/sg124 /home/sg123/mission1 /home/sg123/mission1/baselog.log Base.py"
    bench.drop(rundir, "4.run", text=other)  # another glider
    bench.until(lambda: len(bench.helper.dispatched) == 4)


def test_a_site_that_does_not_queue_scripts_runs_one_job_at_a_time_and_blocks_no_other(bench: Bench) -> None:
    rundir, other = bench.site("alpha", queue_scripts=False), bench.site("beta")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for number in range(4):
        bench.drop(rundir, f"{number}.run", n=number)
        bench.drop(other, f"{number}.run", n=number)
    settled(bench, 8)
    sites = [sent["site"] for sent in bench.helper.dispatched]
    assert (sites.count("alpha"), sites.count("beta")) == (1, 4)


def test_a_site_runs_no_more_than_its_maximum_but_interactive_jobs_are_not_counted(bench: Bench) -> None:
    rundir = bench.site("alpha", max_running=2)
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for number in range(5):
        bench.drop(rundir, f"{number}.run", n=number)
    settled(bench, 5)
    assert len(bench.helper.dispatched) == 2
    bench.drop(rundir, "early.run", n=1, script=EARLY)
    bench.until(lambda: len(bench.helper.dispatched) == 3)
    assert bench.helper.scripts[-1] == EARLY


def test_the_host_runs_no_more_than_its_maximum_and_sites_take_turns(bench: Bench) -> None:
    bench.max_running = 2
    rundirs = [bench.site(name) for name in ("alpha", "beta")]
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for number in range(20):
        bench.drop(rundirs[0], f"{number}.run", n=number)
    settled(bench, 20)
    for number in range(3):
        bench.drop(rundirs[1], f"{number}.run", n=number)
    settled(bench, 23)
    assert len(bench.helper.dispatched) == 2
    for count in range(8):
        bench.helper.finish(bench.helper.dispatched[count]["job_id"])
        bench.until(lambda count=count: len(bench.helper.dispatched) == count + 3)  # type: ignore[misc]
    assert [sent["site"] for sent in bench.helper.dispatched][2:8].count("beta") == 3


def test_an_interactive_job_starts_although_everything_is_full_of_normal_ones(bench: Bench) -> None:
    bench.max_running = 1
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    for number in range(50):
        bench.drop(rundir, f"{number}.run", n=number)
    settled(bench, 50)
    bench.drop(rundir, "early.run", script=EARLY)
    bench.until(lambda: bench.helper.scripts == ["Base.py", EARLY])


def test_the_next_job_of_a_queue_is_committed_with_the_end_of_the_last(bench: Bench) -> None:
    """One commit, not two, lies between an exit and the next start."""
    rundir = bench.site("alpha")
    bench.helper.on_dispatch = bench.helper.hold
    made = bench.start()
    bench.drop(rundir, "1.run")
    bench.drop(rundir, "2.run")
    settled(bench, 2)
    bench.until(lambda: len(bench.events("job started")) == 1 and not list(rundir.glob("*.run")))
    commits: list[int] = []
    real = made.ledger.commit

    def commit() -> object:
        commits.append(len(bench.helper.dispatched))
        return real()

    bench.patch.setattr(made.ledger, "commit", commit)
    bench.on_loop(commits.clear)
    bench.helper.finish(bench.helper.dispatched[0]["job_id"])
    bench.until(lambda: len(bench.helper.dispatched) == 2)
    assert commits[0] == 1
    assert 2 not in commits[:1]


@pytest.mark.parametrize("helper", ["away", "there"])
def test_every_waiting_job_has_a_reason_that_a_person_can_read(bench: Bench, helper: str) -> None:
    rundir = bench.site("alpha", max_running=1)
    if helper == "away":
        bench.helper.kill()
    bench.helper.on_dispatch = bench.helper.hold
    made = bench.start()
    for number in range(2):
        bench.drop(rundir, f"{number}.run", n=number)
        bench.drop(rundir, f"{number} again.run", n=number)
    settled(bench, 4)
    waiting = bench.on_loop(
        lambda: [made.jobs.reason(job) for job in made.jobs._dispatcher.jobs() if job.state == "queued"]
    )
    if helper == "away":
        assert waiting == ["the helper is not reachable"] * 4
    else:
        assert sorted(waiting) == [
            "another job of its queue is before it",
            "another job of its queue is before it",
            "its site runs as many jobs as it may (1)",
        ]


def test_the_visualiser_is_told_of_jobs_whose_application_wants_it(bench: Bench) -> None:
    jail = bench.directory / "jail"
    rundir = bench.site("alpha", jail_root=str(jail))
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    bench.drop(rundir, "1.run")
    settled(bench, 1)
    bench.drop(rundir, "login.run", script="BaseLogin.py")
    bench.drop(rundir, "2.run")
    settled(bench, 3)
    first = bench.helper.dispatched[0]["job_id"]
    bench.helper.finish(first, exit_code=3)
    bench.until(lambda: len(bench.helper.dispatched) == 3)
    second = bench.helper.dispatched[-1]["job_id"]
    bench.helper.say({"event": "lost", "job_id": second, "reason": "gone"})
    bench.until(lambda: bench.events("job lost"))
    notices = [(notice["action"], notice["job_id"], notice["returncode"]) for notice in bench.notices]
    assert notices == [
        ("queued", first, None),
        ("start", first, None),
        ("queued", second, None),
        ("complete", first, 3),
        ("start", second, None),
        ("complete", second, None),
    ]
    assert bench.notices[2]["uuids"] == [first, second]
    assert {notice["mission_dir"] for notice in bench.notices} == {f"{jail}/home/sg123/mission1"}
    assert {notice["home"] for notice in bench.notices} == {"/home/sg123"}
