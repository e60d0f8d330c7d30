"""Rundirs whose names change under the watcher's eyes: it must never take another site's directory for this site's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from basestation_runner.watch import rundir
from basestation_runner.watch.rundir import LinkError
from tests.attacks.attack import exchanging, rounds

if TYPE_CHECKING:
    from basestation_runner.sandbox import Installation


def test_a_parent_that_is_exchanged_without_end_never_leads_to_another_sites_rundir(installation: Installation) -> None:
    """The parent is a directory with a link in it at one moment, and a link to a directory of root's at the next."""
    attacker, top = installation.accounts.add_user("attacker"), installation.top
    other, empty = installation.make_directory(top / "other"), installation.make_directory(top / "empty")
    people = installation.make_directory(top / "people", attacker)
    home = installation.make_directory(people / "home", attacker)
    (home / "rundir").symlink_to(other)
    (people / "lure").symlink_to(empty)
    refused = 0
    with exchanging(attacker, home, people / "lure"):
        for _ in range(rounds(20_000)):
            try:
                os.close(rundir._open(str(home / "rundir")))
            except LinkError:
                refused += 1
            except FileNotFoundError:
                continue
            else:
                pytest.fail("it was led to another site's rundir")
    assert refused, "the attack has never come near"
