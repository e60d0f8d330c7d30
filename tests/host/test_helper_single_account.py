"""A helper without capabilities: it runs what is its own already, and refuses the rest in plain words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.host.helper_client import DEADLINE, Station

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.process import Daemon


@pytest.fixture
def station(installation: Installation) -> Iterator[Station]:
    """A station whose helper and watcher are an ordinary account, in a group besides its own."""
    installation.accounts.add_group("science")
    installation.accounts.add_user("somebody", groups=["science"])
    with Station(installation) as station:
        yield station


@pytest.fixture
def somebody(station: Station) -> Account:
    return station.installation.accounts.user("somebody")


def start(station: Station, somebody: Account) -> Daemon:
    """Start a helper of that account with all its files in a directory of its own, and connect to it."""
    station.daemon = start_only(station, somebody)
    station.daemon.wait_ready()
    station.client = station.connect_at(own_directory(station, somebody) / "socket", somebody)
    return station.daemon


def start_only(station: Station, somebody: Account, *arguments: str, capabilities: tuple[str, ...] = ()) -> Daemon:
    directory = own_directory(station, somebody)
    return station.installation.start_helper(
        *("--watcher-user", "somebody", "--priv-exec-socket", str(directory / "socket")),
        *("--state-dir", str(directory), "--cache-dir", str(directory), "--cgroup-root", str(directory / "cgroup")),
        *arguments,
        account="somebody",
        capabilities=capabilities,
        wait=False,
    )


def own_directory(station: Station, somebody: Account) -> Path:
    return station.installation.make_directory(station.installation.top / "own", somebody)


def test_a_site_of_the_helpers_own_account_is_served_as_that_account(station: Station, somebody: Account) -> None:
    site = station.add_site("own", account=somebody)
    daemon = start(station, somebody)
    assert daemon.wait_event(lambda event: event["event"] == "helper ready")["mode"] == "single-account mode"
    report = station.report(site)
    assert report["uids"] == [somebody.uid] * 3
    assert report["gids"] == [somebody.gid] * 3
    assert set(report["groups"]) == {somebody.gid, station.installation.accounts.gid("science")}
    assert (report["no_new_privs"], report["umask"], report["session"]) == (1, 0o002, report["pid"])
    assert report["descriptors"].keys() == {"0", "1", "2"}
    assert [report["capabilities"][name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == ["0" * 16] * 4


def test_a_site_of_another_account_is_refused_and_the_own_one_is_served(station: Station, somebody: Account) -> None:
    own, other = station.add_shell_site("own", account=somebody), station.add_shell_site("other")
    start(station, somebody)
    (warning,) = station.warnings("site cannot run jobs")
    assert warning["site"] == "other"
    reason = station.refusal(station.order(other, station.mission(other), "do.sh", "echo ran"))
    assert reason == warning["reason"] == "the helper has no capabilities and cannot become runner-other"
    assert station.output(own, "echo ran") == "ran\n"


def test_a_job_of_the_own_account_is_cancelled(station: Station, somebody: Account) -> None:
    site = station.add_shell_site("own", account=somebody)
    start(station, somebody)
    order = station.order(site, station.mission(site), "do.sh", "sleep 1000")
    station.start_job(order)
    station.client.send({"request": "cancel", "job_ids": [order["job_id"]]})
    record = station.client.event(order["job_id"], "ended")["record"]
    assert (record["signal"], record["cancelled"]) == (15, True)


@pytest.mark.parametrize("groups", [["science"], ["science", "somebody"], ["somebody"]])
def test_a_site_that_needs_other_groups_than_the_helpers_is_refused(
    station: Station, somebody: Account, groups: list[str]
) -> None:
    site = station.add_shell_site("own", account=somebody, groups=groups)
    start(station, somebody)
    reason = station.refusal(station.order(site, station.mission(site), "do.sh", "echo ran"))
    assert reason == "the helper has no capabilities and its own groups are not the site's execution groups"


def test_a_group_that_the_account_gained_since_is_not_pretended(station: Station, somebody: Account) -> None:
    site = station.add_shell_site("own", account=somebody)
    start(station, somebody)
    assert station.output(site, "echo ran") == "ran\n"
    station.installation.accounts.add_group("new")
    station.installation.accounts.join("somebody", "new")
    reason = station.refusal(station.order(site, station.mission(site), "do.sh", "echo ran"))
    assert "its own groups are not the site's" in reason


def test_it_may_use_its_own_accounts_config(station: Station, somebody: Account) -> None:
    site = station.add_shell_site("own", account=somebody)
    config = station.installation.sites_config
    os.chown(config, somebody.uid, somebody.gid)
    config.chmod(0o664)
    start(station, somebody)
    assert station.output(site, "echo ran") == "ran\n"


def test_with_the_capabilities_the_same_files_are_refused(station: Station, somebody: Account) -> None:
    station.add_shell_site("own", account=somebody)
    os.chown(station.installation.sites_config, somebody.uid, somebody.gid)
    daemon = start_only(station, somebody, capabilities=("setuid", "setgid"))
    assert daemon.wait(DEADLINE) == 1
    assert "belongs to uid" in daemon.log.read_text()
