"""What is seen of real files, processes and limits, and what is made of a name service that fails."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from basestation_runner import nss
from basestation_runner.config import hostfacts
from basestation_runner.config.hostfacts import (
    NOT_BY_THIS_USER,
    Absent,
    Daemon,
    Entry,
    Link,
    Names,
    Process,
    gather,
    look,
)
from basestation_runner.config.load import Source, load_sources
from basestation_runner.config.probes import Unseen, ask
from basestation_runner.errors import RunnerError
from basestation_runner.nss import Account, LookupFailedError
from basestation_runner.paths import PathRefusedError, open_trusted_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.config.model import Config

SOMEBODY = 65534


def entry(path: Path) -> Entry:
    seen = look(str(path))
    assert isinstance(seen, Entry)
    return seen


def config(groups: str = "") -> Config:
    text = f"a: {{watch_dir: /srv/a, runner_user: root2, jail_root: /srv, env: {{}}{groups}}}"
    return load_sources(Source("s.yaml", text.encode()), None)


def test_a_directory_is_seen_with_its_mode_and_place(tmp_path: Path) -> None:
    tmp_path.chmod(0o2750)
    status = tmp_path.stat()
    seen = entry(tmp_path)
    assert (seen.mode, seen.gid, seen.place) == (stat.S_IFDIR | 0o2750, status.st_gid, (status.st_dev, status.st_ino))
    assert seen.may is None
    assert not seen.is_read_only


def test_a_filesystem_is_seen_by_its_types_name() -> None:
    assert entry(Path("/proc")).filesystem == "proc"


def test_what_is_missing_is_told_from_its_first_missing_part(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    assert look(f"{tmp_path}/a/b") == Absent(f"{tmp_path}/a")
    assert look(f"{tmp_path}/file/b") == Absent(f"{tmp_path}/file/b")
    assert look(f"{tmp_path}/dangling") == Absent(f"{tmp_path}/nowhere")
    assert look(f"{tmp_path}/loop") == Unseen("cannot be looked at: Too many levels of symbolic links", is_fault=True)


@pytest.mark.usefixtures("privileged")
def test_a_link_is_loose_exactly_where_the_watcher_and_jobs_do_not_follow_it(tmp_path: Path) -> None:
    (tmp_path / "real/below").mkdir(parents=True)
    for name, mode in (("firm", 0o755), ("open", 0o777), ("shared", 0o775), ("sticky", 0o1777), ("given", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "link").symlink_to("../real")
        (tmp_path / name).chmod(mode)
    os.chown(tmp_path / "given", SOMEBODY, -1)
    (tmp_path / "firm/theirs").symlink_to(tmp_path / "real")
    os.chown(tmp_path / "firm/theirs", SOMEBODY, -1, follow_symlinks=False)

    def links(path: str) -> list[Link]:
        return list(entry(tmp_path / path).links)

    def is_followed(path: str) -> bool:
        try:
            os.close(open_trusted_directory(str(tmp_path / path)))
        except PathRefusedError:
            return False
        return True

    assert links("real/below") == []
    assert links("firm/link/below") == [Link(f"{tmp_path}/firm/link", "../real", is_loose=False)]
    assert links("firm/theirs/below") == [Link(f"{tmp_path}/firm/theirs", f"{tmp_path}/real", is_loose=False)]
    for name in ("open", "shared", "sticky", "given"):
        assert links(f"{name}/link") == [Link(f"{tmp_path}/{name}/link", "../real", is_loose=True)]
    for way in ("firm/link", "firm/theirs", "open/link", "shared/link", "sticky/link", "given/link"):
        assert is_followed(f"{way}/below") is not any(link.is_loose for link in links(f"{way}/below"))


@pytest.fixture
def reachable(privileged: None) -> Iterator[Path]:  # noqa: ARG001 - only for what it decides
    """A directory that every account can reach, which pytest's are not."""
    with TemporaryDirectory(dir="/run") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_whether_an_account_can_use_something_is_the_kernels_word(reachable: Path) -> None:
    above, below = reachable / "above", reachable / "above/below"
    for directory in (above, below):
        directory.mkdir()
    below.chmod(0o777)
    member = hostfacts.Identity(SOMEBODY, SOMEBODY, (SOMEBODY, 4711))
    stranger = hostfacts.Identity(SOMEBODY, SOMEBODY, (SOMEBODY,))

    def may(identity: hostfacts.Identity, path: Path) -> bool:
        (answer,) = ask([partial(hostfacts.may_use, str(path), identity, os.W_OK | os.X_OK)])
        return bool(answer)

    above.chmod(0o700)
    assert not may(member, below)
    os.chown(above, -1, 4711)
    above.chmod(0o710)
    assert may(member, below)
    assert not may(stranger, below)
    assert not may(member, above)


