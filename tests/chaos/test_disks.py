"""Disks that are full or cannot be written: nothing is acknowledged, nothing is lost, and all goes on by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.conftest import rest
from tests.patience import until

if TYPE_CHECKING:
    from basestation_runner.sandbox.process import Event
    from tests.chaos.conftest import Disk
    from tests.chaos.host import Host, Request


def is_held(event: Event) -> bool:
    return bool(event["event"] == "ledger cannot be written: nothing is accepted or started")


def asked_until_held(host: Host) -> list[Request]:
    """Drop requests until one cannot be written down; return what was dropped."""
    assert host.watcher is not None
    asked: list[Request] = []
    while not any(map(is_held, host.watcher.events)):
        asked.append(host.ask(mission=len(asked) % 2))
        until(lambda: not host.waits(asked[-1]) or any(map(is_held, host.watcher.events)))  # type: ignore[union-attr]
    return asked


def test_on_a_full_disk_nothing_is_acknowledged_and_with_room_all_goes_on_by_itself(
    host: Host, watcher_disk: Disk
) -> None:
    host.start_helper()
    watcher = host.start_watcher()
    host.ask()
    rest(host)
    watcher_disk.fill()
    asked_until_held(host)
    late = [host.ask(mission=number % 2) for number in range(6)]
    watcher.wait_notification(lambda line: "the ledger cannot be written" in line)
    assert all(host.waits(request) for request in late)
    assert not any(request.runs for request in late)
    watcher_disk.free()
    rest(host)
    assert len([event for event in watcher.events if is_held(event)]) == 1
    watcher.wait_event(lambda event: event["event"] == "ledger can be written again")


def test_a_watcher_that_is_killed_on_a_full_disk_has_lost_nothing(host: Host, watcher_disk: Disk) -> None:
    host.start_helper()
    watcher = host.start_watcher()
    host.ask("gate")
    until(lambda: len(host.running_jobs()) == 1)
    watcher_disk.fill()
    asked_until_held(host)
    watcher.kill()
    host.ask()
    for _ in range(2):  # whether it can start or not
        host.start_watcher(wait=False).kill()
    watcher_disk.free()
    host.start_watcher()
    rest(host)


def test_a_ledger_on_a_read_only_disk_is_refused_and_taken_up_when_it_can_be_written(
    host: Host, watcher_disk: Disk
) -> None:
    host.start_helper()
    host.start_watcher().stop()
    watcher_disk.forbid_writing()
    request = host.ask()
    watcher = host.start_watcher(wait=False)
    assert watcher.wait(20) in {1, 75}
    assert "Read-only file system" in watcher.log.read_text()
    assert host.waits(request)
    watcher_disk.forbid_writing(forbid=False)
    host.start_watcher()
    rest(host)


def test_jobs_whose_claims_cannot_be_written_keep_their_places_and_say_why(host: Host, helper_disk: Disk) -> None:
    host.start_helper()
    watcher = host.start_watcher()
    host.ask()
    rest(host)
    helper_disk.fill()
    asked = [host.ask() for _ in range(3)]
    line = watcher.wait_event(lambda event: event["event"] == "job postponed")
    assert line["reason"] == "the claim cannot be written: No space left on device"
    assert not any(request.runs for request in asked)
    helper_disk.free()
    rest(host)


def test_the_end_of_a_job_is_known_although_its_record_cannot_be_written(host: Host, helper_disk: Disk) -> None:
    host.start_helper()
    host.start_watcher()
    request = host.ask("gate")
    until(lambda: request.runs)
    helper_disk.fill()
    host.open_gates()
    until(lambda: (job := host.job(request)) is not None and job.state == "succeeded")
    helper_disk.free()
    rest(host)


def test_a_keeper_keeps_a_record_that_it_can_neither_write_nor_tell(host: Host, helper_disk: Disk) -> None:
    """The disk is full and the helper is dead when the job ends; a later helper hears of it when there is room."""
    helper = host.start_helper()
    host.start_watcher()
    request = host.ask("gate")
    until(lambda: (job := host.job(request)) is not None and job.state == "running")
    helper_disk.fill()
    helper.kill()
    host.open_gates()
    until(lambda: not host.running_of(request))
    host.start_helper()
    assert len(host.keepers()) == 1
    helper_disk.free()
    rest(host)
