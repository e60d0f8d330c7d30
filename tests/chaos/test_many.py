"""Very many requests and very many sites: each request runs once, each site is served.

FLOOD_REQUESTS says how many requests: 1,600 by default, for the sake of whoever waits for the tests. For 20,000:
FLOOD_REQUESTS=20000 make test ARGS="-k flood -o faulthandler_timeout=3600"
"""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from basestation_runner.sandbox.installation import Site
from tests.chaos.conftest import rest
from tests.chaos.host import Host
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Installation

FLOOD = int(os.environ.get("FLOOD_REQUESTS", "1600"))
SITES = 1000


@pytest.fixture
def eight(installation: Installation) -> Iterator[Host]:
    with Host(installation) as host:
        host.add_sites(8, missions=4)
        yield host


def test_a_flood_of_requests_at_eight_sites_runs_each_of_them_once(eight: Host) -> None:
    eight.start_helper()
    eight.start_watcher("--max-running", "32")
    eight.flood(FLOOD)
    rest(eight)
    assert sum(len(request.runs) for request in eight.requests.values()) == len(eight.requests) == FLOOD


def test_a_flood_that_makes_the_event_queue_overflow_loses_none_and_neither_does_a_kill(eight: Host) -> None:
    """The watcher is stopped until the kernel has dropped events; then it is killed while it catches up."""
    eight.start_helper()
    watcher = eight.start_watcher("--max-running", "32")
    watcher.send_signal(signal.SIGSTOP)
    rundir = eight.sites["site1"].watch_dir
    one, two = rundir / "one", rundir / "two"
    one.touch()
    for _ in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) // 2 + 100):
        one.rename(two)
        two.rename(one)
    eight.flood(FLOOD // 4)
    one.unlink()
    watcher.send_signal(signal.SIGCONT)
    watcher.wait_event(lambda event: "inotify queue overflow" in str(event["event"]), timeout=60)
    watcher.wait_event(lambda event: event["event"] == "request accepted", timeout=60)
    watcher.kill()
    eight.start_watcher("--max-running", "32")
    rest(eight)


def test_a_thousand_sites_are_served_from_one_start_on(installation: Installation) -> None:
    first = installation.add_site("site0000", "site0000", layout="wide", python_version="/bin/sh")
    installation.write(installation.scripts / "Base.py", 'echo "$RUNNER_SITE" > "$1"\n')
    for number in range(1, SITES):
        name = f"site{number:04}"
        top = installation.make_directory(installation.top / name)
        watch_dir = installation.make_directory(top / "rundir", first.account, first.group, mode=0o2775)
        entry = {**first.entry, "watch_dir": str(watch_dir), "jail_root": str(top)}
        installation.sites[name] = Site(name, first.account, first.group, watch_dir, top, None, entry)
    entries = {name: dict(site.entry) for name, site in installation.sites.items()}
    installation.write(installation.sites_config, json.dumps(entries, indent=1))
    installation.start_helper(wait=False).wait_ready(timeout=120)
    watcher = installation.start_watcher(wait=False)
    watcher.wait_ready(timeout=120)
    watcher.wait_notification(lambda line: f"{SITES} sites watching" in line, timeout=120)
    asked = [installation.sites[f"site{number:04}"] for number in (0, 1, 500, SITES - 1)]
    for site in asked:
        mission = installation.make_directory(site.homes / "m", site.account, site.group, mode=0o2770)
        text = f"{mission} {mission} {mission}/job.log Base.py {mission}/ran\n"
        (site.watch_dir / "new").write_text(text)
        (site.watch_dir / "new").rename(site.watch_dir / "1.run")
    for site in asked:
        until(partial(has_run, site))


def has_run(site: Site) -> bool:
    ran = site.homes / "m/ran"
    return ran.exists() and ran.read_text() == f"{site.name}\n"
