"""Rundirs that are full of old, bad or unremovable files, or that no event tells of."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from basestation_runner import filesystems, repeats, syscalls
from basestation_runner.watch import inotify, setaside
from basestation_runner.watch.inbox import Inbox

if TYPE_CHECKING:
    from pathlib import Path

    from tests.watch.conftest import Bench

SAMPLE = "/home/sg123 /home/sg123/m /home/sg123/m/log Base.py"


def old(path: Path) -> None:
    os.utime(path, (1e9, 1e9))


def remarks(bench: Bench) -> list[str]:
    (site,) = bench.sites_of_watcher
    return list(bench.on_loop(lambda: list(site.remarks.values())))


def status(bench: Bench) -> str:
    return str(bench.on_loop(lambda: bench.watcher._status))  # type: ignore[union-attr]


# Floods of bad files


def test_a_flood_of_bad_files_is_logged_as_a_number_and_bounded_on_disk(bench: Bench) -> None:
    """Some thousands of them, with names that would like to be log lines of their own."""
    bench.patch.setattr(repeats, "SUMMED_FOR", 0.5)
    rundir, count = bench.site("alpha"), 3000
    bench.start()
    for number in range(count):
        with (rundir / f"{number}\n[beta] job ended{'x' * 200}.run").open("w") as file:
            file.write("bad\n")
    bench.drop(rundir, "good.run")

    def told() -> int:
        one_by_one = len(bench.events("request rejected"))
        return one_by_one + sum(int(line["further"]) for line in bench.events("requests rejected"))

    bench.until(lambda: bench.states().get("good.run") == "succeeded" and told() == count, "all files")
    assert len(bench.events("request rejected")) == 10
    assert sum(len(repr(entry)) for entry in bench.capture.entries) < 20_000
    kept = [path.name for path in (rundir / "rejected").iterdir()]
    reasons = {name for name in kept if name.endswith(".reason")}
    assert len(kept) == 2 * len(reasons) <= 2 * setaside.MOST_KEPT
    assert not list(rundir.glob("*.run"))


def test_after_a_quiet_minute_bad_files_are_logged_one_by_one_again(bench: Bench) -> None:
    bench.patch.setattr(repeats, "SUMMED_FOR", 0.1)
    rundir = bench.site("alpha")
    bench.start()
    for number in range(15):
        bench.drop(rundir, f"{number}.run", text="bad\n")
    bench.until(lambda: [line["further"] for line in bench.events("requests rejected")] == [5])
    (site,) = bench.sites_of_watcher
    bench.until(lambda: not bench.on_loop(lambda: site._rejections._said))
    bench.drop(rundir, "late.run", text="bad\n")
    bench.until(lambda: bench.events("request rejected", request="late.run"))


# The first activation


def test_years_of_leftovers_are_set_aside_at_once_and_told_in_one_line(bench: Bench) -> None:
    rundir, other, count = bench.site("alpha"), bench.site("beta"), 20_000
    for number in range(count):
        path = rundir / f"{number:05}.run"
        path.touch()
        old(path)
    bench.drop(rundir, "new.run")
    bench.drop(other, "other.run")
    bench.start()
    bench.until(lambda: len(bench.events("job ended")) == 2)
    (line,) = bench.events("stale requests set aside")
    assert line["count"] == count
    assert line["requests"][:2] == ["00000.run", "00001.run"]
    assert len(list((rundir / "stale").iterdir())) == count
    assert bench.states() == {"new.run": "succeeded", "other.run": "succeeded"}
    assert not list(rundir.glob("*.run"))


def test_leftovers_that_cannot_be_moved_are_never_run_and_told_once(bench: Bench) -> None:
    rundir = bench.site("alpha")
    for number in range(3):
        old(bench.drop(rundir, f"{number}.run"))

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    bench.patch.setattr(syscalls, "rename_noreplace", denied)
    bench.start()
    (site,) = bench.sites_of_watcher
    for number in range(3, 6):
        bench.on_loop(site.doubt)
        bench.drop(rundir, f"{number}.run")
        bench.until(lambda number=number: bench.states().get(f"{number}.run") == "succeeded")  # type: ignore[misc]
    (line,) = bench.events("stale requests ignored: they cannot be moved")
    assert (line["count"], line["requests"]) == (3, ["0.run", "1.run", "2.run"])
    assert sorted(bench.states()) == ["3.run", "4.run", "5.run"]


def test_what_waits_in_the_rundir_after_the_first_look_does_not_become_stale(bench: Bench) -> None:
    """Not even where the leftovers cannot be moved, so that the first activation is never over."""
    bench.timing = evolve(bench.timing, stale=0.0)
    rundir = bench.site("alpha")
    leftover = bench.drop(rundir, "leftover.run")
    old(leftover)
    bench.patch.setattr(Inbox, "_is_away", lambda *_: False)
    release = bench.hold_up(Inbox, "take")
    bench.start()
    bench.drop(rundir, "late.run")
    (site,) = bench.sites_of_watcher
    bench.on_loop(site.doubt)
    release.set()
    bench.until(lambda: bench.states().get("late.run") == "succeeded")
    assert sorted(bench.states()) == ["late.run"]


# Filesystems that do not tell


@pytest.fixture
def silent(bench: Bench) -> Path:
    """A rundir on a filesystem of which no event tells of a request, as when another host has written it."""
    bench.patch.setattr(filesystems, "kind", lambda _: "nfs4")
    bench.patch.setattr(inotify, "RUNDIR", inotify.RUNDIR & ~(inotify.CLOSE_WRITE | inotify.MOVED_TO))
    bench.timing = evolve(bench.timing, poll=0.05, recheck=1000.0)
    return bench.site("alpha")


def test_a_filesystem_that_does_not_tell_is_polled_and_that_is_said(bench: Bench, silent: Path) -> None:
    bench.start()
    for number in range(3):
        path = bench.drop(silent, f"{number}.run")
        bench.until(lambda path=path: not path.exists())  # type: ignore[misc]
    bench.until(lambda: len(bench.events("job ended")) == 3)
    (line,) = bench.events("filesystem may not tell of every request: the rundir is polled")
    assert (line["site"], line["filesystem"], line["seconds"]) == ("alpha", "nfs4", 0.05)
    assert remarks(bench) == ["nfs4 may not tell of a request: it is looked for every 0.05 s"]
    assert status(bench).startswith("1 site watching (1 with warnings);")


def test_a_polled_request_is_taken_only_when_it_has_not_changed_for_a_while(bench: Bench, silent: Path) -> None:
    """Its writer is always a little faster than the next look."""
    words = SAMPLE.split()
    real = Inbox.look_again
    with (silent / "1.run").open("w") as file:

        def write() -> None:
            if words:
                file.write(f"{words.pop(0)} ")
                file.flush()

        def look_again(box: Inbox, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
            write()
            return real(box, *args, **kwargs)

        bench.patch.setattr(Inbox, "look_again", look_again)
        write()
        bench.start()
        bench.until(lambda: bench.events("job ended"))
    assert bench.helper.dispatched[0]["script"] == "Base.py"
    assert not bench.events("request rejected")


def test_a_polled_request_that_cannot_be_removed_runs_once_and_is_read_twice_at_most(
    bench: Bench, silent: Path
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(30, "Read-only file system")

    rename = syscalls.rename_noreplace
    bench.patch.setattr(syscalls, "rename_noreplace", denied)
    reads: list[str] = []
    real = Inbox._read

    def read(box: Inbox, get_on: Any, rundir: int, name: str, stamp: Any) -> Any:  # noqa: ANN401 - passed on
        reads.append(name)
        return real(box, get_on, rundir, name, stamp)

    bench.patch.setattr(Inbox, "_read", read)
    scans = threading.Semaphore(0)
    real_scan = Inbox.scan

    def scan(box: Inbox, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        scans.release()
        return real_scan(box, *args, **kwargs)

    bench.patch.setattr(Inbox, "scan", scan)
    path = bench.drop(silent, "1.run")
    bench.start()
    bench.until(lambda: len(reads) == 2, "its being found again")
    for _ in range(10):
        assert scans.acquire(timeout=20)
    assert reads == ["1.run"] * 2
    assert len(bench.helper.dispatched) == 1
    assert path.exists()
    assert "requests cannot be removed from the rundir: Read-only file system" in remarks(bench)
    path.unlink()
    bench.patch.setattr(syscalls, "rename_noreplace", rename)
    (site,) = bench.sites_of_watcher
    bench.on_loop(site.doubt)
    bench.until(lambda: not any("removed" in remark for remark in remarks(bench)))


def test_a_local_filesystem_is_not_polled(bench: Bench) -> None:
    bench.site("alpha")
    bench.start()
    (site,) = bench.sites_of_watcher
    assert bench.on_loop(lambda: set(site._watching._timers)) <= {"check", "scan"}  # type: ignore[union-attr]
    assert remarks(bench) == []
    assert status(bench).startswith("1 site watching;")


# Files that rest and then do not


def test_a_file_that_rested_and_changes_before_its_turn_comes_is_not_read_half_written(bench: Bench) -> None:
    """There may be no room for it for hours, and its writer may be slow."""
    rundir = bench.site("alpha")
    bench.max_queued = 1
    bench.helper.on_dispatch = bench.helper.hold
    half = rundir / "half.run"
    rest = ["Base.py\n"]
    real = Inbox.take
    with half.open("w") as file:

        def take(box: Inbox, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
            outcomes = real(box, *args, **kwargs)
            if rest and any(outcome.name == "half.run" for outcome in outcomes):  # it was read while half written
                file.write(rest.pop())
                file.flush()
            return outcomes

        bench.patch.setattr(Inbox, "take", take)
        file.write("/home/sg123 /home/sg123/m /home")
        file.flush()
        os.utime(half, (half.stat().st_mtime + 5, half.stat().st_mtime + 5))  # the others are older
        for number in range(2):
            bench.drop(rundir, f"{number}.run")
        bench.start()
        bench.until(lambda: len(bench.events("request accepted")) == 2)
        file.write("/sg123/m/log ")
        file.flush()
        bench.helper.on_dispatch = bench.helper.run
        bench.helper.finish(bench.helper.dispatched[0]["job_id"])
        bench.until(lambda: len(bench.events("job ended")) == 3)
    assert bench.states() == {"0.run": "succeeded", "1.run": "succeeded", "half.run": "succeeded"}
    assert not bench.events("request rejected")
