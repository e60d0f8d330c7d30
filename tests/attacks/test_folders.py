"""What the watcher makes and moves in a rundir, while the site's people put links and worse in its place."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from basestation_runner.watch.lockfile import NAME as LOCK
from tests.attacks.attack import exchanging, fingerprint, rounds
from tests.patience import until

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon


@pytest.fixture(params=[False, True], ids=["own accounts", "one account for both"])
def sites(installation: Installation, request: pytest.FixtureRequest) -> tuple[Site, Site]:
    """The attacker's site and the other one. With one account for both, file modes protect nothing."""
    account = installation.accounts.add_user("runner-shared") if request.param else None
    return (
        installation.add_site("seaglider", "home/seaglider", account=account, archive=True),
        installation.add_site("train", "home/train", account=account),
    )


def begin(installation: Installation) -> Daemon:
    installation.start_helper()
    return installation.start_watcher()


def drop(installation: Installation, site: Site, name: str, *, good: bool = True) -> Path:
    text = f"{site.homes} {site.homes} {site.homes}/job.log Base.py\n" if good else "bad\n"
    return installation.drop(site, text, by=site.account, name=name).path


def stranger(installation: Installation, site: Site, kind: str, name: str, target: Path) -> Path:
    """Have the site's people make something under a name in their rundir."""
    path = site.watch_dir / name
    words = {
        "link": ["ln", "-s", str(target), str(path)],
        "dangling link": ["ln", "-s", f"{target}/nothing", str(path)],
        "FIFO": ["mkfifo", str(path)],
        "file": ["touch", str(path)],
        "directory": ["mkdir", str(path)],
    }[kind]
    installation.run_as(site.account, words)
    return path


@pytest.mark.parametrize("kind", ["link", "dangling link", "FIFO", "file", "directory"])
def test_nothing_in_the_place_of_a_folder_or_the_lock_leads_elsewhere_or_stops_the_site(
    installation: Installation, sites: tuple[Site, Site], kind: str
) -> None:
    site, other = sites
    (old := drop(installation, site, "old.run")).touch()
    os.utime(old, (1e9, 1e9))
    for name in ("archive", "rejected", "stale", LOCK):
        target = other.watch_dir if name != LOCK else other.watch_dir / "precious"
        stranger(installation, site, kind, name, target)
    (other.watch_dir / "precious").write_text("precious\n")
    installation.start_helper()
    watcher = installation.start_watcher()
    before = fingerprint(other.watch_dir)
    for number in range(3):
        drop(installation, site, f"{number}.run")
        drop(installation, site, f"bad{number}.run", good=False)
    until(lambda: count(watcher, site, "job ended") == 3, "the good ones to run")
    until(lambda: count(watcher, site, "request rejected") == 3, "the bad ones to be told of")
    until(lambda: not requests(site), "the rundir to be empty")
    assert count(watcher, site, "stale requests set aside") == 1
    assert fingerprint(other.watch_dir) == before
    assert watcher.stop() == 0
    lock = site.watch_dir / LOCK
    assert lock.is_dir() if kind == "directory" else not lock.exists()
    assert (other.watch_dir / "precious").read_text() == "precious\n"


@pytest.mark.parametrize("name", ["archive", "rejected"])
def test_a_folder_that_is_exchanged_without_end_with_a_link_never_leads_into_another_sites_rundir(
    installation: Installation, sites: tuple[Site, Site], name: str
) -> None:
    site, other = sites
    watcher = begin(installation)
    folder = stranger(installation, site, "directory", name, other.watch_dir)
    folder.chmod(0o2775)
    lure = stranger(installation, site, "link", "lure", other.watch_dir)
    before = fingerprint(other.watch_dir)
    total = rounds(100)
    with exchanging(site.account, folder, lure):
        for number in range(total):
            path = site.watch_dir / f"{number}.run"
            good = name == "archive"
            path.write_text(f"{site.homes} {site.homes} {site.homes}/job.log Base.py\n" if good else "bad\n")
        until(lambda: not requests(site), "the rundir to be empty")
        assert fingerprint(other.watch_dir) == before
    assert fingerprint(other.watch_dir) == before
    kept = [path for path in site.watch_dir.rglob("*") if path.name.split(".")[0].isdigit() and path.is_file()]
    assert sum(path.suffix != ".reason" for path in kept) == total
    assert count(watcher, other, "request accepted") == 0
    drop(installation, other, "last.run")
    until(lambda: count(watcher, other, "job ended") == 1, "the other site to be served")


@pytest.mark.parametrize("names", [(LOCK, "lure"), ("1.run", "2.run")], ids=["the lock", "requests"])
def test_a_site_that_makes_events_without_end_touches_no_other_and_delays_none(
    installation: Installation, sites: tuple[Site, Site], names: tuple[str, str]
) -> None:
    """Its lock is one moment a file, the next a link to the other site's lock; or it renames without end."""
    site, other = sites
    watcher = begin(installation)
    lock = other.watch_dir / LOCK
    before = (lock.read_text(), lock.stat().st_ino, lock.stat().st_mtime_ns)
    places = [site.watch_dir / name for name in names]
    for place, kind in zip(places, ("file", "link"), strict=True):
        if not place.exists():
            stranger(installation, site, kind, place.name, lock)
    with exchanging(site.account, *places):
        assert longest_wait(installation, other, rounds(20)) < 2
    assert (lock.read_text(), lock.stat().st_ino, lock.stat().st_mtime_ns) == before
    until(lambda: count(watcher, other, "request accepted") == rounds(20), "each to be accepted once")
    drop(installation, site, "after.run")
    until(lambda: count(watcher, site, "job ended") == 1, "the attacker's site to be served again")


def longest_wait(installation: Installation, site: Site, times: int) -> float:
    """Return how long at most a client of a site has waited for the acknowledgement of a request, in seconds."""
    waits = []
    for number in range(times):
        text = f"{site.homes} {site.homes} {site.homes}/job.log Base.py\n"
        made = installation.drop(site, text, by=site.account, name=f"{number}.run")
        until(lambda path=made.path: not path.exists(), "the acknowledgement")  # type: ignore[misc]
        waits.append((time.time_ns() - made.closed_ns) / 1e9)
    return max(waits)


def requests(site: Site) -> list[str]:
    """Return what lies in the rundir as a request, or is on its way out of it under the watcher's private name."""
    names = (path.name for path in site.watch_dir.iterdir())
    return [name for name in names if name.endswith(".run") or name.startswith(".taken-")]


def count(watcher: Daemon, site: Site, event: str) -> int:
    return sum(each["event"] == event and each["site"] == site.name for each in watcher.events)
