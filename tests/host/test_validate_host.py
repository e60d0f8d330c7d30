"""`runner validate-config --host` on real accounts, files and daemons: what it finds, and that its advice helps."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.config.hostfacts import look
from basestation_runner.config.probes import Unseen, ask
from basestation_runner.sandbox import HELPER, WATCHER
from basestation_runner.sandbox.process import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site

Finding = dict[str, Any]


@pytest.fixture
def site(installation: Installation) -> Site:
    """A site that nothing is wrong with."""
    site = installation.add_site("one", "srv/one", layout="wide", groups=["runner-one", "extra"])
    installation.accounts.add_group("extra")
    installation.accounts.join("runner-one", "extra")
    site.watch_dir.chmod(0o2770)
    return site


def check(installation: Installation, *, by: Account | None = None) -> list[Finding]:
    """Run the command and return its findings."""
    command = [*installation.program.command, "validate-config", "--host", "--format=json"]
    done = subprocess.run(
        [*Identity(by).prefix(), *command, str(installation.sites_config)], stdout=subprocess.PIPE, check=False, cwd="/"
    )
    found = json.loads(done.stdout)
    assert found["ok"] is (done.returncode == 0)
    assert done.returncode == int(any(finding["level"] == "fault" for finding in found["findings"]))
    return list(found["findings"])


def only(findings: list[Finding]) -> tuple[str, str, str]:
    """Return the level, the field and the words of the only finding."""
    (finding,) = findings
    return finding["level"], finding["path"], finding["what"]


@pytest.mark.usefixtures("site")
def test_nothing_is_found_where_nothing_is_wrong(installation: Installation) -> None:
    assert check(installation) == []


def test_a_finding_stands_where_its_field_does(installation: Installation, site: Site) -> None:
    site.watch_dir.chmod(0o2777)
    (finding,) = check(installation)
    line = installation.sites_config.read_text().splitlines()[finding["line"] - 1]
    assert line[finding["column"] - 1 :] == str(site.watch_dir)
    assert (finding["file"], finding["path"]) == (str(installation.sites_config), "one.watch_dir")


@pytest.mark.usefixtures("site")
def test_an_account_that_is_gone(installation: Installation) -> None:
    installation.accounts.remove_user("runner-one")
    level, field, what = only(check(installation))
    assert (level, field, what) == ("fault", "one.runner_user", "there is no account runner-one")


@pytest.mark.parametrize("which", ["root", "watcher", "helper"])
def test_an_account_that_the_helper_refuses(installation: Installation, site: Site, which: str) -> None:
    uid = {"root": 0, "watcher": account_uid(installation, WATCHER), "helper": account_uid(installation, HELPER)}[which]
    installation.accounts.add_user("wrong", primary="runner-one", groups=["extra"], uid=uid)
    installation.write_config({site.name: {"runner_user": "wrong"}})
    faults = [finding for finding in check(installation) if finding["level"] == "fault"]
    assert only(faults)[1] == "one.runner_user"
    assert f"uid {uid}, {which}'s" in faults[0]["what"].replace("the ", "")


def account_uid(installation: Installation, name: str) -> int:
    return installation.accounts.user(name).uid


def test_a_group_that_no_job_may_have(installation: Installation, site: Site) -> None:
    installation.accounts.add_group("wheel", gid=0)
    installation.accounts.join("runner-one", "wheel", WATCHER)
    installation.write_config({site.name: {"groups": ["runner-one", "wheel", WATCHER]}})
    found = {(finding["level"], finding["path"]) for finding in check(installation)}
    assert found == {("fault", "one.groups[1]"), ("fault", "one.groups[2]"), ("note", "one.groups")}


def test_groups_that_the_account_lacks(installation: Installation, site: Site) -> None:
    installation.accounts.leave("runner-one", "extra")
    installation.write_config({site.name: {"groups": ["runner-one", "extra", "no-such-group"]}})
    dropped, unknown = check(installation)
    assert (dropped["level"], dropped["path"]) == ("warning", "one.groups[1]")
    assert dropped["command"] == "usermod -aG extra runner-one"
    assert (unknown["level"], unknown["path"]) == ("warning", "one.groups[2]")
    installation.write_config({site.name: {"groups": ["extra", "runner-one"]}})
    effective = next(finding for finding in check(installation) if finding["path"] == "one.groups[0]")
    assert effective["level"] == "fault"
    assert effective["what"].endswith("it is the site's group, jobs are refused")


def test_groups_that_are_withheld(installation: Installation, site: Site) -> None:
    installation.write_config({site.name: {"groups": ["runner-one"]}})
    level, field, what = only(check(installation))
    assert (level, field) == ("note", "one.groups")
    assert f"extra (GID {installation.accounts.gid('extra')})" in what


@pytest.mark.usefixtures("site")
def test_a_watcher_outside_the_sites_group(installation: Installation) -> None:
    installation.accounts.leave(WATCHER, "runner-one")
    outside, unusable = sorted(check(installation), key=lambda finding: str(finding["path"]))
    assert (outside["level"], outside["path"]) == ("fault", "one.groups[0]")
    assert outside["command"] == f"usermod -aG runner-one {WATCHER}"
    assert (unusable["level"], unusable["path"]) == ("fault", "one.watch_dir")
    assert "cannot list, write and enter" in unusable["what"]


@pytest.mark.usefixtures("site")
def test_a_watcher_that_was_started_before_it_joined_the_sites_group(installation: Installation) -> None:
    installation.accounts.leave(WATCHER, "runner-one")
    watcher = installation.start_watcher()
    installation.accounts.join(WATCHER, "runner-one")
    level, field, what = only(check(installation))
    assert (level, field) == ("fault", "one.groups[0]")
    assert f"the running watcher (pid {watcher.pid}) is not in the site's group" in what
    watcher.stop()
    installation.start_watcher()
    assert check(installation) == []


@pytest.mark.usefixtures("site")
def test_a_helper_that_cannot_share_its_socket(installation: Installation) -> None:
    installation.accounts.leave(HELPER, WATCHER)
    assert only(check(installation))[2].endswith("it cannot share its socket")


def remove(site: Site) -> None:
    site.watch_dir.rmdir()


def open_to_all(site: Site) -> None:
    site.watch_dir.chmod(0o2777)


def visible_to_all(site: Site) -> None:
    site.watch_dir.chmod(0o2775)


def of_another_group(site: Site) -> None:
    os.chown(site.watch_dir, -1, 0)
    site.watch_dir.chmod(0o2770)


MENDED: list[tuple[Callable[[Site], None], list[str]]] = [
    (remove, ["fault"]),
    (open_to_all, ["fault"]),
    (visible_to_all, ["warning"]),
    (of_another_group, ["warning", "fault"]),
]


@pytest.mark.parametrize(("damage", "levels"), MENDED)
def test_a_damaged_rundir_is_mended_by_the_command(
    installation: Installation, site: Site, damage: Callable[[Site], None], levels: list[str]
) -> None:
    damage(site)
    findings = check(installation)
    assert [finding["level"] for finding in findings] == levels
    assert {finding["path"] for finding in findings} == {"one.watch_dir"}
    for finding in findings:
        if finding["command"]:
            subprocess.run(finding["command"], shell=True, check=True)  # noqa: S602 - as the reader would
    if site.watch_dir.stat().st_mode & 0o7777 != 0o2770:  # chgrp may have taken it
        site.watch_dir.chmod(0o2770)
    assert check(installation) == []


def test_a_rundir_that_is_a_file(installation: Installation, site: Site) -> None:
    site.watch_dir.rmdir()
    site.watch_dir.touch()
    assert only(check(installation))[2] == f"{site.watch_dir} is not a directory"


def test_links_on_the_way_to_a_rundir(installation: Installation, site: Site) -> None:
    account = site.account
    assert account
    elsewhere = installation.make_directory(installation.top / "srv/elsewhere", account)
    site.watch_dir.rename(elsewhere / "rundir")
    site.watch_dir.symlink_to(elsewhere / "rundir")
    assert check(installation) == []

    (elsewhere / "way").symlink_to(".")
    not_followed = f"{elsewhere}/way is a link where others than root can make one: it is not followed"
    installation.write_config({"one": {"watch_dir": str(elsewhere / "way/rundir")}})
    assert only(check(installation)) == ("fault", "one.watch_dir", not_followed)
    installation.write_config({"one": {"watch_dir": str(elsewhere / "rundir"), "jail_root": str(elsewhere / "way")}})
    assert only(check(installation)) == ("fault", "one.jail_root", not_followed)

    (installation.top / "srv/way").symlink_to("elsewhere")
    installation.write_config({"one": {"watch_dir": str(installation.top / "srv/way/rundir")}})
    assert check(installation) == []


@contextlib.contextmanager
def mounted(*arguments: str, target: Path, descriptor: int | None = None) -> Iterator[None]:
    """Mount something in this process's own namespace."""
    subprocess.run(
        ["mount", "-i", *arguments, str(target)], check=True, pass_fds=() if descriptor is None else [descriptor]
    )
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)  # whatever still waits is answered by that
        subprocess.run(["umount", "-l", str(target)], check=True)


