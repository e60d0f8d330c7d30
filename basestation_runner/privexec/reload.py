"""The helper's configuration, read anew while it serves: nothing of a file that is not right as a whole is used.

Files are read here, with the checks of the start. Parsing, and looking the accounts up, is done by a process of its own
without capabilities, so that neither a slow name service nor a strange file can hold the helper up.
"""

import os
import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from basestation_runner import program, protocol
from basestation_runner.config import apart
from basestation_runner.config.faults import sentences
from basestation_runner.config.model import Config
from basestation_runner.errors import RunnerError
from basestation_runner.privexec import accounts
from basestation_runner.privexec.accounts import Caller
from basestation_runner.privexec.loop import Loop
from basestation_runner.privexec.order import NotNowError, RefusedError

PATIENCE: Final = 60.0
"""Seconds in which the files must be parsed and the accounts found."""
MOST_FAULTS: Final = 100
_READ_BYTES: Final = 1 << 16

log = structlog.get_logger()

Answer = Callable[[protocol.Message], None]


class Reload:
    """Reads the configuration anew, once at a time; who asks while that goes on has it read once more."""

    def __init__(
        self, events: Loop, read: Callable[[], apart.Texts], caller: Caller, apply: Callable[[Config], dict[str, Any]]
    ) -> None:
        """`read` returns the files' content, or raises RunnerError; `apply` goes by a Config and says what changed."""
        self._loop = events
        self._read = read
        self._caller = caller
        self._apply = apply
        self._waiting: list[Answer] = []
        self._asking: list[Answer] = []
        self._must_repeat = False
        self._pid: int | None = None

    def ask(self, answer: Answer | None = None) -> None:
        """Read the configuration anew, and tell whoever asks how that went."""
        if answer is not None and answer not in self._waiting:
            self._waiting.append(answer)
        if self._pid is None:
            self._begin()
        else:
            self._must_repeat = True

    def _begin(self) -> None:
        self._must_repeat = False
        self._asking, self._waiting = self._waiting, []
        try:
            task = (*self._read(), self._caller)
            made = apart.fork(_work, task) if self._caller.changes else apart.start(program.CHECK_CONFIG, task)
            self._pid, reader = made
        except (RunnerError, OSError) as error:
            self._end([str(error)])
            return
        os.set_blocking(reader, False)
        received = bytearray()
        pid = self._pid

        def arrived(_: int) -> None:
            with suppress(BlockingIOError):
                data = os.read(reader, _READ_BYTES)
                received.extend(data)
                if not data:
                    self._loop.forget(reader)
                    os.close(reader)
                    self._checked(bytes(received))

        def late() -> None:
            if self._pid == pid:
                os.kill(pid, signal.SIGKILL)

        self._loop.watch(reader, arrived)
        self._loop.call_later(PATIENCE, late)

    def _checked(self, data: bytes) -> None:
        """The process has answered, or was killed."""
        assert self._pid is not None  # noqa: S101 - it is known until this has returned
        try:
            found = apart.result(self._pid, data)
        except (RunnerError, pickle.UnpicklingError, EOFError) as error:
            found = [f"the configuration could not be checked in {PATIENCE:g} s: {error}"]
        self._pid = None
        if not isinstance(found, Config):
            self._end(found)
            return
        changes = self._apply(found)
        self._end([], **changes)

    def _end(self, faults: list[str], **changes: object) -> None:
        if faults:
            log.error("configuration not reloaded: what was read before stays in force", faults=faults[:MOST_FAULTS])
        else:
            log.info("configuration reloaded", **changes)
        for answer in self._asking:
            answer({"event": "reloaded", "faults": faults[:MOST_FAULTS]})
        self._asking = []
        if self._must_repeat:
            self._begin()


def main(_: list[str]) -> int:
    """Be the process that parses and looks the accounts up; return the exit status."""
    return apart.answer(_work)


def _work(task: tuple[apart.Text, apart.Text | None, Caller]) -> object:
    return _check(*task)


def _check(sites: apart.Text, applications: apart.Text | None, caller: Caller) -> Config | list[str]:
    """Return the Config, or everything that is wrong with it. An account that is not found is a fault here."""
    config = apart.parse(sites, applications)
    if not isinstance(config, Config):
        return sentences(config)
    faults = []
    for site in config.sites.values():
        try:
            accounts.resolve(site, caller)
        except NotNowError as error:
            faults.append(f"site {site.name}: {error}")
        except RefusedError as error:
            if caller.changes:
                faults.append(f"site {site.name}: {error}")
    return faults or config
