"""The life of sites: rundirs that come and go, locks, hung ones, lost events."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner import nss
from basestation_runner.errors import RunnerError
from basestation_runner.watch import inbox, sitewatch, watcher
from basestation_runner.watch.inbox import Inbox
from basestation_runner.watch.lockfile import NAME
from basestation_runner.watch.rundir import Rundir

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.watch.inotify import Watches
    from tests.watch.conftest import Bench


def runs(bench: Bench, rundir: Path, name: str) -> None:
    """Drop a request and wait until it has run."""
    path = bench.drop(rundir, name)
    bench.until(lambda: bench.states().get(name) == "succeeded" and not path.exists(), name)


def never_again(bench: Bench) -> None:
    """Make the look each minute come never: what a test waits for must come by events."""
    bench.timing = type(bench.timing)(settle=0.05, pause=0.01, recheck=1000, first_wait=0.02, hung=1000)


@pytest.mark.parametrize("way", ["made", "renamed", "made with its parents"])
def test_a_rundir_that_is_missing_at_the_start_is_served_as_soon_as_it_is_there(bench: Bench, way: str) -> None:
    never_again(bench)
    where = bench.directory / "a/b/c/alpha"
    bench.site("alpha", make=False, watch_dir=str(where))
    bench.start()
    assert "does not exist" in bench.events("site pending", site="alpha")[0]["reason"]
    if way == "renamed":
        (bench.directory / "a/b/c").mkdir(parents=True)
        (bench.directory / "made").mkdir()
        (bench.directory / "made").rename(where)
    elif way == "made":
        for directory in reversed((where, *where.parents[:3])):
            directory.mkdir()
            bench.until(lambda: all(not site._is_finding for site in bench.sites_of_watcher))
    else:
        where.mkdir(parents=True)
    bench.drop(where, "early.run")
    bench.until(lambda: bench.states().get("early.run") == "succeeded")
    runs(bench, where, "late.run")
    assert bench.events("site watching", site="alpha")


def test_a_rundir_that_is_deleted_and_made_again_is_served_again(bench: Bench) -> None:
    never_again(bench)
    rundir = bench.site("alpha")
    bench.start()
    for name in ("1.run", "2.run", "3.run"):
        runs(bench, rundir, name)
        shutil.rmtree(rundir)
        rundir.mkdir()
    runs(bench, rundir, "4.run")


def test_a_rundir_that_is_moved_away_and_made_again_is_served_where_it_belongs(bench: Bench) -> None:
    never_again(bench)
    rundir = bench.site("alpha")
    bench.start()
    runs(bench, rundir, "1.run")
    away = rundir.rename(bench.directory / "away")
    bench.until(lambda: bench.events("site pending", site="alpha"))
    elsewhere = bench.drop(away, "not mine.run")
    rundir.mkdir()
    runs(bench, rundir, "2.run")
    assert elsewhere.exists()


def test_a_rundir_whose_parent_is_moved_is_found_again_within_a_minute(bench: Bench) -> None:
    """No event tells of that; the minute is 0.3 s here."""
    where = bench.directory / "parent/alpha"
    where.mkdir(parents=True)
    bench.site("alpha", make=False, watch_dir=str(where))
    bench.start()
    where.parent.rename(bench.directory / "away")
    where.mkdir(parents=True)
    runs(bench, where, "1.run")


def test_requests_dropped_while_a_rundir_was_not_watched_are_found_by_the_scan(bench: Bench) -> None:
    never_again(bench)
    rundir = bench.site("alpha")
    bench.start()
    rundir.rename(bench.directory / "away")
    bench.until(lambda: bench.events("site pending", site="alpha"))
    bench.drop(bench.directory / "away", "1.run")
    (bench.directory / "away").rename(rundir)
    bench.until(lambda: bench.states().get("1.run") == "succeeded")


@pytest.mark.parametrize("where", ["the rundir", "its parent"])
def test_a_link_that_others_than_root_could_have_made_is_not_followed(bench: Bench, where: str) -> None:
    bench.site("beta", make=False, watch_dir=str(bench.directory / "beta/rundir"))
    (bench.directory / "beta/rundir").mkdir(parents=True)
    (bench.directory / "people's").mkdir(mode=0o770)
    (bench.directory / "people's").chmod(0o770)
    rundir = bench.directory / "people's/alpha/rundir"
    bench.site("alpha", make=False, watch_dir=str(rundir))
    if where == "its parent":
        rundir.parent.symlink_to(bench.directory / "beta")
    else:
        rundir.parent.mkdir(mode=0o770)
        rundir.parent.chmod(0o770)
        rundir.symlink_to(bench.directory / "beta/rundir")
    bench.start()
    (pending,) = bench.events("site pending", site="alpha")
    assert pending["reason"] == f"{rundir}: it leads through a link that others than root could have made"
    assert bench.events("site watching", site="beta")


@pytest.mark.usefixtures("privileged")
def test_a_link_of_roots_is_followed(bench: Bench) -> None:
    bench.directory.chmod(0o755)
    (bench.directory / "real/alpha").mkdir(parents=True)
    (bench.directory / "link").symlink_to("./real/../real")
    bench.site("alpha", make=False, watch_dir=str(bench.directory / "link/alpha"))
    bench.start()
    runs(bench, bench.directory / "real/alpha", "1.run")


@pytest.mark.usefixtures("privileged")
def test_two_sites_never_serve_one_directory(bench: Bench) -> None:
    """Links of root's are followed, so two paths can lead to one directory."""
    (bench.directory / "real").mkdir()
    (bench.directory / "link").symlink_to(bench.directory / "real")
    bench.site("alpha", watch_dir=str(bench.directory / "real/rundir"), make=False)
    bench.site("beta", watch_dir=str(bench.directory / "link/rundir"), make=False)
    (bench.directory / "real/rundir").mkdir()
    bench.start()
    (pending,) = bench.events("site pending")
    (watching,) = bench.events("site watching")
    assert f"the same directory as the rundir of site {watching['site']}" in pending["reason"]
    runs(bench, bench.directory / "real/rundir", "1.run")
    assert len(bench.helper.dispatched) == 1


