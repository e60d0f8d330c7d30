"""The pid lock that the legacy daemon shares."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from basestation_runner import processes
from basestation_runner.watch import lockfile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GID = os.getegid()


@pytest.fixture
def rundir(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / lockfile.NAME


def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_a_free_lock_is_written_as_the_legacy_daemon_reads_it(rundir: int, lock: Path) -> None:
    assert lockfile.take(rundir, GID) is None
    assert lock.read_bytes() == str(os.getpid()).encode()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o664


def test_the_lock_of_a_live_process_is_left_alone(rundir: int, lock: Path) -> None:
    lock.write_text("1")  # lives, and belongs to another account unless this is root
    holder = lockfile.take(rundir, GID)
    assert holder is not None
    os.close(holder.descriptor)
    assert holder.pid == 1
    assert lock.read_text() == "1"


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"x", b"-1", b"0", b"+1", b"1_0", b"1.0", b"0x1", b"99999999999999999999", b"1 2", b"\xff", b"1\0"),
        *(b"1" * 40, b"9" * 5000, b" " * 4096 + b"1", b"1" + b"\n" * (1 << 20)),
    ],
)
def test_what_names_no_process_is_replaced(rundir: int, lock: Path, content: bytes) -> None:
    lock.write_bytes(content)
    assert lockfile.take(rundir, GID) is None
    assert lock.read_text() == str(os.getpid())


@pytest.mark.parametrize("content", [b"1\n", b" 1", b"\t1 \r\n", b"0001", b"1" + b" " * 4000])
def test_a_pid_is_read_as_the_legacy_daemon_reads_it(rundir: int, lock: Path, content: bytes) -> None:
    lock.write_bytes(content)
    holder = lockfile.take(rundir, GID)
    assert holder is not None
    os.close(holder.descriptor)
    assert holder.pid == 1


LONG_AGO = (1e9, 1e9)


@contextmanager
def alive(*command: str) -> Iterator[int]:
    """Have a process that is called like this, which ends with its stdin."""
    with subprocess.Popen(["sh", "-c", "read -r _", *command], stdin=subprocess.PIPE) as process:
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


def test_a_pid_that_another_process_was_given_since_is_no_holder(rundir: int, lock: Path) -> None:
    with alive("sleep") as pid:
        lock.write_text(str(pid))
        os.utime(lock, LONG_AGO)
        assert lockfile.take(rundir, GID) is None
        assert lock.read_text() == str(os.getpid())


@pytest.mark.parametrize(
    "name", ["/usr/local/basestation3/BaseRunner.py", "BaseRunnerMulti.py", "runner-watch", "/usr/bin/runner watch"]
)
def test_a_runner_is_the_holder_although_the_clock_was_set_since_it_wrote_its_lock(
    rundir: int, lock: Path, name: str
) -> None:
    with alive(*name.split()) as pid:
        lock.write_text(str(pid))
        os.utime(lock, LONG_AGO)
        holder = lockfile.take(rundir, GID)
        assert holder is not None
        os.close(holder.descriptor)
        assert holder.pid == pid


@pytest.mark.parametrize("step", [-50, 0, 3600])
def test_a_process_that_is_older_than_the_lock_is_the_holder_whatever_it_is_called(
    rundir: int, lock: Path, step: int
) -> None:
    """Also when the clock was set back since, or forward by less than a minute."""
    with alive("sleep") as pid:
        lock.write_text(str(pid))
        now = time.time() + step
        os.utime(lock, (now, now))
        holder = lockfile.take(rundir, GID)
        assert holder is not None
        os.close(holder.descriptor)


def test_a_process_that_proc_does_not_show_is_the_holder(
    rundir: int, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc may be mounted so that an account sees only its own processes."""

    def hidden(_: int) -> tuple[bytes, int]:
        raise FileNotFoundError

    monkeypatch.setattr(processes, "look", hidden)
    with alive("sleep") as pid:
        lock.write_text(str(pid))
        os.utime(lock, LONG_AGO)
        holder = lockfile.take(rundir, GID)
        assert holder is not None
        os.close(holder.descriptor)


def test_a_zombie_holds_nothing(rundir: int, lock: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        lock.write_text(str(process.pid))
        assert lockfile.take(rundir, GID) is None


def test_our_own_pid_from_an_earlier_life_is_ours_and_removed_at_the_end(rundir: int, lock: Path) -> None:
    lock.write_text(f"{os.getpid()}\n")
    os.utime(lock, LONG_AGO)
    assert lockfile.take(rundir, GID) is None
    lockfile.release(rundir)
    assert not lock.exists()


def test_a_stale_lock_is_replaced(rundir: int, lock: Path) -> None:
    lock.write_text(str(dead_pid()))
    assert lockfile.take(rundir, GID) is None
    assert lock.read_text() == str(os.getpid())


def test_our_own_lock_is_not_written_again(rundir: int, lock: Path) -> None:
    lockfile.take(rundir, GID)
    before = lock.stat()
    assert lockfile.take(rundir, GID) is None
    assert lock.stat() == before


def test_a_link_is_replaced_and_what_it_leads_to_is_not_touched(rundir: int, lock: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    lock.symlink_to(other)
    assert lockfile.take(rundir, GID) is None
    assert not lock.is_symlink()
    assert other.read_text() == "precious"


def test_a_fifo_is_replaced_and_nobody_waits_for_it(rundir: int, lock: Path) -> None:
    os.mkfifo(lock)
    assert lockfile.take(rundir, GID) is None
    assert lock.read_text() == str(os.getpid())


def test_a_directory_cannot_be_replaced_and_that_is_an_error(rundir: int, lock: Path) -> None:
    lock.mkdir()
    with pytest.raises(OSError, match="directory"):
        lockfile.take(rundir, GID)
    lockfile.release(rundir)
    assert lock.is_dir()


def test_only_our_own_lock_is_removed(rundir: int, lock: Path) -> None:
    lockfile.release(rundir)
    lock.write_text("1")
    lockfile.release(rundir)
    assert lock.read_text() == "1"
    lock.unlink()
    lockfile.take(rundir, GID)
    lockfile.release(rundir)
    assert not lock.exists()


def test_who_has_the_lock_can_be_asked_and_nothing_is_changed(rundir: int) -> None:
    assert lockfile.holder(rundir) is None
    assert lockfile.take(rundir, os.getgid()) is None
    assert lockfile.holder(rundir) == os.getpid()
    lockfile.release(rundir)
    for content in ("", "nonsense", "4194304"):
        descriptor = os.open(lockfile.NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o664, dir_fd=rundir)
        os.write(descriptor, content.encode())
        os.close(descriptor)
        assert lockfile.holder(rundir) is None
        assert os.listdir(rundir) == [lockfile.NAME]
