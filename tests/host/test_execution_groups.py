"""Which groups a job gets, with real accounts and real jobs: what was asked for, never more, looked up each time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.host.helper_client import Gate, NameService, Station

if TYPE_CHECKING:
    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.accounts import Accounts
    from basestation_runner.sandbox.installation import Site
    from tests.host.helper_client import Message

DROPPED = "the account lacks some of the site's supplementary groups: the job runs without them"


@pytest.fixture
def account(accounts: Accounts) -> Account:
    """An account in three groups besides its own."""
    for group in ("science", "ops", "archive"):
        accounts.add_group(group)
    return accounts.add_user("runner-one", groups=["science", "ops", "archive"])


def serve(station: Station, account: Account, *groups: str | int, by_group: str = "runner-one") -> Site:
    """Start a helper with a site of the account that names these groups; none: all that it has."""
    named = {"groups": list(groups)} if groups else {}
    site = station.add_shell_site("one", account=account, group=by_group, **named)
    station.start()
    return site


def groups_of_job(station: Station, site: Site) -> tuple[int, set[int]]:
    """Run a job and return its effective GID and its supplementary list, as the kernel has them."""
    text = station.output(site, "grep -E '^(Gid|Groups):' /proc/self/status")
    gids, groups = (set(map(int, line.split()[1:])) for line in text.splitlines())
    assert len(gids) == 1, "real, effective, saved and filesystem GID are one"
    return gids.pop(), groups


def test_a_site_that_names_no_groups_gets_all_of_its_accounts_the_primary_first(
    station: Station, account: Account, accounts: Accounts
) -> None:
    site = serve(station, account)
    wanted = {account.gid, *(accounts.gid(name) for name in ("science", "ops", "archive"))}
    assert groups_of_job(station, site) == (account.gid, wanted)


def test_naming_groups_narrows_and_the_first_is_the_effective_one(
    station: Station, account: Account, accounts: Accounts
) -> None:
    site = serve(station, account, "science", "ops")
    wanted = (accounts.gid("science"), {accounts.gid("science"), accounts.gid("ops")})
    assert groups_of_job(station, site) == wanted
    assert not station.warnings(site="one", event=DROPPED), "groups that were not asked for are no reason to warn"


def test_a_single_named_group_is_all_that_a_job_gets(station: Station, account: Account, accounts: Accounts) -> None:
    site = serve(station, account, "ops")
    assert groups_of_job(station, site) == (accounts.gid("ops"), {accounts.gid("ops")})


def test_groups_are_named_by_number_as_well(station: Station, account: Account, accounts: Accounts) -> None:
    site = serve(station, account, accounts.gid("science"), "ops", account.gid, accounts.gid("science"))
    wanted = {accounts.gid("science"), accounts.gid("ops"), account.gid}
    assert groups_of_job(station, site) == (accounts.gid("science"), wanted)


def test_a_file_that_denies_the_effective_group_is_closed_to_the_job(
    station: Station, account: Account, accounts: Accounts
) -> None:
    """It could be opened as "others" if the effective group were not in the supplementary list too."""
    site = serve(station, account, "science", "ops")
    secret = station.installation.top / "secret"
    secret.write_text("content")
    os.chown(secret, 0, accounts.gid("science"))
    secret.chmod(0o704)
    code = f"test -r {secret} && echo open || echo closed"
    assert station.output(site, code) == "closed\n"


def test_more_groups_than_fit_a_first_buffer_are_all_granted(station: Station, accounts: Accounts) -> None:
    account = accounts.add_user("runner-one")
    gids = {accounts.add_group(f"g{number}") for number in range(100)}
    accounts.join("runner-one", *(f"g{number}" for number in range(100)))
    site = serve(station, account)
    assert groups_of_job(station, site) == (account.gid, gids | {account.gid})


@pytest.mark.parametrize("gid", [2_147_483_648, 4_294_967_294])
def test_a_gid_above_two_to_the_31st_is_a_gid_like_any_other(station: Station, accounts: Accounts, gid: int) -> None:
    account = accounts.add_user("runner-one")
    accounts.add_group("high", gid=gid)
    accounts.join("runner-one", "high")
    site = serve(station, account, "high", "runner-one")
    assert groups_of_job(station, site) == (gid, {gid, account.gid})
    mission = station.mission(site)
    station.run(station.order(site, mission, "do.sh", "touch made"))
    assert (mission / "made").stat().st_gid == account.gid, "by the directory's set-group-ID bit"
    assert (mission / "job.log").stat().st_gid == gid


def test_an_entry_of_a_name_service_may_be_of_any_length(station: Station, accounts: Accounts) -> None:
    """The first buffer is too small for it, which is no sign that there is no such account or group."""
    accounts.add_group("crowd")
    account = accounts.add_user("runner-one", groups=["crowd"], home="/long" * 3000)
    accounts.join("x" * 200_000, "crowd")
    site = serve(station, account, "crowd")
    assert groups_of_job(station, site) == (accounts.gid("crowd"), {accounts.gid("crowd")})


# What an account lacks


def not_started(station: Station, order: Message) -> str:
    """Send an order that is to be tried again because something is absent, and return the reason."""
    event = station.outcome(order)
    assert (event["event"], event["absent"]) == ("temporary", True), event
    assert not Path(order["log_file"]).exists(), "nothing of the job has been started"
    return str(event["reason"])


def test_a_job_whose_effective_group_the_account_lost_is_not_started(
    station: Station, account: Account, accounts: Accounts
) -> None:
    site = serve(station, account, "science", "ops")
    assert groups_of_job(station, site)[0] == accounts.gid("science")
    accounts.leave("runner-one", "science")
    order = station.order(site, station.mission(site), "do.sh", "echo ran")
    reason = f"the account is not in its effective group (GID {accounts.gid('science')})"
    assert not_started(station, order) == reason
    accounts.join("runner-one", "science")
    assert station.run(order)["exit_code"] == 0, "it was only late"


def test_a_job_whose_effective_group_is_gone_is_not_started(
    station: Station, account: Account, accounts: Accounts
) -> None:
    site = serve(station, account, "science")
    accounts.remove_group("science")
    order = station.order(site, station.mission(site), "do.sh", "echo ran")
    assert not_started(station, order) == "the effective group science is not known"


def test_a_job_whose_account_is_gone_is_not_started(station: Station, account: Account, accounts: Accounts) -> None:
    site = serve(station, account)
    mission = station.mission(site)
    accounts.remove_user("runner-one")
    assert not_started(station, station.order(site, mission, "do.sh", "echo ran")) == (
        "account runner-one is not known"
    )


def test_membership_is_the_accounts_own_and_not_the_helpers(station: Station, accounts: Accounts) -> None:
    accounts.add_group("helpers")
    accounts.join("baserunner-exec", "helpers")
    account = accounts.add_user("runner-one")
    site = serve(station, account, "helpers")
    order = station.order(site, station.mission(site), "do.sh", "echo ran")
    assert str(accounts.gid("helpers")) in not_started(station, order)


@pytest.mark.parametrize("how", ["left", "gone"])
def test_a_supplementary_group_that_the_account_lacks_is_dropped_with_one_warning(
    station: Station, account: Account, accounts: Accounts, how: str
) -> None:
    site = serve(station, account, "science", "ops", "archive")
    ops = accounts.gid("ops")
    if how == "left":
        accounts.leave("runner-one", "ops")
    else:
        accounts.remove_group("ops")
    wanted = (accounts.gid("science"), {accounts.gid("science"), accounts.gid("archive")})
    for _ in range(3):
        assert groups_of_job(station, site) == wanted
    (warning,) = station.warnings(site="one")
    assert warning["event"] == DROPPED
    assert set(warning) == {"time", "level", "program", "site", "event"}
    assert str(ops) not in str(warning)


def test_the_audit_line_lists_what_was_granted(station: Station, account: Account, accounts: Accounts) -> None:
    site = serve(station, account, "science", "archive", "ops")
    accounts.leave("runner-one", "archive")
    groups_of_job(station, site)
    line = station.daemon.wait_event(lambda event: event["event"] == "job started")
    assert line["groups"] == [accounts.gid("science"), accounts.gid("ops")]


def test_a_group_that_is_given_to_the_account_counts_from_the_next_job_on(
    station: Station, account: Account, accounts: Accounts
) -> None:
    site = serve(station, account)
    before = groups_of_job(station, site)[1]
    new = accounts.add_group("new")
    accounts.join("runner-one", "new")
    assert groups_of_job(station, site)[1] == before | {new}
    accounts.leave("runner-one", "new", "science")
    assert groups_of_job(station, site)[1] == before - {accounts.gid("science")}


def test_the_groups_of_a_running_job_stay_as_they_were(station: Station, account: Account, accounts: Accounts) -> None:
    site = serve(station, account)
    with Gate(station.installation.top / "gate") as gate:
        order = station.order(site, station.mission(site), "do.sh", f"id -G; {gate.in_shell}; id -G")
        station.start_job(order)
        accounts.leave("runner-one", "science", "ops", "archive")
        gate.open()
        before, after = station.client.event(order["job_id"], "ended")["record"]["log_tail"].splitlines()
    assert before == after
    assert str(accounts.gid("science")) in before.split()


# A name service in trouble


@pytest.fixture
def names(installation: Installation) -> NameService:
    return NameService(installation)


@pytest.fixture
def two_sites(station: Station, names: NameService) -> tuple[Site, Site]:
    sites = station.add_shell_site("one"), station.add_shell_site("two")
    station.start(command=names.command)
    return sites


def test_a_look_up_that_hangs_keeps_only_its_own_job_waiting(
    station: Station, names: NameService, two_sites: tuple[Site, Site]
) -> None:
    one, two = two_sites
    names.hang("runner-one")
    waiting = [station.order(one, station.mission(one), "do.sh", "echo late") for _ in range(3)]
    for order in waiting:
        station.dispatch(order)
    for _ in range(3):
        assert station.output(two, "echo ran") == "ran\n"
    names.go_on("runner-one")
    for order in waiting:
        assert station.client.event(order["job_id"], "ended")["record"]["log_tail"] == "late\n"


def test_a_look_up_that_fails_puts_its_job_back_and_does_not_call_the_account_absent(
    station: Station, names: NameService, two_sites: tuple[Site, Site]
) -> None:
    one, two = two_sites
    names.fail("runner-one")
    order = station.order(one, station.mission(one), "do.sh", "echo late")
    event = station.outcome(order)
    assert (event["event"], event["absent"]) == ("temporary", False)
    assert event["reason"] == "the name service did not answer: account 'runner-one': Connection refused"
    assert station.output(two, "echo ran") == "ran\n"
    names.recover("runner-one")
    assert station.run(order)["log_tail"] == "late\n"


def test_a_look_up_that_never_ends_puts_its_job_back(station: Station) -> None:
    names = NameService(station.installation, seconds=1)
    site = station.add_shell_site("one")
    station.start(command=names.command)
    names.hang("runner-one")
    order = station.order(site, station.mission(site), "do.sh", "echo late")
    event = station.outcome(order)
    assert (event["event"], event["absent"]) == ("temporary", False)
    assert event["reason"] == "the name service did not answer within 1 s"
    assert not Path(order["log_file"]).exists()
    names.go_on("runner-one")
    assert station.run(order)["log_tail"] == "late\n"


def test_a_helper_that_starts_while_the_name_service_is_in_trouble_serves_the_other_sites(
    station: Station, names: NameService
) -> None:
    one, two = station.add_shell_site("one", groups=["absent"]), station.add_shell_site("two")
    station.start(command=names.command)
    assert [warning["site"] for warning in station.warnings("site cannot run jobs at present")] == ["one"]
    assert station.output(two, "echo ran") == "ran\n"
    assert not_started(station, station.order(one, station.mission(one), "do.sh", "echo ran"))
