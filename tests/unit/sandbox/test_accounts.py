"""The accounts of a sandbox as files: what a name service reads."""

from __future__ import annotations

import pytest

from basestation_runner.errors import RunnerError
from basestation_runner.sandbox import accounts
from basestation_runner.sandbox.accounts import Accounts

FIRST = 5000


def made() -> tuple[Accounts, dict[str, str]]:
    files: dict[str, str] = {}
    return Accounts(files.__setitem__, first_id=FIRST), files


def last(text: str, count: int) -> list[str]:
    return text.splitlines()[-count:]


def test_an_account_has_a_group_of_its_own_unless_another_is_named() -> None:
    sandbox, files = made()
    sandbox.add_user("one")
    sandbox.add_user("two", primary="one", home="/home/two")
    assert last(files["passwd"], 2) == ["one:x:5000:5000::/nonexistent:/bin/sh", "two:x:5001:5000::/home/two:/bin/sh"]
    assert last(files["group"], 1) == ["one:x:5000:"]


def test_changes_that_are_made_together_are_seen_together() -> None:
    published: list[str] = []
    sandbox = Accounts(lambda name, _: published.append(name), first_id=FIRST)
    with sandbox.together():
        for name in ("one", "two", "three"):
            sandbox.add_user(name)
        assert published == []
    assert sorted(published) == ["group", "passwd"]


def test_a_hosts_entry_of_the_same_name_is_hidden() -> None:
    sandbox, files = made()
    sandbox.add_user("root")
    assert [line for line in files["passwd"].splitlines() if line.startswith("root:")] == [last(files["passwd"], 1)[0]]


def test_numbers_that_are_given_are_not_given_again() -> None:
    sandbox, _ = made()
    sandbox.add_group("fixed", gid=FIRST)
    assert sandbox.add_user("next").uid == FIRST + 1


def test_a_restored_sandbox_gives_the_same_numbers_again() -> None:
    sandbox, files = made()
    restore = sandbox.snapshot()
    first = sandbox.add_user("first")
    restore()
    assert "first" not in files["passwd"]
    assert sandbox.add_user("second").uid == first.uid


def test_a_sandbox_stays_in_its_range() -> None:
    sandbox, _ = made()
    for number in range(200):
        sandbox.add_group(f"g{number}")
    with pytest.raises(RunnerError, match="more than 200 accounts and groups in one sandbox"):
        sandbox.add_group("one-more")


@pytest.mark.parametrize(
    ("id_map", "mapped"),
    [
        ("         0          0 4294967295\n", True),
        ("         0     100000      65536\n", False),
        ("0 100000 1000\n1000000000 200000 100\n", False),
        ("0 100000 1000\n1000000000 200000 1000\n", True),
    ],
)
def test_high_numbers_are_used_only_where_the_user_namespace_has_them(id_map: str, *, mapped: bool) -> None:
    assert accounts._is_mapped(id_map, 1_000_000_000) is mapped
