"""Look-ups in this host's own files, and what a name service that fails or answers at length looks like."""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import pwd
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner import nss
from basestation_runner.nss import Account, Group, LookupFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ABSENT_NAME = "no-such-name-here"
ABSENT_NUMBER = 4_294_967_290

LOOK_UPS: dict[str, Callable[[], object]] = {
    "account 'somebody'": lambda: nss.account("somebody"),
    "uid 1234": lambda: nss.account_by_uid(1234),
    "group 'some'": lambda: nss.group("some"),
    "gid 1234": lambda: nss.group_by_gid(1234),
}


class StandIn:
    """The C library's five calls, which answer what a test says, one answer a call; the last one is repeated."""

    def __init__(self, *answers: int, needs: int = 0, groups: Sequence[int] = ()) -> None:
        self.calls = 0
        self.buffers: list[int] = []
        self.rooms: list[int] = []
        self._answers = answers
        self._needs = needs
        self._groups = groups

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name == "getgrouplist":
            return self._getgrouplist
        return self._get_account if name.startswith("getpw") else self._get_group

    def _next(self) -> int:
        self.calls += 1
        return self._answers[min(self.calls, len(self._answers)) - 1]

    def _answer(self, buffer: ctypes.Array[ctypes.c_char], size: ctypes.c_size_t) -> int:
        self.buffers.append(size.value)
        assert len(buffer) == size.value
        number = self._next()
        return number if number or size.value >= self._needs else errno.ERANGE

    def _get_account(self, _: object, entry: Any, buffer: Any, size: Any, found: Any) -> int:  # noqa: ANN401
        number = self._answer(buffer, size)
        if number == 0 and self._needs:
            fields = entry._obj
            fields.name, fields.uid, fields.gid = b"somebody", 4_294_967_293, 4_294_967_294
            fields.home, fields.shell = None, b"/bin/sh"
            found._obj.value = ctypes.addressof(fields)
        return number

    def _get_group(self, _: object, entry: Any, buffer: Any, size: Any, found: Any) -> int:  # noqa: ANN401
        number = self._answer(buffer, size)
        if number == 0 and self._needs:
            fields = entry._obj
            fields.name, fields.gid = b"some", 4_294_967_294
            found._obj.value = ctypes.addressof(fields)
        return number

    def _getgrouplist(self, _: object, primary: Any, gids: Any, count: Any) -> int:  # noqa: ANN401
        self.rooms.append(count._obj.value)
        every = [primary.value, *self._groups]
        room = count._obj.value
        for index, gid in enumerate(every[:room]):
            gids[index] = gid
        count._obj.value = len(every)
        return len(every) if len(every) <= room else -1


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StandIn]:
    def use(*answers: int, **more: Any) -> StandIn:  # noqa: ANN401 - what the stand-in takes
        library = StandIn(*answers, **more)
        monkeypatch.setattr(nss, "_libc", library)
        return library

    return use


def someone(name: str = "somebody", gid: int = 100) -> Account:
    return Account(name, 1234, gid, "/", "/bin/sh")


def account_with_groups() -> tuple[Account, set[int]]:
    """Return an account of this host, one with a group besides its primary one if there is any, and all its groups."""
    for group in grp.getgrall():
        for name in group.gr_mem:
            who = nss.account(name)
            if who is not None and group.gr_gid != who.gid:
                return who, groups_by_the_files(who)
    root = nss.account("root")
    assert root is not None
    return root, groups_by_the_files(root)


def groups_by_the_files(who: Account) -> set[int]:
    return {entry.gr_gid for entry in grp.getgrall() if who.name in entry.gr_mem} | {who.gid}


def test_root_is_found_by_name_and_by_number_with_all_that_the_host_says_of_it() -> None:
    expected = pwd.getpwuid(0)
    root = nss.account("root")
    assert root == Account("root", 0, 0, expected.pw_dir, expected.pw_shell)
    assert nss.account_by_uid(0) == root


def test_every_account_and_group_of_this_host_is_found_as_python_finds_it() -> None:
    for entry in pwd.getpwall():
        found = nss.account(entry.pw_name)
        assert found == Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir, entry.pw_shell)
    for group in grp.getgrall():
        assert nss.group(group.gr_name) == Group(group.gr_name, group.gr_gid)
        assert nss.group_by_gid(group.gr_gid) is not None


