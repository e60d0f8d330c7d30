"""Config files parsed in a process of its own: no daemon holds the parser, nor what parsing leaves behind in memory.

A thread may do this while a loop runs on.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from basestation_runner import errors, processes, program, trust
from basestation_runner.errors import RunnerError, TemporaryError

if TYPE_CHECKING:
    from basestation_runner.config.model import Config

Text = tuple[str, bytes]
"""The name that a file's faults carry, and its content."""
Texts = tuple[Text, Text | None]
"""Of the sites, and of the applications if they have a file."""

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2
_MOST_BYTES: Final = 2 << 20  # more than the parser takes: it says so


def read(path: Path) -> Text:
    """Return a file's content, but not much more than is accepted. Raises RunnerError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return str(path), file.read(_MOST_BYTES)
    except OSError as error:
        raise RunnerError(f"cannot be read: {error.strerror}", where=str(path)) from error


def load(sites: Text, applications: Text | None) -> "Config":
    """Return the files' Config. Raises ConfigErrors with every fault of both, or RunnerError."""
    with begin(sites, applications) as parsing:
        return parsing.config()


def begin(sites: Text, applications: Text | None, *, privileged: bool = False) -> "Parsing":
    """Have files parsed from now on. Raises RunnerError when there is no room for it now.

    The standard descriptors must be open. `privileged`: this process has capabilities.
    """
    task = (sites, applications)
    return Parsing(*(fork(_parse, task) if privileged else start(program.PARSE_CONFIG, task)))


class Parsing:
    """Files that are being parsed. As a context manager it leaves no process behind."""

    def __init__(self, pid: int, reader: int) -> None:
        """Take that process's pid and the descriptor of its answer."""
        self._pid: Final = pid
        self._answer: Final = os.fdopen(reader, "rb")
        self._has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()
        if not self._has_ended:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def config(self) -> "Config":
        """Wait for the files' Config and return it. Raises ConfigErrors with every fault of both, or RunnerError."""
        data = self._answer.read()
        self._has_ended = True
        found: Config | RunnerError = result(self._pid, data)
        if isinstance(found, RunnerError):
            raise found
        return found


def start(part: str, task: object) -> tuple[int, int]:
    """Start a part of this program and give it a task. Return its pid and the descriptor of its answer.

    Only for a process without capabilities: others of its account can look into that part, and answer in its place.
    Raises RunnerError when there is no room for it now.
    """
    file = os.memfd_create("config")
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        with os.fdopen(file, "wb", closefd=False) as content:
            pickle.dump(task, content)
        os.lseek(file, 0, os.SEEK_SET)
        command = program.command(part)
        actions = [(os.POSIX_SPAWN_DUP2, file, _STDIN), (os.POSIX_SPAWN_DUP2, writer, _STDOUT)]
        return os.posix_spawn(command[0], command, os.environ, file_actions=actions), reader
    except OSError as error:
        os.close(reader)
        raise _no_room(error) from error
    finally:
        os.close(file)
        os.close(writer)


def fork(work: Callable[[Any], object], task: object) -> tuple[int, int]:
    """Have a child of this process, which has capabilities, do some work and answer with what it has found.

    The child has none, and since it executes nothing it stays as closed as this process has made itself: nobody of its
    account can look into it or answer in its place. Returns its pid and the descriptor of its answer. Raises
    RunnerError when there is no room for it now.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
        if pid == 0:
            _be_forked(writer, work, task)
    except OSError as error:
        os.close(reader)
        raise _no_room(error) from error
    finally:
        os.close(writer)
    return pid, reader


def _no_room(error: OSError) -> RunnerError:
    return TemporaryError(f"no process can be made for the configuration: {error.strerror}", hint="try it again")


def _be_forked(writer: int, work: Callable[[Any], object], task: object) -> NoReturn:
    import prctl  # noqa: PLC0415 - only where there are capabilities

    status = errors.EXIT_INTERNAL
    try:
        signal.set_wakeup_fd(-1)
        processes.close_all_but({_STDIN, _STDOUT, _STDERR, writer})
        for kind in (prctl.cap_inheritable, prctl.cap_effective, prctl.cap_permitted):
            kind.limit()
        status = _work(work, task, writer, must_be_trusted=True)
    finally:
        os._exit(status)  # it must never return into the daemon's loop


def result(pid: int, data: bytes) -> Any:  # noqa: ANN401 - whatever that process answers with
    """Return what a process has answered, once that is complete. Raises RunnerError if it has failed."""
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise RunnerError("the configuration cannot be parsed", hint="what is on stderr above says why")
    return pickle.loads(data)  # noqa: S301 - from this program itself, see `start` and `fork`


def main(_: list[str]) -> int:
    """Be that process; return the exit status."""
    return answer(_parse)


def answer(work: Callable[[Any], object]) -> int:
    """Be a part that was started: answer with what `work` makes of the task, and return the exit status."""
    return _work(work, pickle.load(sys.stdin.buffer), _STDOUT)  # noqa: S301 - from this program's daemon


def _work(work: Callable[[Any], object], task: object, output: int, *, must_be_trusted: bool = False) -> int:
    try:
        found = work(task)
        if must_be_trusted:
            trust.check_program()  # with all that the work has loaded
    except RunnerError as error:
        lines, status = errors.report(error)
        sys.stderr.writelines(f"{line}\n" for line in lines)
        sys.stderr.flush()
        return status
    with os.fdopen(output, "wb", closefd=False) as stream:
        pickle.dump(found, stream)
    return errors.EXIT_OK


def _parse(task: tuple[Text, Text | None]) -> object:
    return parse(*task)


def parse(sites: Text, applications: Text | None) -> Any:  # noqa: ANN401 - the parser is imported here only
    """Return the files' Config or ConfigErrors. This process holds the parser from then on."""
    from basestation_runner.config.document import Source  # noqa: PLC0415 - the parser itself
    from basestation_runner.config.load import ConfigErrors, load_sources  # noqa: PLC0415

    try:
        return load_sources(Source(*sites), Source(*applications) if applications else None)
    except ConfigErrors as error:
        return error
