"""A site is taken over from a legacy daemon that really runs, and given back to it."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from tests.patience import until

if TYPE_CHECKING:
    from tests.migrate.conftest import Host


def test_a_site_is_taken_over_and_given_back_and_each_request_runs_once(host: Host) -> None:
    host.start()
    before = host.config()
    first = host.drop()
    until(lambda: host.ended_by_legacy() == [first])
    status, said = host.run("alpha", "--yes")
    assert status == 0, said
    assert host.is_migrated()
    second = host.drop()
    until(lambda: host.ran_by_us() == [second])
    journals = host.installation.top / "journals"
    assert stat.S_IMODE(journals.stat().st_mode) == 0o700

    status, said = host.run("alpha", "--rollback", "--yes")
    assert status == 0, said
    assert host.is_as_before()
    assert host.config() == before
    third = host.drop()
    until(lambda: third in host.ended_by_legacy())
    assert host.ran() == sorted([first, second, third])
