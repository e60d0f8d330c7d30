"""Two hundred jobs at once: what their keepers cost, and that nothing is left of them, by whomever they were forked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.conftest import rest
from tests.chaos.host import Host
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Installation

KEEPERS = 200
MOST_KIB = 3072


@pytest.fixture
def host(installation: Installation) -> Iterator[Host]:
    with Host(installation) as host:
        host.add_sites(2, missions=KEEPERS // 2, scripts=("count.sh",))
        yield host


def private_kib(pid: int) -> int:
    """Return the memory that a process has for itself alone."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"^Private_\w+:\s+(\d+) kB$", rollup, re.MULTILINE))


def test_two_hundred_keepers_are_small_and_survive_their_helper(host: Host) -> None:
    helper = host.start_helper()
    host.start_watcher("--max-running", str(2 * KEEPERS))  # not all are for sites that run something
    asked = [host.ask("gate", mission=number) for number in range(KEEPERS)]
    until(lambda: all(request.runs for request in asked))
    keepers = host.keepers()
    assert len(keepers) == KEEPERS
    sizes = sorted(map(private_kib, keepers))
    assert sizes[-1] < MOST_KIB, sizes
    helper.kill()
    host.start_helper()
    assert sorted(host.keepers()) == sorted(keepers)
    rest(host)