def test_what_is_absent_is_none() -> None:
    assert nss.account(ABSENT_NAME) is None
    assert nss.account_by_uid(ABSENT_NUMBER) is None
    assert nss.group(ABSENT_NAME) is None
    assert nss.group_by_gid(ABSENT_NUMBER) is None
    assert nss.account("") is None


def test_an_account_has_its_groups_and_its_primary_group() -> None:
    who, groups = account_with_groups()
    assert nss.groups_of(who) == groups


def test_a_primary_group_that_has_no_entry_counts() -> None:
    assert nss.groups_of(someone(ABSENT_NAME, gid=ABSENT_NUMBER)) == {ABSENT_NUMBER}


@pytest.mark.parametrize("asked_for", LOOK_UPS)
@pytest.mark.parametrize("number", [errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT])
def test_a_service_that_does_not_answer_is_no_absent_name(
    stand_in: Callable[..., StandIn], asked_for: str, number: int
) -> None:
    stand_in(number)
    with pytest.raises(LookupFailedError, match=f"^{asked_for}: {os.strerror(number)}$"):
        LOOK_UPS[asked_for]()


@pytest.mark.parametrize("asked_for", LOOK_UPS)
@pytest.mark.parametrize("number", [0, errno.ENOENT, errno.ESRCH])
def test_the_ways_of_the_c_library_to_say_absent_are_none(
    stand_in: Callable[..., StandIn], asked_for: str, number: int
) -> None:
    stand_in(number)
    assert LOOK_UPS[asked_for]() is None


@pytest.mark.parametrize("asked_for", LOOK_UPS)
def test_an_interrupted_look_up_is_made_again(stand_in: Callable[..., StandIn], asked_for: str) -> None:
    library = stand_in(errno.EINTR, errno.EINTR, 0)
    assert LOOK_UPS[asked_for]() is None
    assert library.calls == 3
    assert len(set(library.buffers)) == 1


@pytest.mark.parametrize("asked_for", LOOK_UPS)
def test_an_entry_that_does_not_fit_is_asked_for_again_with_more_room(
    stand_in: Callable[..., StandIn], asked_for: str
) -> None:
    library = stand_in(0, needs=1_000_000)
    assert LOOK_UPS[asked_for]() is not None
    assert library.buffers[-1] >= 1_000_000
    assert sorted(set(library.buffers)) == library.buffers


@pytest.mark.parametrize("asked_for", LOOK_UPS)
def test_an_entry_that_never_fits_is_a_failed_look_up_and_takes_bounded_memory(
    stand_in: Callable[..., StandIn], asked_for: str
) -> None:
    library = stand_in(errno.ERANGE)
    with pytest.raises(LookupFailedError):
        LOOK_UPS[asked_for]()
    assert max(library.buffers) <= 1 << 26


def test_numbers_above_2_to_the_31_are_unsigned_and_a_missing_home_is_empty(
    stand_in: Callable[..., StandIn],
) -> None:
    stand_in(0, needs=1)
    assert nss.account("somebody") == Account("somebody", 4_294_967_293, 4_294_967_294, "", "/bin/sh")
    assert nss.account_by_uid(4_294_967_293) == nss.account("somebody")
    assert nss.group("some") == nss.group_by_gid(4_294_967_294) == Group("some", 4_294_967_294)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200, 65_536])
def test_every_group_of_an_account_is_seen_however_many_there_are(stand_in: Callable[..., StandIn], count: int) -> None:
    groups = range(2**31 - 10, 2**31 - 10 + count)
    library = stand_in(groups=groups)
    assert nss.groups_of(someone(gid=4_294_967_294)) == {*groups, 4_294_967_294}
    assert len(library.rooms) <= 2


def test_more_groups_than_any_kernel_takes_are_a_failed_look_up(stand_in: Callable[..., StandIn]) -> None:
    stand_in(groups=range(200_000))
    with pytest.raises(LookupFailedError, match="somebody"):
        nss.groups_of(someone())
