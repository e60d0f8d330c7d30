"""What is done in a rundir, against files that careless and hostile people leave there."""

from __future__ import annotations

import os
import pwd
import socket
import stat
from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from basestation_runner import nss, syscalls
from basestation_runner.config.model import Application, Site
from basestation_runner.runfile import Request, RequestError
from basestation_runner.watch import inbox, setaside
from basestation_runner.watch.inbox import Acknowledged, Inbox, Left, Rejected, Taken
from basestation_runner.watch.ledger import Intake
from basestation_runner.watch.rundir import MovedError, Place, Rundir
from tests.process import as_nobody

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from basestation_runner.watch.inbox import Outcome

GOOD = "/home/sg123 /home/sg123/m /home/sg123/m/log Base.py --verbose\n"
BASE = Application(name="base", scripts=("Base.py",))
ME = pwd.getpwuid(os.geteuid()).pw_name


class NoWatches:
    """Stands for inotify where no event is needed."""

    def add(self, _descriptor: int, _mask: int) -> int:
        return 1


def get_on(_doing: str) -> None:
    pass


def choose(request: Request) -> Application:
    if request.script != "Base.py":
        raise RequestError(f"no application that this site may use runs {request.script}")
    return BASE


@pytest.fixture
def rundir(tmp_path: Path) -> Path:
    path = tmp_path / "rundir"
    path.mkdir()
    return path


@pytest.fixture
def site(rundir: Path) -> Site:
    return Site(name="alpha", watch_dir=str(rundir), runner_user=ME, applications=("base",))


def ready(site: Site) -> tuple[Inbox, Place]:
    rundir = Rundir(site, NoWatches())  # type: ignore[arg-type]
    place = rundir.find(get_on)
    assert isinstance(place, Place)
    rundir.arm(place)
    return Inbox(rundir, choose), place


def take(site: Site, name: str, *, settled: bool = False) -> Outcome | None:
    made, place = ready(site)
    rested = made.look_again(get_on, place, [name])[name] if settled else None
    outcomes = made.take(get_on, place, {name: rested})
    return outcomes[0] if outcomes else None


def accepted(site: Site, name: str) -> Intake:
    taken = take(site, name)
    assert isinstance(taken, Taken)
    _, place = ready(site)
    return Intake(job_id="0-1", site="alpha", name=name, rundir=place.inode, identity=taken.identity)


def requests(rundir: Path) -> list[str]:
    return sorted(path.name for path in rundir.iterdir() if path.name.endswith(".run"))


def test_a_good_request_is_taken_and_stays_until_it_is_acknowledged(site: Site, rundir: Path) -> None:
    (rundir / "1.run").write_text(GOOD)
    taken = take(site, "1.run")
    assert isinstance(taken, Taken)
    assert (taken.request.script, taken.application, taken.submitter) == ("Base.py", BASE, os.geteuid())
    assert requests(rundir) == ["1.run"]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    other = path.parent.parent / "other.run"
    other.write_text(GOOD)
    path.symlink_to(other)


