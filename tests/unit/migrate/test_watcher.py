"""What the helper tells of a job that it would make, compared with what it should be."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.migrate import watcher

if TYPE_CHECKING:
    from basestation_runner.migrate.context import Context

SOMEBODY = next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)
GROUPS = os.getgrouplist(SOMEBODY.pw_name, SOMEBODY.pw_gid)
RIGHT: dict[str, Any] = {
    "uids": [SOMEBODY.pw_uid] * 3,
    "gids": [SOMEBODY.pw_gid] * 3,
    "groups": GROUPS,
    "capabilities": {"effective": 0, "permitted": 0},
    "no_new_privs": True,
}


@pytest.mark.parametrize("groups", ["", f"  groups: [{SOMEBODY.pw_gid}]\n"])
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, ""),
        ({"uids": [SOMEBODY.pw_uid, 0, 0]}, "its uids are"),
        ({"gids": [SOMEBODY.pw_gid, 0, 0]}, "its GIDs are"),
        ({"groups": [*GROUPS, 4711]}, "its groups are"),
        ({"capabilities": {"effective": 1}}, "it has capabilities"),
        ({"no_new_privs": False}, "no_new_privs is not set"),
    ],
)
def test_whatever_is_not_the_sites_is_told(context: Context, groups: str, told: dict[str, Any], expected: str) -> None:
    entry = f"alpha:\n  watch_dir: /srv/alpha/rundir\n  runner_user: {SOMEBODY.pw_name}\n{groups}"
    context.setting.sites_config.write_text(entry)
    right = {**RIGHT, "groups": [SOMEBODY.pw_gid]} if groups else RIGHT
    found = "; ".join(watcher.wrong(context, "alpha", {**right, **told}))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