def test_a_rundir_that_is_mounted_read_only(installation: Installation, site: Site) -> None:
    with mounted("--bind", str(site.watch_dir), target=site.watch_dir):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(site.watch_dir)], check=True)
        assert only(check(installation))[2].endswith("mounted read-only")


def test_a_rundir_on_a_file_server_that_does_not_answer(site: Site) -> None:
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other"
    with mounted("-t", "fuse", "-o", options, "nobody", target=site.watch_dir, descriptor=server):
        (answer,) = ask([partial(look, str(site.watch_dir))], patience=0.5)
    assert answer == Unseen("does not answer within 0.5 s", is_fault=True)


def test_two_rundirs_that_are_one_directory(installation: Installation, site: Site) -> None:
    other = installation.add_site("two", "srv/two", account=site.account, group=site.group)
    with mounted("--bind", str(site.watch_dir), target=other.watch_dir):
        level, field, what = only(check(installation))
    assert (level, field) == ("fault", "two.watch_dir")
    assert what.endswith("is the same directory as the rundir of site one")


def test_a_jail_that_the_account_cannot_enter(installation: Installation, site: Site) -> None:
    closed = installation.make_directory(
        installation.top / "srv/closed", installation.accounts.user(WATCHER), mode=0o700
    )
    installation.write_config({site.name: {"jail_root": str(closed)}})
    assert only(check(installation)) == ("fault", "one.jail_root", f"account runner-one cannot enter {closed}")
    installation.write_config({site.name: {"jail_root": str(closed / "gone")}})
    assert only(check(installation))[2] == f"{closed}/gone does not exist"


