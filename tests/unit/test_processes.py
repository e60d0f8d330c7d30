"""That one process is never taken for another with the same pid, nor an ended one for one that lives."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from basestation_runner import processes
from basestation_runner.processes import boot_id, identify, open_if_alive

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME_LIKE_STATUS = "x) R 1 2 3 (y"


@contextmanager
def child() -> Iterator[int]:
    """A process that lives until the end of the block, or until it is killed."""
    with subprocess.Popen(["sleep", "infinity"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def test_a_living_process_is_found_and_its_end_can_be_waited_for() -> None:
    with child() as pid:
        pidfd = open_if_alive(identify(pid))
        assert pidfd is not None
        assert not has_ended(pidfd)
        assert not os.get_inheritable(pidfd)
    select.select([pidfd], [], [])
    os.close(pidfd)


def test_a_process_is_identified_by_its_pid_and_start_time() -> None:
    status = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    assert identify(os.getpid()) == {"pid": os.getpid(), "start": int(status[22 - 3])}


def test_a_processs_name_cannot_forge_its_start_time() -> None:
    code = f"import ctypes; ctypes.CDLL(None).prctl(15, {NAME_LIKE_STATUS.encode()!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-ISc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        before = identify(process.pid)
        process.stdout.readline()
        assert Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8").strip() == NAME_LIKE_STATUS
        assert identify(process.pid) == before
        process.kill()


def test_a_process_that_is_gone_is_not_found() -> None:
    with child() as pid:
        mark = identify(pid)
    assert open_if_alive(mark) is None
    assert identify(pid)["start"] is None


def test_a_later_process_with_the_same_pid_is_not_the_one_that_was_meant() -> None:
    with child() as pid:
        mark = identify(pid)
        descriptors = set(Path("/proc/self/fd").iterdir())
        for start in (mark["start"] - 1, mark["start"] + 1, 0):
            assert open_if_alive({"pid": pid, "start": start}) is None
        assert set(Path("/proc/self/fd").iterdir()) == descriptors


def test_a_thread_with_the_same_number_is_not_the_process_that_was_meant() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert thread.native_id not in {None, os.getpid()}
        assert open_if_alive({"pid": thread.native_id, "start": 1}) is None
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("number", [errno.ESRCH, errno.EINVAL, errno.ENOENT])
def test_every_kernels_way_to_say_that_there_is_no_process_is_understood(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(_: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", no_process)
    assert open_if_alive(identify(os.getpid())) is None


def test_a_process_that_hides_its_start_time_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = identify(os.getpid())
    monkeypatch.setattr(processes, "_start", lambda _: None)
    pidfd = open_if_alive(mark)
    assert pidfd is not None
    os.close(pidfd)


def test_a_process_that_has_ended_but_was_not_waited_for_reads_as_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        pidfd = open_if_alive(identify(process.pid))
        assert pidfd is not None
        assert has_ended(pidfd)
        os.close(pidfd)


def test_a_process_whose_start_time_is_not_known_counts_as_alive_while_its_pid_is_in_use() -> None:
    with child() as pid:
        pidfd = open_if_alive({"pid": pid, "start": None})
        assert pidfd is not None
        os.close(pidfd)
    assert open_if_alive({"pid": pid, "start": None}) is None


def test_running_out_of_descriptors_is_no_sign_that_a_process_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(_: int) -> int:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(os, "pidfd_open", no_more)
    with pytest.raises(OSError, match="Too many open files"):
        open_if_alive(identify(os.getpid()))


def test_the_boot_has_an_id_that_stays() -> None:
    assert boot_id() == boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    assert len(boot_id()) == 36