@pytest.mark.usefixtures("privileged")
def test_trying_as_an_account_leaves_this_process_as_it_was() -> None:
    before = os.getresuid(), os.getresgid(), os.getgroups()
    hostfacts.may_use("/", hostfacts.Identity(SOMEBODY, SOMEBODY, ()), os.R_OK)
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before


@pytest.mark.parametrize("error", [PermissionError(), OSError(errno.EINVAL, "no such uid in this user namespace")])
def test_an_account_that_this_process_cannot_become_is_not_judged(error: OSError) -> None:
    with patch.object(os, "setgroups", side_effect=error):
        assert hostfacts.may_use("/", hostfacts.Identity(SOMEBODY, SOMEBODY, ()), os.R_OK) == NOT_BY_THIS_USER


def test_what_this_user_may_not_see_is_said() -> None:
    with patch.object(os, "lstat", side_effect=PermissionError):
        assert look("/srv/a") == NOT_BY_THIS_USER
        assert hostfacts._trusted("/srv/a") == NOT_BY_THIS_USER


@pytest.mark.usefixtures("privileged")
def test_a_config_file_that_others_can_write_is_told_of(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.touch(mode=0o644)
    file.chmod(0o664)
    error = hostfacts._trusted(str(file))
    assert isinstance(error, RunnerError)
    assert (error.where, error.hint) == (str(file), "chmod go-w it")


def test_a_watcher_is_found_by_its_title_and_its_account(tmp_path: Path) -> None:
    account = Account("w", 1, 1, "/", "/bin/sh")
    for pid, title, uid in ((1, "init", 0), (7, "runner-watch", 1), (8, "runner-watch", 9), (9, "runner-watching", 1)):
        (tmp_path / str(pid)).mkdir()
        status = f"Name:\t{title}\nUid:\t9\t{uid}\t9\t9\nGid:\t9\t3\t9\t9\nGroups:\t4 5 \n"
        (tmp_path / str(pid) / "status").write_text(status)
    (tmp_path / "10").mkdir()  # has ended meanwhile
    with patch.object(hostfacts, "PROC", tmp_path):
        assert hostfacts._watchers(account) == (Process(7, frozenset({3, 4, 5})),)
        (tmp_path / "1/status").unlink()
        assert hostfacts._watchers(account) == NOT_BY_THIS_USER
    assert hostfacts._watchers(None) == ()


def failing(*_: object) -> None:
    raise LookupFailedError("it is away")


def test_a_name_service_that_fails_is_not_taken_for_an_absent_account() -> None:
    away = Unseen("failed: it is away", is_fault=True)
    site = config().sites["a"]
    with patch.object(nss, "account", failing):
        assert hostfacts._names(site) == away
        assert hostfacts._daemon("w") == Daemon(name="w", account=away)
    with (
        patch.object(nss, "account", lambda name: Account(name, 1, 1, "/", "/bin/sh")),
        patch.object(nss, "groups_of", failing),
    ):
        assert hostfacts._names(site) == away
        assert hostfacts._daemon("w") == Daemon(name="w", account=away)


def test_a_group_that_is_not_answered_is_told_from_one_that_is_absent() -> None:
    site = config(", groups: [root, no-such-group-here, 4711]".replace("root", "daemon")).sites["a"]
    with patch.object(nss, "account", lambda name: Account(name, 1, 1, "/", "/bin/sh")):
        names = hostfacts._names(site)
    assert isinstance(names, Names)
    assert names.requested[1:] == (None, 4711)
    assert names.label(4711) == "GID 4711"
    with (
        patch.object(nss, "account", lambda name: Account(name, 1, 1, "/", "/bin/sh")),
        patch.object(nss, "group", failing),
    ):
        names = hostfacts._names(site)
    assert isinstance(names, Names)
    assert names.requested == (*[Unseen("failed: it is away", is_fault=True)] * 2, 4711)


def test_all_facts_of_a_configuration_are_gathered() -> None:
    facts = gather(config(), ["/etc/passwd"], watcher_user="no-such-user-here", helper_user="root")
    assert facts.watcher == Daemon(name="no-such-user-here", account=None)
    assert isinstance(facts.helper.account, Account)
    assert facts.files == {"/etc/passwd": None}
    assert facts.watchers == ()
    assert facts.limits.keys() == {"max_user_watches", "max_user_instances", "max_queued_events"}
    site = facts.sites["a"]
    assert site.names is None
    assert isinstance(site.rundir, Absent)
    assert isinstance(site.jail, Entry)
    assert isinstance(site.interpreter, Absent)
    assert isinstance(site.scripts, Absent)


def test_a_name_service_that_hangs_is_given_up() -> None:
    hung = Unseen("does not answer within 1 s", is_fault=True)
    with patch.object(nss, "account", lambda _: os.read(os.pipe()[0], 1)):
        facts = gather(config(), [], watcher_user="w", helper_user="h", patience=1)
    assert (facts.watcher.account, facts.helper.account, facts.sites["a"].names) == (hung, hung, hung)
    assert isinstance(facts.sites["a"].jail, Entry)
