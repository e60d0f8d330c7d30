"""One running daemon of a sandbox: start it as its account, follow what it says, wait for it, stop it by its pid.

What it writes to stderr and to its notify socket is read as it comes, by one thread, so that nothing here ever waits
by sleeping and a daemon never waits for its reader.
"""

import contextlib
import fcntl
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from attrs import frozen

from basestation_runner.errors import RunnerError, printable
from basestation_runner.nss import Account

_TAIL_LINES: Final = 15
_LOOK: Final = 0.002
_LOG_BYTES: Final = 1 << 20  # that may wait for the reader: a daemon waits a moment for room, then counts lines as lost
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}

Event = Mapping[str, Any]
_Item = TypeVar("_Item")


@frozen
class Identity:
    """Whom a process runs as. Without an account: as the caller, with whatever the caller has."""

    account: Account | None = None
    capabilities: tuple[str, ...] = ()  # names as setpriv(1) takes them: "setuid"

    def prefix(self) -> list[str]:
        """Return the command that becomes this identity and then executes the words that follow it."""
        # If this process is killed, the daemon is told to stop.
        command = ["setpriv", "--pdeathsig=TERM"]
        if self.account is not None:
            kept = "".join(f",+{name}" for name in self.capabilities)
            command += [f"--reuid={self.account.uid}", f"--regid={self.account.gid}", "--init-groups"]
            command += [f"--{kind}=-all{kept}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
        return [*command, "--"]


class Daemon:
    """A daemon from its start on. Its events are its JSON log lines; any other line is an event with nothing else."""

    def __init__(
        self, name: str, command: Sequence[str], identity: Identity, directory: Path, environment: Mapping[str, str]
    ) -> None:
        """Start `command`; its log and its notify socket are made in `directory`."""
        self.name: Final = name
        self.log: Final = directory / f"{name}.log"  # all that it writes to stdout and stderr
        self._news: Final = threading.Condition()
        self._events: Final[list[Event]] = []
        self._notifications: Final[list[str]] = []
        self._ended = False
        self._notify: Final = _notify_socket(directory / f"{name}.notify")
        self._process: Final = subprocess.Popen(
            [*identity.prefix(), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**_ENVIRONMENT, "NOTIFY_SOCKET": self._notify.getsockname(), **environment},
            start_new_session=True,  # the terminal's Ctrl-C is for whoever started us
        )
        self.pid: Final = self._process.pid
        self._pidfd: Final = os.pidfd_open(self.pid)
        self._closing: Final = os.eventfd(0)
        output = self._process.stdout
        assert output is not None  # noqa: S101 - what stdout=PIPE means
        self._output: Final = output
        os.set_blocking(output.fileno(), False)
        with contextlib.suppress(OSError):  # not everybody may have so much
            fcntl.fcntl(output.fileno(), fcntl.F_SETPIPE_SZ, _LOG_BYTES)
        arguments = (output.fileno(),)
        self._reader: Final = threading.Thread(target=self._read, args=arguments, name=f"reader of {name}", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def returncode(self) -> int | None:
        """The exit status, or the negative number of the signal that ended it; None while it runs."""
        return self._process.poll()

    @property
    def events(self) -> list[Event]:
        with self._news:
            return list(self._events)

    @property
    def notifications(self) -> list[str]:
        """What it sent to its notify socket, one entry a line: `READY=1`, `STATUS=…`."""
        with self._news:
            return list(self._notifications)

    def wait_ready(self, timeout: float = 30) -> None:
        """Wait for READY=1. Raises RunnerError when it ends instead or takes too long."""
        self.wait_notification(lambda line: line == "READY=1", timeout)

    def wait_notification(self, wanted: Callable[[str], bool], timeout: float = 10) -> str:
        """Return the first notification, past or to come, that is `wanted`. Raises RunnerError as wait_ready does."""
        return next(filter(wanted, self._follow(self._notifications, timeout)))

    def wait_until(self, condition: Callable[[], object], timeout: float = 10) -> None:
        """Look again and again until something holds that it says nothing of. Raises RunnerError as wait_ready does."""
        deadline = time.monotonic() + timeout
        while not condition():
            with self._news:
                ended = self._news.wait_for(lambda: self._ended, _LOOK)
            if ended:
                raise self._failure(f"ended with status {self.returncode}")
            if time.monotonic() > deadline:
                raise self._failure(f"did not do what was waited for within {timeout:g} s")

    def wait_event(self, wanted: Callable[[Event], bool], timeout: float = 10) -> Event:
        """Return the first event, past or to come, that is `wanted`. Raises RunnerError as wait_ready does."""
        return next(filter(wanted, self.follow(timeout)))

    def follow(self, timeout: float) -> Iterator[Event]:
        """Yield all events, past and to come. Raises RunnerError as wait_ready does: whoever has enough just stops."""
        return self._follow(self._events, timeout)

    def send_signal(self, number: signal.Signals) -> None:
        signal.pidfd_send_signal(self._pidfd, number)

    def stop(self, timeout: float = 15) -> int:
        """Ask it to end as systemd does and return its exit status. Raises RunnerError if it has to be killed."""
        if self.returncode is None:
            self.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> int:
        """End it with SIGKILL and return its exit status."""
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
        return self.wait(timeout=15)

    def wait(self, timeout: float) -> int:
        """Wait until it has ended and return its exit status. Raises RunnerError, after a SIGKILL, if it does not."""
        in_time, _, _ = select.select([self._pidfd], [], [], timeout)
        if not in_time:
            self._process.kill()
        status = self._process.wait()
        if not in_time:
            raise self._failure(f"did not end within {timeout:g} s and was killed")
        return status

    def close(self) -> None:
        """End it if it still runs, and free what is held for it; its log stays."""
        self.kill()
        os.eventfd_write(self._closing, 1)
        self._reader.join()
        for descriptor in (self._pidfd, self._closing):
            os.close(descriptor)
        self._output.close()
        self._notify.close()

    def tail(self) -> str:
        """Return the end of its log, for the reader of a failure: one string with as many lines as there are."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join([f"{self.name}'s last lines:", *(f"  {printable(line)}" for line in lines)])

    def _failure(self, what: str) -> RunnerError:
        error = RunnerError(f"{self.name} {what}", where=str(self.log))
        error.add_note(self.tail())
        return error

    def _follow(self, items: list[_Item], timeout: float) -> Iterator[_Item]:
        deadline = time.monotonic() + timeout
        seen: list[_Item] = []
        while True:
            with self._news:
                more = self._news.wait_for(lambda: len(items) > len(seen) or self._ended, deadline - time.monotonic())
                fresh = items[len(seen) :]
            if not more:
                raise self._failure(f"did not do what was waited for within {timeout:g} s")
            if not fresh:
                raise self._failure(f"ended with status {self.returncode}")
            seen.extend(fresh)
            yield from fresh

    def _read(self, output: int) -> None:
        """Take in whatever comes, also from those who inherited its output and outlive it, until we are closed."""
        rest, at_end = b"", False
        with self.log.open("ab", buffering=0) as log, selectors.DefaultSelector() as selector:
            for source in (output, self._notify, self._pidfd, self._closing):
                selector.register(source, selectors.EVENT_READ)
            while self._closing not in (ready := {key.fileobj for key, _ in selector.select()}):
                ended = self._pidfd in ready  # asked before reading: what it wrote last is there to be read
                text = b""
                if not at_end:
                    text, at_end = _read_available(output)
                    if at_end:
                        selector.unregister(output)
                log.write(text)
                *lines, rest = (rest + text).split(b"\n")
                if ended and rest:
                    lines.append(rest)
                    rest = b""
                with self._news:
                    self._notifications.extend(_receive_available(self._notify))
                    self._events.extend(map(_event, lines))
                    self._ended |= ended
                    self._news.notify_all()
                if ended:
                    selector.unregister(self._pidfd)


def _notify_socket(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.setblocking(False)
    return listener


def _read_available(descriptor: int) -> tuple[bytes, bool]:
    """Return what can be read now, and whether nothing more will ever come."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return b"".join(parts), False
        if not part:
            return b"".join(parts), True
        parts.append(part)


def _receive_available(listener: socket.socket) -> list[str]:
    lines: list[str] = []
    while True:
        try:
            lines += listener.recv(1 << 16).decode(errors="replace").splitlines()
        except BlockingIOError:
            return lines


def _event(line: bytes) -> Event:
    text = line.decode(errors="replace")
    try:
        event = json.loads(text)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"event": text}