def hard_link(path: Path) -> None:
    other = path.parent.parent / "other.run"
    other.write_text(GOOD)
    os.link(other, path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def directory(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("x")


def too_large(path: Path) -> None:
    path.write_bytes(b"x" * 10_000_000)


def not_text(path: Path) -> None:
    path.write_bytes(b"/a /b /c \xff.py\n")


def three_words(path: Path) -> None:
    path.write_text("/a /b /c\n")


def unclaimed(path: Path) -> None:
    path.write_text(GOOD.replace("Base.py", "rm.py"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fifo, "it is a FIFO"),
        (link, "it is a symbolic link"),
        (hard_link, "hard link"),
        (unix_socket, "it is a socket"),
        (directory, "it is a directory"),
        (too_large, "larger than 64 KiB"),
        (not_text, "not UTF-8"),
        (three_words, "3 of the 4 fields"),
        (unclaimed, "no application"),
    ],
)
def test_what_is_no_request_is_set_aside_with_its_reason(
    site: Site, rundir: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(rundir / "1.run")
    before = (rundir / "1.run").lstat()
    outcome = take(site, "1.run")
    assert isinstance(outcome, Rejected)
    assert reason in outcome.reason
    assert requests(rundir) == []
    assert outcome.now is not None
    kept = rundir / outcome.now
    assert kept.parent == rundir / "rejected"
    assert kept.name.startswith("1.")
    assert kept.lstat().st_ino == before.st_ino
    assert (kept.parent / f"{kept.name}.reason").read_text() == f"{outcome.reason}\n"


def test_a_file_that_the_watcher_may_not_read_is_rejected(site: Site, anyones: Path) -> None:
    (anyones / "1.run").write_text(GOOD)
    (anyones / "1.run").chmod(0)
    with as_nobody():
        outcome = take(evolve(site, watch_dir=str(anyones)), "1.run")
    assert isinstance(outcome, Rejected)
    assert "Permission denied" in outcome.reason


def test_an_empty_file_is_waited_for_and_rejected_when_it_stays_empty(site: Site, rundir: Path) -> None:
    (rundir / "1.run").touch()
    assert isinstance(take(site, "1.run"), inbox.Unsettled)
    assert isinstance(take(site, "1.run", settled=True), Rejected)


def test_a_file_that_is_gone_is_nothing(site: Site) -> None:
    assert take(site, "1.run") is None


@pytest.mark.parametrize(
    "name",
    ["a b.run", "new\nline.run", "\x1b[31m.run", "ä.run", os.fsdecode(b"\xff\xfe.run"), "x" * 251 + ".run", "'\".run"],
)
def test_any_name_is_taken_rejected_and_acknowledged(site: Site, rundir: Path, name: str) -> None:
    (rundir / name).write_text(GOOD)
    intake = accepted(evolve(site, archive=True), name)
    made, place = ready(evolve(site, archive=True))
    (done,) = made.acknowledge(get_on, place, [intake])
    assert isinstance(done, Acknowledged)
    assert requests(rundir) == []
    assert done.now is not None
    assert (rundir / done.now).read_text() == GOOD
    (rundir / name).write_text("bad\n")
    assert isinstance(take(site, name), Rejected)
    assert requests(rundir) == []
    (reason,) = (rundir / "rejected").glob("*.reason")
    assert "1 of the 4 fields" in reason.read_text()


# Owners


def status(uid: int, directory: Path) -> os.stat_result:
    file = directory / "of-somebody"
    file.write_text(GOOD)
    values = list(file.stat())
    values[stat.ST_UID] = uid
    return os.stat_result(values)


SOMEBODY = nss.Account("somebody", 4242, 4242, "/", "/bin/sh")


def test_a_file_of_somebody_who_is_no_member_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = ready(site)
    monkeypatch.setattr(nss, "account_by_uid", lambda _uid: SOMEBODY)
    monkeypatch.setattr(nss, "groups_of", lambda _account: frozenset({4242}))
    with pytest.raises(inbox._NeverError, match=r"its owner \(somebody\) is no member of the site's group"):
        made._judge(get_on, status(4242, tmp_path))


def test_a_members_file_is_taken_and_the_answer_is_remembered_for_a_while(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = ready(site)
    asked: list[int] = []

    def account(uid: int) -> nss.Account:
        asked.append(uid)
        return SOMEBODY

    monkeypatch.setattr(nss, "account_by_uid", account)
    monkeypatch.setattr(nss, "groups_of", lambda _account: frozenset({4242, made._rundir.gid}))
    for _ in range(3):
        made._judge(get_on, status(4242, tmp_path))
    assert asked == [4242]


def test_an_owner_who_is_not_known_is_asked_for_again_for_a_while_and_refused_then(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = ready(site)
    monkeypatch.setattr(nss, "account_by_uid", lambda _uid: None)
    with pytest.raises(inbox._NotNowError, match=r"its owner \(uid 4242\) is not known"):
        made._judge(get_on, status(4242, tmp_path))
    made._absent[4242] -= 10
    with pytest.raises(inbox._NeverError, match=r"its owner \(uid 4242\) is not known"):
        made._judge(get_on, status(4242, tmp_path))


def test_an_owner_who_cannot_be_looked_up_makes_the_file_wait(
    site: Site, rundir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_uid: int) -> nss.Account:
        raise nss.LookupFailedError("service away")

    monkeypatch.setattr(nss, "account_by_uid", fails)
    (rundir / "1.run").write_text(GOOD)
    made, place = ready(site)
    made._rundir.uid = 4242
    if os.geteuid() == 0:
        os.chown(rundir / "1.run", 4343, -1)
    (outcome,) = made.take(get_on, place, {"1.run": None})
    assert isinstance(outcome, inbox.Waiting)
    assert "service away" in outcome.reason
    assert requests(rundir) == ["1.run"]


@pytest.mark.usefixtures("privileged")
def test_a_real_foreign_file_is_rejected_and_the_runner_accounts_is_not(site: Site, rundir: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    for name, uid in (("root.run", 0), ("runner.run", nobody.pw_uid), ("other.run", pwd.getpwnam("daemon").pw_uid)):
        (rundir / name).write_text(GOOD)
        os.chown(rundir / name, uid, -1)
    site = evolve(site, runner_user="nobody")
    assert isinstance(take(site, "root.run"), Taken)
    assert isinstance(take(site, "runner.run"), Taken)
    assert isinstance(take(site, "other.run"), Rejected)


# Acknowledging


def test_what_was_accepted_is_removed(site: Site, rundir: Path) -> None:
    (rundir / "1.run").write_text(GOOD)
    intake = accepted(site, "1.run")
    made, place = ready(site)
    assert made.acknowledge(get_on, place, [intake]) == [Acknowledged("0-1")]
    assert [path.name for path in rundir.iterdir()] == [".base_runner_lockfile"]


def rewrite(path: Path) -> None:
    path.write_text(GOOD + "\n")


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def exchange(path: Path) -> None:
    path.unlink()
    path.write_text(GOOD)


@pytest.mark.parametrize("change", [rewrite, touch, exchange])
def test_a_request_that_took_the_name_of_an_accepted_one_stays(
    site: Site, rundir: Path, change: Callable[[Path], None]
) -> None:
    (rundir / "1.run").write_text(GOOD)
    intake = accepted(site, "1.run")
    change(rundir / "1.run")
    made, place = ready(site)
    assert made.acknowledge(get_on, place, [intake]) == [Acknowledged("0-1")]
    assert requests(rundir) == ["1.run"]
    assert isinstance(take(site, "1.run"), Taken)


@pytest.mark.parametrize("step", ["before the rename", "after the rename", "after the removal"])
def test_an_interrupted_acknowledgement_is_completed(site: Site, rundir: Path, step: str) -> None:
    path = rundir / "1.run"
    path.write_text(GOOD)
    intake = accepted(site, "1.run")
    if step == "after the rename":
        path.rename(rundir / ".taken-0-1")
    elif step == "after the removal":
        path.unlink()
    made, place = ready(site)
    assert made.acknowledge(get_on, place, [intake]) == [Acknowledged("0-1")]
    assert [path.name for path in rundir.iterdir()] == [".base_runner_lockfile"]


def test_what_replaced_the_private_file_becomes_a_request_again(site: Site, rundir: Path) -> None:
    (rundir / "1.run").write_text(GOOD)
    intake = accepted(site, "1.run")
    (rundir / "1.run").rename(rundir / "2.run")
    (rundir / ".taken-0-1").write_text(GOOD.replace("--verbose", "--other"))
    made, place = ready(site)
    assert made.acknowledge(get_on, place, [intake]) == [Acknowledged("0-1")]
    assert requests(rundir) == ["1.run", "2.run"]


def test_a_private_file_of_no_job_becomes_a_request_again(site: Site, rundir: Path) -> None:
    (rundir / ".taken-0-1").write_text(GOOD)
    (rundir / ".taken-0-2").write_text("in hand")
    made, place = ready(site)
    made.scan(get_on, place, in_hand={"0-2"}, stale_before=None)
    (name,) = requests(rundir)
    assert (rundir / name).read_text() == GOOD
    assert (rundir / ".taken-0-2").exists()


@pytest.mark.parametrize("kind", ["link to a directory", "link to nothing", "file", "fifo"])
@pytest.mark.parametrize("folder", ["archive", "rejected", "stale"])
def test_a_folder_that_is_none_is_not_used_and_nothing_is_put_where_it_leads(
    site: Site, rundir: Path, tmp_path: Path, folder: str, kind: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    match kind:
        case "link to a directory":
            (rundir / folder).symlink_to(other)
        case "link to nothing":
            (rundir / folder).symlink_to(other / "none")
        case "file":
            (rundir / folder).write_text("mine")
        case _:
            os.mkfifo(rundir / folder)
    (rundir / "1.run").write_text("bad\n" if folder == "rejected" else GOOD)
    site = evolve(site, archive=True)
    made, place = ready(site)
    if folder == "archive":
        made.acknowledge(get_on, place, [accepted(site, "1.run")])
    elif folder == "rejected":
        take(site, "1.run")
    else:
        made.scan(get_on, place, in_hand=(), stale_before=2e10)
    assert list(other.iterdir()) == []
    assert requests(rundir) == []
    kept = {path for path in rundir.glob("1.*") if not path.name.endswith(".reason")}
    assert len(kept) == 1


def test_a_rundir_that_is_another_directory_now_is_told(site: Site, rundir: Path) -> None:
    made, place = ready(site)
    (rundir / "1.run").write_text(GOOD)
    rundir.parent.chmod(0o770)
    rundir.rename(rundir.parent / "away")
    with pytest.raises(MovedError):
        made.take(get_on, place, {"1.run": None})
    rundir.symlink_to(rundir.parent / "away")
    with pytest.raises(MovedError):
        made.take(get_on, place, {"1.run": None})
    rundir.unlink()
    rundir.mkdir()
    with pytest.raises(MovedError):
        made.scan(get_on, place, in_hand=(), stale_before=None)


def test_a_rundir_that_cannot_be_written_keeps_its_request(
    site: Site, rundir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rundir / "1.run").write_text(GOOD)
    intake = accepted(site, "1.run")

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(syscalls, "rename_noreplace", denied)
    made, place = ready(site)
    assert made.acknowledge(get_on, place, [intake]) == [Left("0-1", "Permission denied")]
    (rundir / "2.run").write_text("bad\n")
    assert made.take(get_on, place, {"2.run": None}) == [
        Rejected("2.run", "its first line has 1 of the 4 fields HOME MISSION_DIR LOG_FILE SCRIPT", None)
    ]
    assert made.take(get_on, place, {"2.run": None}) == []
    (rundir / "2.run").write_text("still bad\n")
    assert len(made.take(get_on, place, {"2.run": None})) == 1


def test_a_filesystem_without_exclusive_rename_is_served_too(
    site: Site, rundir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(syscalls, "rename_noreplace", cannot)
    (rundir / "1.run").write_text(GOOD)
    intake = accepted(site, "1.run")
    made, place = ready(site)
    assert made.acknowledge(get_on, place, [intake]) == [Acknowledged("0-1")]
    (rundir / "2.run").write_text("bad\n")
    assert isinstance(take(site, "2.run"), Rejected)
    assert requests(rundir) == []


# Listing


def test_requests_are_listed_by_age_and_hidden_ones_are_none(site: Site, rundir: Path) -> None:
    for age, name in ((3, "a.run"), (1, "b.run"), (2, "c.run"), (0, ".d.run"), (0, "e.txt")):
        (rundir / name).write_text(GOOD)
        os.utime(rundir / name, (1e9 + age, 1e9 + age))
    made, place = ready(site)
    assert list(made.scan(get_on, place, in_hand=(), stale_before=None).seen) == ["b.run", "c.run", "a.run"]


def test_old_requests_are_set_aside_and_named(site: Site, rundir: Path) -> None:
    for name in ("old.run", "new.run"):
        (rundir / name).write_text(GOOD)
    os.utime(rundir / "old.run", (1e9, 1e9))
    made, place = ready(site)
    scan = made.scan(get_on, place, in_hand=(), stale_before=1e9 + 1)
    assert (list(scan.seen), scan.stale, scan.stale_left) == (["new.run"], ("old.run",), ())
    (kept,) = (rundir / "stale").iterdir()
    assert kept.name.startswith("old.")


def test_rejected_files_are_bounded_in_number_and_others_files_are_left_alone(
    site: Site, rundir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setaside, "MOST_KEPT", 10)
    monkeypatch.setattr(setaside, "_KEPT_AFTER_CLEANING", 5)
    (rundir / "rejected").mkdir()
    (rundir / "rejected" / "somebody's").write_text("x")
    made, place = ready(site)
    for number in range(40):
        (rundir / f"{number}.run").write_text("bad\n")
        made.take(get_on, place, {f"{number}.run": None})
    kept = [path.name for path in (rundir / "rejected").iterdir()]
    assert "somebody's" in kept
    ours = [name for name in kept if not name.endswith(".reason") and name != "somebody's"]
    assert 5 <= len(ours) <= 11
    assert any(name.startswith("39.") for name in ours)
    assert len([name for name in kept if name.endswith(".reason")]) == len(ours)
