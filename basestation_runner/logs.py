"""The daemons' log: each event is one line in a file, on stderr or both.
Must never stop its daemon: a line that cannot be written is counted, and the count is logged once writing works again.
Holds no lock and starts no thread, so that a process that forks may use it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

from basestation_runner.errors import RunnerError
from basestation_runner.loglines import LEVELS, Format, Line, Renderer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from structlog.typing import EventDict, WrappedLogger

STDERR: Final = 2
PATIENCE: Final = 0.1  # seconds that a full pipe may keep the daemon, once
MODE: Final = 0o640


def configure(*, name: str, path: Path | None, fmt: Format, debug: bool) -> LogFile:
    """Given the program's name and where and how it logs, make `structlog.get_logger()` do so, and return the log.
    With a path everything goes to that file, and warnings to stderr besides; without one everything goes to stderr.
    Raise RunnerError if the file cannot be opened.
    """
    renderer = Renderer(program=name, form=fmt, debug=debug)
    log = LogFile(path, renderer)

    def render(_logger: WrappedLogger, method: str, event: EventDict) -> tuple[tuple[Line], dict[str, Any]]:
        level = LEVELS.get(method, LEVELS["info"])
        try:
            line = renderer.line(datetime.now(UTC), level, event)
        except Exception as error:  # noqa: BLE001 - a faulty log call must not stop the daemon
            line = renderer.line(datetime.now(UTC), level, {"event": "a log line cannot be made", "exc_info": error})
        return (line,), {}

    structlog.configure(
        processors=[render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug" if debug else "info"].number),
        logger_factory=lambda *_: log,
        cache_logger_on_first_use=False,
    )
    return log


class LogFile:
    """Where lines go. A daemon calls `reopen_if_rotated` on SIGHUP, and each minute or so besides: logrotate renames
    the file, it neither copies nor truncates it.
    """

    def __init__(self, path: Path | None, renderer: Renderer) -> None:
        self._path = path
        self._renderer = renderer
        self._file = None if path is None else _Output(_open(path))
        self._stderr = _Output(STDERR)
        self._prefixed = _is_the_journal(STDERR)

    def write(self, line: Line) -> None:
        """Given a line, write it to the file, if there is one, and to stderr, if there is none or it warns."""
        if self._file is None:
            self._to_stderr(line)
            return
        whole = self._file.lost == 0
        self._file.write(line.data, self._lost_lines)
        if whole and self._file.lost:
            self._tell("the log cannot be written", reason=self._file.reason)
        if line.level.number >= LEVELS["warning"].number:
            self._to_stderr(line)

    # structlog calls its output by the level's name.
    debug = info = warning = error = critical = write

    def reopen_if_rotated(self) -> bool:
        """Open the path anew if it does not name the open file any more, and return whether that was done.
        While the path cannot be opened, lines go to the old file and each call warns.
        """
        if self._path is None or self._file is None or self._file.is_at(self._path):
            return False
        try:
            fresh = _open(self._path)
        except RunnerError as fault:
            self._tell("the rotated log cannot be opened", path=self._path, reason=fault.what)
            return False
        self._file.replace(fresh)
        return True

    def close(self) -> None:
        """Close the file; lines that come later go to stderr."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _to_stderr(self, line: Line) -> None:
        prefix = f"<{line.level.priority}>".encode() if self._prefixed else b""
        self._stderr.write(prefix + line.data, self._lost_lines)

    def _tell(self, event: str, **fields: object) -> None:
        """Given a fault of the log itself, warn of it on stderr."""
        self._to_stderr(self._renderer.line(datetime.now(UTC), LEVELS["warning"], {"event": event, **fields}))

    def _lost_lines(self, count: int, reason: str) -> bytes:
        fields = {"event": "log lines were lost", "lines": count, "reason": reason}
        return self._renderer.line(datetime.now(UTC), LEVELS["warning"], fields).data


class _Output:
    """A descriptor that lines are written to, and how many lines did not get there since the last that did."""

    def __init__(self, descriptor: int) -> None:
        self.lost = 0
        self.reason = ""
        self._torn = False  # the last write ended within a line
        self._stuck = False  # nobody read it last time
        self._descriptor = descriptor
        self._identity = _identity(descriptor)

    def write(self, data: bytes, lost_lines: Callable[[int, str], bytes]) -> None:
        """Given a line, write it, after a line about the lost ones if there are any; or count it as lost."""
        if self.lost and self._put(lost_lines(self.lost, self.reason)):
            self.lost = 0
        if self.lost or not self._put(data):
            self.lost += 1

    def is_at(self, path: Path) -> bool:
        """Given a path, return whether it names what is written to."""
        try:
            return _Identity.of(path.stat()) == self._identity
        except OSError:
            return False

    def replace(self, descriptor: int) -> None:
        """Given another descriptor, write to that one from now on."""
        self.close()
        self._descriptor, self._identity, self._torn = descriptor, _identity(descriptor), False

    def close(self) -> None:
        if self._is_ours():
            os.close(self._descriptor)

    def _put(self, data: bytes) -> bool:
        """Given a line, write it at once and return whether all of it was written."""
        if self._torn:
            data = b"\n" + data
        # poll calls a pipe writable when PIPE_BUF bytes fit; a longer write could then block.
        step = len(data) if self._identity is None or self._identity.regular else select.PIPE_BUF
        try:
            written = sum(self._write(data[start : start + step]) for start in range(0, len(data), step))
        except OSError as error:
            self.reason = error.strerror or ""
            self._torn = self._torn or step < len(data)
            return False
        self._torn = written < len(data)
        if self._torn:
            self.reason = "only a part of a line could be written"
        return not self._torn

    def _write(self, data: bytes) -> int:
        if not self._is_ours():
            raise OSError(errno.EBADF, "the log has been closed")
        if self._identity is None or not self._identity.regular:
            self._stuck = not _is_writable(self._descriptor, 0 if self._stuck else PATIENCE)
        if self._stuck:
            raise OSError(errno.EAGAIN, "nobody reads the log")
        return os.write(self._descriptor, data)

    def _is_ours(self) -> bool:
        """Return whether the number is still the log's: in a child that closed all it may be a job's file."""
        return self._identity is not None and _identity(self._descriptor) == self._identity


@dataclass(frozen=True, slots=True)
class _Identity:
    """What tells one open file from another."""

    device: int
    inode: int
    regular: bool

    @classmethod
    def of(cls, status: os.stat_result) -> _Identity:
        return cls(status.st_dev, status.st_ino, stat.S_ISREG(status.st_mode))


def _identity(descriptor: int) -> _Identity | None:
    try:
        return _Identity.of(os.fstat(descriptor))
    except OSError:
        return None


def _is_writable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(seconds * 1000))


def _is_the_journal(descriptor: int) -> bool:
    """Given a descriptor, return whether systemd says that it leads to the journal, which reads <priority> prefixes."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    found = _identity(descriptor)
    return found is not None and (str(found.device), str(found.inode)) == (device, inode)


def _open(path: Path) -> int:
    """Given a path, return a descriptor that appends to it and is none of the standard ones. Raise RunnerError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, MODE)
        if descriptor <= STDERR:
            low, descriptor = descriptor, fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, STDERR + 1)
            os.close(low)
    except OSError as error:
        what = f"the log cannot be opened: {error.strerror}"
        raise RunnerError(what, where=str(path), hint=f"uid {os.geteuid()} must be able to write there") from error
    return descriptor
