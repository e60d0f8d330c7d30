"""Which execution groups a job gets, as properties of the pure decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from basestation_runner.execgroups import Granted, Refused, decide, forbidden, of_account

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

MOST_GROUPS: Final = 256
UNCHANGED: Final = 4_294_967_295  # (gid_t) -1

# Few enough small numbers that repeats and matches are common, and the whole range that a GID can have.
GIDS = st.one_of(st.integers(0, 12), st.integers(2**31 - 2, 2**31 + 2), st.integers(0, UNCHANGED - 1))
REQUESTS = st.lists(GIDS, min_size=1, max_size=40)
ACCOUNTS = st.frozensets(GIDS, max_size=40)

Case = tuple[list[int], frozenset[int]]
"""A request and the account's group set."""


@st.composite
def _grantable(draw: st.DrawFn) -> Case:
    """A request and an account that has its first GID and some of the others."""
    request = draw(REQUESTS)
    return request, draw(ACCOUNTS) | {request[0]} | draw(st.frozensets(st.sampled_from(request)))


def granted(request: Sequence[int], has: Collection[int]) -> Granted:
    decision = decide(request, has)
    assert isinstance(decision, Granted)
    return decision


def refused(request: Sequence[int], has: Collection[int]) -> Refused:
    decision = decide(request, has)
    assert isinstance(decision, Refused)
    return decision


def is_ordered_part(part: Sequence[int], whole: Sequence[int]) -> bool:
    rest = iter(whole)
    return all(entry in rest for entry in part)


@given(_grantable())
def test_a_job_gets_an_ordered_part_of_the_request_without_repeats(case: Case) -> None:
    request, has = case
    decision = granted(request, has)
    assert len(set(decision.gids)) == len(decision.gids)
    assert is_ordered_part(decision.gids, list(dict.fromkeys(request)))


@given(_grantable())
def test_the_effective_group_is_the_first_requested_and_in_the_supplementary_list(
    case: Case,
) -> None:
    request, has = case
    decision = granted(request, has)
    assert decision.effective == request[0] == decision.gids[0]


@given(_grantable())
def test_a_job_gets_exactly_what_is_both_requested_and_the_accounts(case: Case) -> None:
    request, has = case
    assert set(granted(request, has).gids) == set(request) & has


@given(_grantable())
def test_what_is_removed_is_exactly_the_rest_of_the_request_in_its_order(
    case: Case,
) -> None:
    request, has = case
    decision = granted(request, has)
    assert set(decision.removed) == set(request) - has
    assert is_ordered_part(decision.removed, list(dict.fromkeys(request)))
    assert len(decision.gids) + len(decision.removed) == len(set(request))


@given(_grantable(), st.frozensets(GIDS))
def test_a_group_that_was_not_requested_changes_nothing_and_is_never_added(case: Case, more: frozenset[int]) -> None:
    request, has = case
    assert decide(request, has | (more - set(request))) == decide(request, has)


@given(_grantable())
def test_deciding_again_on_what_was_granted_changes_nothing(case: Case) -> None:
    request, has = case
    decision = granted(request, has)
    assert decide(decision.gids, has) == Granted(decision.gids, removed=())


@given(REQUESTS, ACCOUNTS)
def test_a_job_whose_account_lacks_the_effective_group_is_refused_and_the_reason_names_it(
    request: list[int], has: frozenset[int]
) -> None:
    decision = refused(request, has - {request[0]})
    assert f"GID {request[0]})" in decision.reason
    assert decision.maybe_late


@given(ACCOUNTS)
def test_an_empty_request_is_refused(has: frozenset[int]) -> None:
    assert not refused([], has).maybe_late


@given(
    _grantable(), st.one_of(st.just(UNCHANGED), st.integers(max_value=-1), st.integers(min_value=UNCHANGED)), st.data()
)
@example(([5], frozenset({5})), UNCHANGED, None)
@example(([5], frozenset({5})), -1, None)
def test_a_number_that_is_no_group_is_refused_wherever_it_stands_and_although_the_account_has_it(
    case: Case, number: int, data: st.DataObject | None
) -> None:
    request, has = case
    place = len(request) if data is None else data.draw(st.integers(0, len(request)))
    decision = refused([*request[:place], number, *request[place:]], has | {number})
    assert str(number) in decision.reason
    assert not decision.maybe_late


def test_the_largest_group_number_is_granted() -> None:
    assert granted([UNCHANGED - 1, 2**31], {2**31, UNCHANGED - 1}).gids == (UNCHANGED - 1, 2**31)


def test_as_many_groups_as_the_limit_are_granted_and_one_more_is_refused() -> None:
    most = range(1000, 1000 + MOST_GROUPS)
    assert granted(most, most).gids == tuple(most)
    one_more = range(1000, 1001 + MOST_GROUPS)
    assert str(MOST_GROUPS + 1) in refused(one_more, one_more).reason


def test_repeats_do_not_count_towards_the_limit() -> None:
    assert granted([7] * (MOST_GROUPS + 1), {7}).gids == (7,)


@pytest.mark.parametrize("request_", [[0], [0, 5], [5, 0]])
def test_group_0_is_granted_to_an_account_that_has_it(request_: list[int]) -> None:
    assert granted(request_, {0, 5}).gids == tuple(request_)


def test_group_0_is_refused_and_removed_like_any_other_group() -> None:
    assert refused([0, 5], {5}).maybe_late
    assert granted([5, 0], {5}) == Granted((5,), removed=(0,))


@given(GIDS, ACCOUNTS)
def test_an_account_without_named_groups_gets_all_of_its_own_primary_first(primary: int, has: frozenset[int]) -> None:
    decision = granted(of_account(primary, has | {primary}), has | {primary})
    assert decision.effective == primary
    assert set(decision.gids) == has | {primary}
    assert not decision.removed


@given(GIDS, ACCOUNTS)
def test_the_groups_of_an_account_are_in_the_same_order_every_time(primary: int, has: frozenset[int]) -> None:
    assert list(of_account(primary, has)[1:]) == sorted(has - {primary})


@given(st.frozensets(GIDS, max_size=4))
def test_no_job_may_be_root_or_a_daemon_or_left_as_the_helper(daemons: frozenset[int]) -> None:
    assert forbidden(daemons) == daemons | {0, UNCHANGED}
