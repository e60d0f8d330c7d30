"""What the name service and files say about a legacy unit's account."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from basestation_runner import nss
from basestation_runner.errors import RunnerError
from basestation_runner.migrate import unit as units
from basestation_runner.migrate.people import people_of, variables_of_unit
from basestation_runner.migrate.unit import EnvironmentFile
from tests.unit.migrate import samples

if TYPE_CHECKING:
    from pathlib import Path

UNIT = units.parse(samples.shown(samples.JAILED_ARGV), samples.JAILED)
SOMEBODY = next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)


@pytest.mark.parametrize("user", [SOMEBODY.pw_name, str(SOMEBODY.pw_uid)])
def test_all_groups_of_the_account_are_listed_the_effective_one_first(user: str) -> None:
    people = people_of(evolve(UNIT, user=user, supplementary=("root",)))
    primary = nss.group_by_gid(SOMEBODY.pw_gid)
    assert people.user == SOMEBODY.pw_name
    assert people.groups[0] == (SOMEBODY.pw_gid if primary is None else primary.name)
    assert people.foreign == ("root",), "it is not a member of that"
    assert all(os.path.isdir(home) for home in people.homes)  # noqa: PTH112 - a text


def test_a_group_of_the_unit_is_the_effective_one() -> None:
    assert people_of(evolve(UNIT, user=SOMEBODY.pw_name, group="0")).groups[0] == "root"


@pytest.mark.parametrize(
    ("user", "group", "message"),
    [("", "", "runs as root"), ("root", "", "runs as root"), ("nobody-here", "", "no account"), ("0", "", "as root")],
)
def test_a_unit_without_an_account_that_may_run_jobs_is_refused(user: str, group: str, message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        people_of(evolve(UNIT, user=user, group=group))


def test_a_group_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RunnerError, match="no group nothing-here"):
        people_of(evolve(UNIT, user=SOMEBODY.pw_name, group="nothing-here"))


def test_files_of_variables_go_before_the_units_own_and_secrets_stay_where_they_are(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("first", "second", "secret", "missing", "optional", "fifo")}
    paths["first"].write_text("CASE=1\nOTHER=2\n")
    paths["second"].write_text("CASE=3\n")
    paths["secret"].write_text("PASSWORD=x\n")
    paths["secret"].chmod(0o640)
    os.mkfifo(paths["fifo"])
    files = tuple(EnvironmentFile(str(path), is_optional=name == "optional") for name, path in paths.items())
    found = variables_of_unit(evolve(UNIT, variables={"CASE": "0", "OWN": "y"}, environment_files=files))
    assert found.values == {"CASE": "3", "OTHER": "2", "OWN": "y"}
    assert found.secret == (str(paths["secret"]),)
    assert found.missing == (str(paths["missing"]), str(paths["fifo"]))


def test_a_pattern_of_files_of_variables_stands_for_each_of_them_in_their_order(tmp_path: Path) -> None:
    for name, text in (("2.env", "CASE=2\nTWO=2\n"), ("1.env", "CASE=1\n"), (".3.env", "CASE=3\n")):
        (tmp_path / name).write_text(text)
    for is_optional in (True, False):
        file, none = (EnvironmentFile(str(tmp_path / name), is_optional=is_optional) for name in ("*.env", "*.none"))
        found = variables_of_unit(evolve(UNIT, variables={}, environment_files=(file, none)))
        assert found.values == {"CASE": "2", "TWO": "2"}
        assert found.missing == (() if is_optional else (none.path,))
