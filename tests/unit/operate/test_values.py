"""What jobs are run with, in words."""

from __future__ import annotations

from basestation_runner.operate import values


def test_each_value_says_where_it_is_from_and_what_is_of_no_use_here() -> None:
    shown = values.effective(
        {
            "tasks": {"value": 2, "from": "job"},
            "append_args": {"value": ["--a", "b c"], "from": "profile"},
            "span": {"value": "hosts=1", "from": "profile"},
        }
    )
    assert shown == {
        "tasks": "2 (job)",
        "append args": "--a 'b c' (profile)",
        "span": "hosts=1 (profile), of no use on one host",
    }
