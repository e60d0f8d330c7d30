"""The demo's verdict on a job: everything that is not as it should be is found and said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.demo.outcome import Outcome
from basestation_runner.demo.scenario import Identity, Request
from basestation_runner.sandbox.installation import Drop, Site

if TYPE_CHECKING:
    from collections.abc import Mapping

EMPTY = "0000000000000000"
MISSION = Path("/srv/site/rundir/sg123")


def outcome(
    tmp_path: Path,
    *,
    allowed: bool = True,
    exit_code: int | None = 0,
    reason: str | None = None,
    report: Mapping[str, Any] | None = None,
) -> Outcome:
    entry = {"runner_user": "runner-site"}
    site = Site("site", None, None, Path("/srv/site/rundir"), Path("/srv/site/rundir"), None, entry)
    expected = Identity(1001, 2001, frozenset([2001, 2002])) if allowed else None
    request = Request(site, "sg123", "a.run", "", "Base.py", MISSION, expected)
    drop = Drop(tmp_path / "a.run", closed_ns=1_000_000_000)
    ran = {
        "started_ns": 1_012_345_678,
        "uids": [1001] * 3,
        "gids": [2001] * 3,
        "groups": [2001, 2002],
        "capabilities": dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapAmb"), EMPTY) | {"CapBnd": "00000000000000c0"},
        "no_new_privs": 1,
        "cwd": str(MISSION),
        "argv": ["/scripts/Base.py", "--mission_dir", str(MISSION)],
    }
    return Outcome(request, drop, "7", exit_code, reason, {**ran, **(report or {})} if reason is None else None)


def test_a_job_that_ran_as_it_should_has_no_fault(tmp_path: Path) -> None:
    good = outcome(tmp_path)
    assert good.faults == []
    assert good.as_json() == {
        "site": "site",
        "script": "Base.py",
        "account": "runner-site",
        "uid": 1001,
        "egid": 2001,
        "groups": [2001, 2002],
        "caps": {"CapInh": "0", "CapPrm": "0", "CapEff": "0", "CapAmb": "0"},
        "no_new_privs": 1,
        "exit_code": 0,
        "ms": 12.3,
        "job_id": "7",
        "reason": None,
        "faults": [],
    }


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"report": {"uids": [1001, 1001, 0]}}, "its uids are"),
        ({"report": {"gids": [2001, 2001, 0]}}, "its gids are"),
        ({"report": {"groups": [2001]}}, "its groups are"),
        ({"report": {"groups": [2001, 2002, 2003]}}, "its groups are"),
        (
            {"report": {"capabilities": {"CapInh": EMPTY, "CapPrm": EMPTY, "CapEff": EMPTY, "CapAmb": "c0"}}},
            "it has capabilities",
        ),
        ({"report": {"no_new_privs": 0}}, "it may gain privileges"),
        ({"report": {"cwd": "/"}}, "it ran in /, not in"),
        ({"report": {"argv": ["/scripts/Base.py", "--mission_dir", "/home/sg123"]}}, "its arguments do not name"),
        ({"exit_code": 1}, "its exit code is 1"),
        ({"exit_code": None}, "its exit code is None"),
        ({"reason": "no such script"}, "it did not run: no such script"),
    ],
)
def test_a_job_that_did_not_run_as_it_should_has_one_fault(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    (fault,) = outcome(tmp_path, **wrong).faults
    assert fault.startswith(said)


def test_a_request_that_is_still_there_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "a.run").touch()
    assert outcome(tmp_path).faults == ["its request file is still there"]


def test_a_job_that_must_be_refused_is_right_only_when_it_was(tmp_path: Path) -> None:
    assert outcome(tmp_path, allowed=False, reason="another account").faults == []
    assert outcome(tmp_path, allowed=False).faults == ["it must be refused, and was not"]
