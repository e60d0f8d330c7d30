"""Where log lines go, and what happens when they cannot."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import structlog

from basestation_runner import logs
from basestation_runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from basestation_runner.loglines import Format


@pytest.fixture(autouse=True)
def structlog_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def configure(path: Path | None, *, fmt: Format = "text", debug: bool = False) -> logs.LogFile:
    return logs.configure(name="watch", path=path, fmt=fmt, debug=debug)


def events(path: Path) -> list[str]:
    """Given a log of text lines, return what follows time and level."""
    return [line.split(maxsplit=2)[2] for line in path.read_text().splitlines()]


def test_everything_goes_to_the_file_and_warnings_to_stderr_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path / "log")
    structlog.get_logger().info("started", sites=2)
    structlog.get_logger().warning("site is pending", site="seaglider")
    assert events(tmp_path / "log") == ["started sites=2", "[seaglider] site is pending"]
    assert capfd.readouterr().err.endswith("Z warning [seaglider] site is pending\n")


def test_without_a_path_everything_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    configure(None)
    structlog.get_logger().info("started")
    assert capfd.readouterr().err.endswith("Z info  started\n")


def test_debug_lines_are_written_with_debug_only(tmp_path: Path) -> None:
    for debug in (False, True):
        configure(tmp_path / "log", debug=debug)
        structlog.get_logger().debug("looking", debug=debug)
    assert events(tmp_path / "log") == ["looking debug=true"]


def test_json_lines_name_their_program(tmp_path: Path) -> None:
    configure(tmp_path / "log", fmt="json")
    structlog.get_logger().info("started")
    assert json.loads((tmp_path / "log").read_text())["program"] == "watch"


def test_the_log_is_appended_to_and_not_for_everybody(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        configure(tmp_path / "log")
        structlog.get_logger().info("one")
        configure(tmp_path / "log")
        structlog.get_logger().info("two")
    finally:
        os.umask(old)
    assert events(tmp_path / "log") == ["one", "two"]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o640


def test_a_log_that_cannot_be_opened_is_a_fault_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=r"/missing/log: the log cannot be opened: No such file"):
        configure(tmp_path / "missing" / "log")


def test_the_log_does_not_reach_started_programs(tmp_path: Path) -> None:
    configure(tmp_path / "log")
    listing = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in listing


def test_after_a_rotation_lines_go_to_the_new_file(tmp_path: Path) -> None:
    log = configure(tmp_path / "log")
    structlog.get_logger().info("before")
    assert not log.reopen_if_rotated()
    (tmp_path / "log").rename(tmp_path / "log.1")
    structlog.get_logger().info("between")
    assert log.reopen_if_rotated()
    structlog.get_logger().info("after")
    assert events(tmp_path / "log.1") == ["before", "between"]
    assert events(tmp_path / "log") == ["after"]


def test_a_rotated_log_that_cannot_be_opened_keeps_the_old_one_and_warns(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = configure(tmp_path / "log")
    (tmp_path / "log").rename(tmp_path / "log.1")
    (tmp_path / "log").mkdir()
    assert not log.reopen_if_rotated()
    structlog.get_logger().info("still here")
    assert events(tmp_path / "log.1") == ["still here"]
    assert "the rotated log cannot be opened" in capfd.readouterr().err


def test_a_full_disk_costs_lines_which_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    log = configure(tmp_path / "log")
    for number in range(3):
        structlog.get_logger().info("one of many", number=number)
    assert capfd.readouterr().err.count('the log cannot be written reason="No space left on device"') == 1
    (tmp_path / "log").unlink()
    assert log.reopen_if_rotated()
    structlog.get_logger().info("there is room")
    assert events(tmp_path / "log") == [
        'log lines were lost lines=3 reason="No space left on device"',
        "there is room",
    ]


def test_a_line_that_was_written_in_part_does_not_merge_with_the_next(tmp_path: Path) -> None:
    configure(tmp_path / "log")
    structlog.get_logger().info("first")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "log").stat().st_size + 40, hard))
    try:
        structlog.get_logger().info("a line that the disk has only half the room for")
        structlog.get_logger().info("a line that it has no room for")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    structlog.get_logger().info("there is room")
    found = events(tmp_path / "log")
    assert found[0] == "first"
    assert "a line that the disk".startswith(found[1])
    assert found[2].startswith("log lines were lost lines=2 ")
    assert found[3:] == ["there is room"]


def test_a_stderr_that_nobody_reads_does_not_stop_the_daemon() -> None:
    program = """
import structlog, sys
from basestation_runner import logs
logs.configure(name="watch", path=None, fmt="text", debug=False)
for number in range(2000):
    structlog.get_logger().info("a line", number=number, filling="x" * 100)
print("done", flush=True)
sys.stdin.readline()
structlog.get_logger().info("the last")
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        assert daemon.stdout.readline() == b"done\n"
        read = os.read(daemon.stderr.fileno(), 1 << 20)  # all that the pipe holds
        read += daemon.communicate(b"\n")[1]
    lines = read.decode().splitlines()
    kept = sum(" a line " in line for line in lines)
    assert 0 < kept < 2000
    assert lines[-2].endswith(f'log lines were lost lines={2000 - kept} reason="nobody reads the log"')
    assert lines[-1].endswith(" the last")


def test_lines_longer_than_a_pipe_takes_at_once_arrive_whole() -> None:
    program = """
import structlog
from basestation_runner import logs
logs.configure(name="watch", path=None, fmt="json", debug=False)
structlog.get_logger().info("long", **{f"value{number}": "x" * 500 for number in range(100)})
"""
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=True)
    assert len(json.loads(done.stderr)) == 104


def test_a_forked_child_may_log(tmp_path: Path) -> None:
    configure(tmp_path / "log")
    child = os.fork()
    if child == 0:
        structlog.get_logger().info("child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    structlog.get_logger().info("parent")
    assert events(tmp_path / "log") == ["child", "parent"]


def test_a_child_that_closed_everything_does_not_log_into_another_file(tmp_path: Path) -> None:
    log = configure(tmp_path / "log")
    child = os.fork()
    if child == 0:
        os.closerange(3, 1024)
        for _ in range(20):
            os.open(tmp_path / "of the job", os.O_WRONLY | os.O_CREAT)
        structlog.get_logger().warning("child")
        log.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "of the job").read_text() == ""


def test_lines_after_close_go_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    configure(tmp_path / "log").close()
    structlog.get_logger().info("late")
    assert capfd.readouterr().err.endswith(" late\n")


def test_a_log_call_that_cannot_be_shown_is_shown_as_that(tmp_path: Path) -> None:
    class Broken(dict[str, str]):
        def __len__(self) -> int:
            raise RuntimeError("no length")

    configure(tmp_path / "log")
    structlog.get_logger().info("x", value=Broken())
    assert events(tmp_path / "log")[0].startswith('a log line cannot be made error="RuntimeError: no length"')


def test_stderr_lines_carry_their_priority_if_the_journal_reads_them() -> None:
    program = """
import os, structlog
from basestation_runner import logs
status = os.fstat(2)
os.environ["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
logs.configure(name="watch", path=None, fmt="text", debug=False)
structlog.get_logger().warning("x")
"""
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=True)
    assert done.stderr.startswith(b"<4>20")