def test_an_interpreter_that_the_account_cannot_execute(installation: Installation, site: Site) -> None:
    closed = installation.make_directory(installation.top / "closed", mode=0o700)
    python = closed / "python"
    python.symlink_to(installation.program.python)
    installation.write_config({site.name: {"python_version": str(python)}})
    assert only(check(installation)) == ("fault", "one.python_version", f"account runner-one cannot execute {python}")
    closed.chmod(0o711)
    assert check(installation) == []


@pytest.mark.usefixtures("site")
def test_scripts_that_are_missing_or_closed(installation: Installation) -> None:
    (installation.scripts / "Base.py").unlink()
    (installation.scripts / "BaseLogin.py").chmod(0o600)
    missing, closed = check(installation)
    assert missing["what"] == f"{installation.scripts}/Base.py does not exist, a script of base"
    assert closed["what"] == f"account runner-one cannot read {installation.scripts}/BaseLogin.py"
    assert {missing["path"], closed["path"]} == {"one.basestation_dir"}


@pytest.mark.usefixtures("site")
def test_config_that_others_than_root_can_write(installation: Installation) -> None:
    installation.applications_config.chmod(0o664)
    os.chown(installation.sites_config, installation.accounts.user(WATCHER).uid, -1)
    found = {finding["file"]: (finding["level"], finding["line"], finding["hint"]) for finding in check(installation)}
    assert found == {
        str(installation.applications_config): ("fault", 1, "chmod go-w it"),
        str(installation.sites_config): ("fault", 1, "chown it to root"),
    }


def test_an_ordinary_user_is_told_what_cannot_be_checked(installation: Installation, site: Site) -> None:
    site.watch_dir.parent.chmod(0o750)
    ordinary = installation.accounts.add_user("ordinary")
    findings = check(installation, by=ordinary)
    assert {finding["level"] for finding in findings} == {"warning"}
    assert all("cannot be checked as this user" in finding["what"] for finding in findings)
    assert [finding["path"] for finding in findings] == ["", "one.watch_dir"]


@pytest.mark.usefixtures("site")
def test_the_watchers_own_account_can_check_its_rundirs(installation: Installation) -> None:
    watcher = installation.accounts.user(WATCHER)
    (finding,) = check(installation, by=watcher)
    assert finding["what"].startswith("what the accounts can read")
    installation.sites["one"].watch_dir.chmod(0o2750)
    _, unusable = check(installation, by=watcher)
    assert (unusable["level"], unusable["path"]) == ("fault", "one.watch_dir")
