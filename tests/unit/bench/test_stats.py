"""What is made of single values, and of runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stamps import Stamp
from bench.stats import Verdict, judge, median, percentile

VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1)


def runs(*numbers: int) -> list[Stamp]:
    return [Stamp(moment, number) for moment, number in enumerate(numbers)]


def test_percentiles_are_values_that_were_measured() -> None:
    hundred = range(1, 101)
    assert [percentile(hundred, percent) for percent in (0, 1, 50, 95, 99, 100)] == [1, 1, 50, 95, 99, 100]
    assert median([3.0, 1.0, 2.0]) == 2.0


@given(VALUES, st.floats(min_value=0, max_value=100))
def test_as_many_values_as_the_percentage_says_do_not_exceed_it(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values) * (1 - 1e-9)
    assert sum(value < found for value in values) * 100 <= percent * len(values)


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_requests_that_ran_once_in_their_order_are_as_they_should_be() -> None:
    assert judge([4, 5, 6], runs(4, 5, 6)) == Verdict(lost=0, twice=0, out_of_order=0)


def test_what_never_ran_is_lost_and_does_not_count_as_out_of_order() -> None:
    assert judge([4, 5, 6, 7], runs(4, 6)) == Verdict(lost=2, twice=0, out_of_order=0)


def test_what_ran_twice_is_counted_once_however_often_it_ran() -> None:
    assert judge([4, 5, 6], runs(4, 5, 5, 6, 6, 6)) == Verdict(lost=0, twice=2, out_of_order=0)


def test_what_ran_after_a_later_one_is_out_of_order() -> None:
    assert judge([4, 5, 6, 7], runs(6, 4, 5, 7)) == Verdict(lost=0, twice=0, out_of_order=2)
