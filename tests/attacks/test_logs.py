"""A log's directory is exchanged without end with a link into another site's tree, while jobs are started there.

What a job prints is a request to the other site: where a log led into that site's rundir, it would be run as that site.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.attacks.attack import exchanging, fingerprint, rounds
from tests.host.helper_client import Station
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Literal

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site

    Layout = Literal["plain", "wide", "jailed"]


AT_ONCE = 8
ENDS = ("ended", "refused", "temporary", "lost")


@pytest.fixture
def station(installation: Installation) -> Iterator[Station]:
    with Station(installation) as station:
        yield station


def two_sites(station: Station, layout: Layout, *, shared: bool) -> tuple[Site, Site]:
    """Return the attacker's site and the other one; of one account and group, so that file modes protect nothing."""
    accounts = station.installation.accounts
    account = accounts.add_user("runner-shared") if shared else None
    options = {"layout": layout, "account": account, "group": "runner-shared" if shared else None}
    first = station.add_shell_site("seaglider", tree="home/seaglider", **options)
    second = station.add_shell_site("train", tree="home/train", **options)
    if not shared:
        assert first.account
        accounts.join(first.account.name, "runner-train")  # it can write there by itself: its jobs' logs must not
    return first, second


def lure(site: Site, path: Path, target: Path) -> Path:
    """Make a link out of the site: from a jail by climbing, for an absolute one stays in there."""
    path.symlink_to(target if site.jail is None else f"{'../' * 30}{target.relative_to('/')}")
    return path


def tree_of(site: Site) -> Path:
    return site.jail or site.homes


@pytest.mark.parametrize(
    ("layout", "shared"), [("plain", False), ("plain", True), ("wide", True), ("jailed", True)], ids=str
)
def test_no_log_is_opened_in_another_sites_tree_or_rundir(station: Station, layout: Layout, *, shared: bool) -> None:
    installation = station.installation
    site, other = two_sites(station, layout, shared=shared)
    mission, theirs = station.mission(site), station.mission(other)
    logs, requests = (
        installation.make_directory(mission / name, site.account, site.group, mode=0o2770)
        for name in ("logs", "requests")
    )
    lures = lure(site, mission / "lure1", theirs), lure(site, mission / "lure2", other.watch_dir)
    station.start()
    watcher = installation.start_watcher()
    before = fingerprint(tree_of(other))
    forged = f"{other.seen(theirs.parent)} {other.seen(theirs)} {other.seen(theirs)}/forged.log do.sh id"
    outcomes: Counter[str] = Counter()
    with exchanging(site.account, logs, lures[0], requests, lures[1]):
        for first in range(0, rounds(160), AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            paths = [logs / f"{number}.log" if number % 2 else requests / f"{number}.run" for number in numbers]
            orders = [
                station.order(site, mission, "do.sh", f"echo '{forged}'", log_file=site.seen(path)) for path in paths
            ]
            job_ids = [station.dispatch(order) for order in orders]
            outcomes.update(station.client.event(job_id, *ENDS)["event"] for job_id in job_ids)
            station.settle(*job_ids)
    assert set(outcomes) <= {"ended", "refused", "temporary"}, outcomes
    assert outcomes["ended"], "it never went well"
    assert outcomes["refused"], "the attack has never come near"
    assert fingerprint(tree_of(other)) == before
    assert not [event for event in watcher.events if event.get("site") == other.name and "request" in event["event"]]
    assert station.output(other, "echo ran") == "ran\n"
    station.catch_up()
    done = {event["site"] for event in station.daemon.events if event["event"] == "job started"}
    assert done == {site.name, other.name}
    assert sum(event["event"] == "job started" and event["site"] == other.name for event in station.daemon.events) == 1


LOGS = {
    "a FIFO": "fifo",
    "a device": "null",
    "a directory": "directory",
    "a link to another site's log": "theirs",
    "in a missing directory": "missing/log",
    "above the tree": "../../../../../etc/log",
    "another site's": None,
}


@pytest.mark.parametrize("shared", [False, True])
def test_a_log_that_is_none_of_the_sites_is_refused_with_a_reason_and_the_queue_goes_on(
    station: Station, *, shared: bool
) -> None:
    installation = station.installation
    site, other = two_sites(station, "wide", shared=shared)
    mission, theirs = station.mission(site), station.mission(other)
    station.start()
    watcher = installation.start_watcher()
    script = f"""
        cd {mission} && mkfifo fifo && mkdir directory && ln -s {theirs}/log theirs && ln -s /dev/null null
    """
    installation.run_as(site.account, ["sh", "-c", script])
    installation.run_as(other.account, ["sh", "-c", f"echo precious >{theirs}/log"])
    before = fingerprint(tree_of(other))
    for number, (kind, name) in enumerate(LOGS.items()):
        log = f"{theirs}/log" if name is None else f"{mission}/{name}"
        for path in (log, f"{mission}/good.log"):
            text = f"{mission.parent} {mission} {path} do.sh true\n"
            installation.drop(site, text, by=site.account, name=f"{number} {kind} {path != log}.run")

    def count(event: str) -> int:
        return sum(each["event"] == event and each["site"] == site.name for each in watcher.events)

    until(lambda: count("job refused") == len(LOGS) and count("job ended") == len(LOGS), "each to be told")
    reasons = [str(event["reason"]) for event in watcher.events if event["event"] == "job refused"]
    assert all(reason.startswith(f"the log {mission.parents[2]}") for reason in reasons), reasons
    assert all(event["exit_code"] == 0 for event in watcher.events if event["event"] == "job ended")
    assert fingerprint(tree_of(other)) == before
    assert not list(site.watch_dir.glob("*.run"))


def test_a_jailed_path_with_dots_or_an_absolute_link_stays_in_the_jail_round_after_round(station: Station) -> None:
    site, other = two_sites(station, "jailed", shared=True)
    mission, theirs = station.mission(site), station.mission(other)
    station.start()
    before = fingerprint(tree_of(other))
    up = "/.." * 20
    absolute = mission / "absolute"
    absolute.symlink_to(theirs)
    inside = site.seen(mission)
    for path in (f"{inside}{up}{theirs}/x", f"{inside}/absolute/x", f"{theirs}/x", f"{inside}/../../..{theirs}/x"):
        for field in ("log_file", "mission_dir", "home"):
            event = station.outcome(station.order(site, mission, "do.sh", "pwd", **{field: path}))
            assert event["event"] == "refused", (field, path)
    assert fingerprint(tree_of(other)) == before
    assert station.output(site, "pwd").startswith(str(tree_of(site)))