def test_a_rundir_exchanged_for_another_sites_is_not_served_twice(bench: Bench) -> None:
    rundir, other = bench.site("alpha"), bench.site("beta")
    bench.start()
    rundir.rename(bench.directory / "away")
    other.rename(rundir)
    bench.drop(rundir, "1.run")
    bench.until(lambda: bench.states().get("1.run") == "succeeded")
    assert [sent["site"] for sent in bench.helper.dispatched] == ["alpha"]


def test_a_site_that_is_not_supported_pends_and_the_others_are_served(bench: Bench) -> None:
    bench.site("alpha", docker_image="image")
    rundir = bench.site("beta")
    bench.start()
    assert bench.events("site pending", site="alpha")[0]["reason"] == "containers are not supported yet"
    runs(bench, rundir, "1.run")


# The lock


def live_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"])


def test_the_lock_is_ours_while_the_site_is_watched_and_gone_after_the_stop(bench: Bench) -> None:
    rundir = bench.site("alpha")
    bench.start()
    assert (rundir / NAME).read_text() == str(os.getpid())
    bench.stop()
    assert not (rundir / NAME).exists()


def test_the_lock_is_not_touched_when_the_site_ignores_it(bench: Bench) -> None:
    rundir = bench.site("alpha", ignore_lock=True)
    (rundir / NAME).write_text("1")
    bench.start()
    runs(bench, rundir, "1.run")
    bench.stop()
    assert (rundir / NAME).read_text() == "1"


@pytest.mark.parametrize("way", ["removed", "emptied", "replaced by a stale one"])
def test_a_live_foreign_pid_keeps_the_site_pending_until_the_file_changes(bench: Bench, way: str) -> None:
    never_again(bench)
    rundir = bench.site("alpha")
    with live_process() as process:
        (rundir / NAME).write_text(str(process.pid))
        bench.start()
        (pending,) = bench.events("site pending")
        assert pending["reason"] == f"the lock {rundir / NAME} is held by process {process.pid}"
        path = bench.drop(rundir, "1.run")
        match way:
            case "removed":
                (rundir / NAME).unlink()
            case "emptied":
                (rundir / NAME).write_text("")
            case _:
                (rundir / "new").write_text("999999999")
                (rundir / "new").rename(rundir / NAME)
        bench.until(lambda: bench.states().get("1.run") == "succeeded" and not path.exists())
        process.kill()


