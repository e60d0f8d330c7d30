"""Two watchers where there must be one: the second one keeps away, and takes over when the first has gone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from basestation_runner.sandbox import WATCHER
from tests.chaos.conftest import rest
from tests.patience import until

if TYPE_CHECKING:
    from basestation_runner.sandbox.process import Event
    from tests.chaos.host import Host


def test_a_second_watcher_on_one_state_directory_is_refused_and_disturbs_nothing(host: Host) -> None:
    host.start_helper()
    first = host.start_watcher()
    gated = host.ask("gate")
    until(lambda: gated.runs)
    second = host.installation.start_watcher(wait=False)
    assert second.wait(20) == 1
    assert f"another watcher is running on this state directory (pid {first.pid})" in second.log.read_text()
    for number in range(4):
        host.ask(mission=number % 2)
    rest(host)


def test_of_two_watchers_with_their_own_state_one_serves_a_rundir_and_then_the_other(host: Host) -> None:
    installation = host.installation
    host.start_helper()
    first = host.start_watcher()
    own = installation.make_directory(installation.top / "second", installation.account(WATCHER), mode=0o700)
    second = installation.start_watcher("--state-dir", str(own), "--job-completions-log", str(own / "log"))
    for site in host.sites.values():
        pending = second.wait_event(partial(is_pending, site.name))
        assert f"is held by process {first.pid}" in pending["reason"]
    for number in range(10):
        host.ask(mission=number % 2)
    rest(host)
    assert not any(event["event"] == "request accepted" for event in second.events)
    assert first.stop() == 0
    late = [host.ask(mission=number % 2) for number in range(10)]
    until(lambda: all(len(request.runs) == 1 for request in late))
    second.stop()


def is_pending(site: str, event: Event) -> bool:
    return event["event"] == "site pending" and event.get("site") == site
