"""The wall clock is stepped by years while jobs wait and run: it decides about no job, and no duration is wrong by it.

The real clock is left alone: each daemon has one of its own, which a file steps for all of them and their keepers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.chaos.conftest import rest
from tests.host.helper_client import launcher
from tests.patience import until

if TYPE_CHECKING:
    from tests.chaos.host import Host

YEARS = 20 * 365 * 24 * 3600

# Files get their times from the real clock, so that after a step every mark and request seems to be of another age.
_CLOCK = """\
import time
def stepped(real=time.time):
    with open({path!r}) as file:
        return real() + float(file.read())
time.time = stepped
"""


class Clock:
    """The wall clock as the daemons see it, and how they are started with it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._path = host.installation.top / "step"
        self.set(0)
        self._command = (str(launcher(host.installation, _CLOCK.format(path=str(self._path)))),)

    def set(self, seconds: float) -> None:
        self._host.installation.write(self._path, f"{seconds}")

    def start(self) -> None:
        self._host.start_helper(command=self._command)
        self._host.start_watcher(command=self._command)


@pytest.mark.parametrize("step", [YEARS, -YEARS], ids=["forward", "back"])
def test_a_step_of_the_clock_loses_no_job_and_repeats_none(host: Host, step: float) -> None:
    clock = Clock(host)
    clock.start()
    host.ask()
    gated = [host.ask("gate", mission=which) for which in (0, 1)]
    until(lambda: all(request.runs for request in gated))
    clock.set(step)
    for number in range(4):
        host.ask(mission=number % 2)
    assert host.watcher is not None
    assert host.helper is not None
    host.watcher.kill()
    host.helper.kill()
    host.ask()
    clock.start()
    host.ask()
    clock.set(0)
    rest(host)
    lines = [json.loads(line) for line in host.installation.completions_log.read_text().splitlines()]
    assert len(lines) == len(host.requests)
    assert all(0 <= line["duration"] < 600 for line in lines)


def test_a_clock_that_was_years_ahead_at_the_first_start_sets_nothing_aside_that_is_new(host: Host) -> None:
    """Requests are stale at a site's first activation ever when they are old; by such a clock all of them are."""
    clock = Clock(host)
    clock.set(YEARS)
    clock.start()
    request = host.ask()
    until(lambda: request.runs)
    rest(host)
