"""A ledger that is damaged while jobs wait and run: no job runs twice, and what can be known is known afterwards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.chaos.conftest import rest
from tests.patience import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.host import Host, Request

FILES = ("ledger.db", "ledger.db-wal", "ledger.db-shm")


def busy(host: Host) -> list[Request]:
    """Have jobs ended, running and waiting at both sites; return the running ones' requests."""
    host.start_helper()
    host.start_watcher()
    for number in range(6):
        host.ask(mission=number % 2)
    rest(host)
    running = [host.ask("gate", mission=which) for which in (0, 1)]
    until(lambda: all(request.runs for request in running))
    until(lambda: all((job := host.job(request)) and job.state == "running" for request in running))
    return running


@pytest.fixture
def state(host: Host) -> Path:
    return host.installation.watcher_state


def test_a_ledger_whose_first_page_was_overwritten_loses_no_job_that_runs_or_waits(host: Host, state: Path) -> None:
    busy(host)
    waiting = [host.ask(mission=number % 2) for number in range(8)]
    until(lambda: not any(host.waits(request) for request in waiting))
    assert host.watcher is not None
    host.watcher.stop()
    with (state / "ledger.db").open("r+b") as file:
        file.write(os.urandom(4096))
    watcher = host.start_watcher()
    watcher.wait_event(lambda event: event["event"] == "ledger was damaged: what could be read of it is in a new one")
    late = [host.ask(mission=number % 2) for number in range(4)]
    rest(host)
    assert all(request.runs for request in late)


def test_a_ledger_of_which_nothing_is_left_runs_nothing_twice_and_nothing_beside_a_running_job(
    host: Host, state: Path
) -> None:
    """Only the helper knows the jobs that run; how they end is in the new ledger."""
    running = busy(host)
    assert host.watcher is not None
    host.watcher.kill()
    for name in FILES:
        (state / name).write_bytes(os.urandom(5000))
    watcher = host.start_watcher()
    watcher.wait_event(lambda event: event["event"] == "helper was asked for jobs that the ledger may have lost")
    late = [host.ask(mission=number % 2) for number in range(4)]
    until(lambda: not any(host.waits(request) for request in late))
    assert not any(request.runs for request in late)
    host.open_gates()
    until(lambda: all((job := host.job(request)) and job.ended for request in late))
    assert [(job.state, job.exit_code) for request in running if (job := host.job(request))] == [("succeeded", 0)] * 2
    assert all(len(request.runs) == 1 for request in host.requests.values())
    (kept,) = state.glob("damaged-*")
    assert {path.name for path in kept.iterdir()} == set(FILES)
    assert host.marks() == []