def test_the_end_of_the_process_that_has_the_lock_is_seen_within_a_minute(bench: Bench) -> None:
    """The minute is 0.3 s here."""
    rundir = bench.site("alpha")
    with live_process() as process:
        (rundir / NAME).write_text(str(process.pid))
        bench.start()
        bench.drop(rundir, "1.run")
        process.kill()
    bench.until(lambda: bench.states().get("1.run") == "succeeded")


def test_a_legacy_daemon_that_takes_the_lock_takes_the_site(bench: Bench) -> None:
    never_again(bench)
    rundir = bench.site("alpha")
    bench.start()
    with live_process() as process:
        (rundir / NAME).write_text(str(process.pid))
        bench.until(lambda: bench.events("site pending"))
        path = bench.drop(rundir, "1.run")
        bench.stop()
        assert path.exists()
        assert (rundir / NAME).read_text() == str(process.pid)
        process.kill()


def test_a_lock_that_cannot_be_written_is_warned_of_and_the_site_is_served(bench: Bench) -> None:
    rundir = bench.site("alpha")
    (rundir / NAME).mkdir()
    bench.start()
    runs(bench, rundir, "1.run")
    assert len(bench.events("lock cannot be written: no other daemon is kept away")) == 1


# Hanging


def hang(bench: Bench, step: str, site: str) -> threading.Event:
    """Make one step of one site hang until the returned event is set."""
    release = threading.Event()
    owner = Rundir if step in {"find", "arm"} else Inbox
    real = getattr(owner, step)

    def hangs(box: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        if (box.site if owner is Rundir else box._rundir.site).name == site:
            release.wait(60)
        return real(box, *args, **kwargs)

    bench.patch.setattr(owner, step, hangs)
    return release


@pytest.mark.parametrize("step", ["find", "arm", "scan", "take", "acknowledge", "look_again"])
def test_a_hung_site_delays_no_other_and_loses_nothing(bench: Bench, step: str) -> None:
    rundir, other = bench.site("alpha"), bench.site("beta")
    bench.drop(rundir, "early.run")
    release = hang(bench, step, "alpha")
    bench.start()
    bench.drop(rundir, "late.run", n=2)
    for number in range(20):
        runs(bench, other, f"{number}.run")
    bench.until(lambda: bench.events("site pending", site="alpha"))
    assert bench.events("site pending", site="alpha")[0]["reason"] == "the rundir does not answer"
    release.set()
    bench.until(lambda: all(bench.states().get(name) == "succeeded" for name in ("early.run", "late.run")))
    bench.until(lambda: [path.name for path in rundir.iterdir()] == [NAME] and not intake(bench))
    assert len([sent for sent in bench.helper.dispatched if sent["site"] == "alpha"]) == 2


def intake(bench: Bench) -> list[object]:
    assert bench.watcher is not None
    return list(bench.on_loop(lambda: list(bench.watcher.ledger.intake("alpha"))))  # type: ignore[union-attr]


def test_a_hung_site_holds_ready_no_longer_than_its_deadline_and_the_stop_neither(bench: Bench) -> None:
    bench.patch.setattr(watcher, "STOP_PATIENCE", 0.1)
    bench.site("alpha")
    release = hang(bench, "scan", "alpha")
    bench.start()
    bench.stop()
    release.set()


def test_the_name_service_that_hangs_is_named(bench: Bench) -> None:
    release = threading.Event()
    real = nss.account
    bench.site("alpha")
    calls: list[str] = []

    def hangs(name: str) -> Any:  # noqa: ANN401 - passed on
        calls.append(name)
        if len(calls) > 1:  # the first is the look whether all accounts exist
            release.wait(60)
        return real(name)

    bench.patch.setattr(nss, "account", hangs)
    bench.start()
    assert bench.events("site pending", site="alpha")[0]["reason"] == "the name service does not answer"
    release.set()
    bench.until(lambda: bench.events("site watching"))


def test_a_look_up_that_fails_is_tried_again_and_keeps_the_request(bench: Bench) -> None:
    rundir = bench.site("alpha")
    real = Inbox._judge
    failures = iter(range(3))

    def judge(box: Inbox, *args: Any) -> None:  # noqa: ANN401 - passed on
        if next(failures, None) is not None:
            raise inbox._NotNowError("its owner cannot be looked up: service away")
        real(box, *args)

    bench.patch.setattr(Inbox, "_judge", judge)
    bench.start()
    runs(bench, rundir, "1.run")
    assert bench.events("request cannot be judged now")


# Lost events


@pytest.mark.parametrize("own", [True, False], ids=["of its own", "of all"])
def test_after_an_overflow_of_its_queue_a_site_is_scanned(bench: Bench, *, own: bool) -> None:
    """A site has a queue of its own, unless there are more sites than instances."""
    never_again(bench)
    if not own:
        bench.patch.setattr(sitewatch, "Watches", no_more_instances)
    rundir, missing = bench.site("alpha"), bench.site("beta", make=False)
    made = bench.start()
    queues = [site.watches for site in bench.sites_of_watcher] if own else [made.watches]
    assert len(set(map(id, queues))) == len(queues)
    for queue in queues:
        bench.on_loop(partial(bench.loop.remove_reader, queue._fd))
    for number in range(100):
        bench.drop(rundir, f"{number}.run", n=number)
    missing.mkdir()
    bench.drop(missing, "beta.run")

    def overflow(queue: Watches) -> None:
        os.read(queue._fd, 1 << 20)  # the events are lost
        queue._tell(-1, 0x4000, "")  # IN_Q_OVERFLOW
        bench.loop.add_reader(queue._fd, queue._read)

    for queue in queues:
        bench.on_loop(partial(overflow, queue))
    bench.until(lambda: len(bench.events("job ended")) == 101)
    assert len(bench.helper.dispatched) == 101
    told = bench.events("no inotify instance is left for some sites: one with very many events can delay the others")
    assert [line["sites"] for line in told] == ([] if own else [2])


def no_more_instances(*_: object, **__: object) -> Watches:
    raise RunnerError("inotify cannot be used: Too many open files")


def test_an_event_whose_name_is_not_utf8_loses_no_other_one(bench: Bench) -> None:
    never_again(bench)
    rundir = bench.site("alpha")
    bench.start()
    (rundir / os.fsdecode(b"\xff\xfe")).write_text("x")
    bench.drop(rundir, os.fsdecode(b"\xff.run"))
    bench.drop(rundir, "1.run")
    bench.until(lambda: len(bench.events("job ended")) == 2)


# Accounts


def test_an_account_that_comes_late_is_waited_for(bench: Bench) -> None:
    bench.patch.setattr(watcher, "ACCOUNTS_PAUSE", 0.02)
    rundir = bench.site("alpha")
    real = nss.account
    absences = iter(range(3))
    bench.patch.setattr(nss, "account", lambda name: real(name) if next(absences, None) is None else None)
    bench.start()
    runs(bench, rundir, "1.run")
    assert bench.events("accounts are waited for")


def test_an_account_that_does_not_come_is_named(bench: Bench) -> None:
    bench.patch.setattr(watcher, "ACCOUNTS_PAUSE", 0.02)
    bench.patch.setattr(watcher, "ACCOUNTS_PATIENCE", 0.1)
    bench.site("alpha", runner_user="nosuchaccount")
    bench.site("beta", groups=("nosuchgroup",))
    with pytest.raises(ExceptionGroup) as raised:
        bench.start()
    assert [str(error) for error in raised.value.exceptions] == [
        "there is no account nosuchaccount (runner_user of site alpha)",
        "there is no group nosuchgroup (the first of groups of site beta)",
    ]
    bench.watcher = None
