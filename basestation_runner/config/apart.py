"""Config files parsed in a process of its own: no daemon holds the parser, nor what parsing leaves behind in memory.

A thread may do this while a loop runs on.
"""

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from basestation_runner import errors, program, trust
from basestation_runner.config.model import Config
from basestation_runner.errors import RunnerError

Text = tuple[str, bytes]
"""The name that a file's faults carry, and its content."""

_STDIN: Final = 0
_STDOUT: Final = 1
PRIVILEGED: Final = "privileged"
_MOST_BYTES: Final = 2 << 20  # more than the parser takes: it says so


def read(path: Path) -> Text:
    """Return a file's content, but not much more than is accepted. Raises RunnerError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return str(path), file.read(_MOST_BYTES)
    except OSError as error:
        raise RunnerError(f"cannot be read: {error.strerror}", where=str(path)) from error


def load(sites: Text, applications: Text | None, *, privileged: bool = False) -> Config:
    """Return the files' Config. Raises ConfigErrors with every fault of both, or RunnerError.

    The standard descriptors must be open.

    `privileged`: only a parser that nobody but root can change may be believed. The process inherits no capabilities,
    since there are none that this one can pass on.
    """
    pid, reader = start(program.PARSE_CONFIG, [PRIVILEGED] if privileged else [], (sites, applications))
    with os.fdopen(reader, "rb") as answer:
        data = answer.read()
    found = result(pid, data)
    if isinstance(found, Config):
        return found
    raise found


def start(part: str, arguments: list[str], task: object) -> tuple[int, int]:
    """Start a part of this program and give it a task, pickled. Return its pid and the descriptor of its answer."""
    file = os.memfd_create("config")
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        with os.fdopen(file, "wb", closefd=False) as content:
            pickle.dump(task, content)
        os.lseek(file, 0, os.SEEK_SET)
        command = program.command(part, *arguments)
        actions = [(os.POSIX_SPAWN_DUP2, file, _STDIN), (os.POSIX_SPAWN_DUP2, writer, _STDOUT)]
        return os.posix_spawn(command[0], command, os.environ, file_actions=actions), reader
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(file)
        os.close(writer)


def result(pid: int, data: bytes) -> Any:  # noqa: ANN401 - whatever that part answers with
    """Return what a part that was started has answered, once that is complete. Raises RunnerError if it has failed."""
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise RunnerError("the configuration cannot be parsed", hint="what is on stderr above says why")
    return pickle.loads(data)  # noqa: S301 - from this program itself, whose files were checked


def main(arguments: list[str]) -> int:
    """Be that process; return the exit status."""
    return answer(arguments, lambda task: parse(*task))


def parse(sites: Text, applications: Text | None) -> Any:  # noqa: ANN401 - the parser is imported here only
    """Return the files' Config or ConfigErrors. This process holds the parser from then on."""
    from basestation_runner.config.document import Source  # noqa: PLC0415 - the parser itself
    from basestation_runner.config.load import ConfigErrors, load_sources  # noqa: PLC0415

    try:
        return load_sources(Source(*sites), Source(*applications) if applications else None)
    except ConfigErrors as error:
        return error


def answer(arguments: list[str], work: Callable[[Any], object]) -> int:
    """Be a part that was started: answer with what `work` makes of the task, and return the exit status."""
    try:
        if arguments == [PRIVILEGED]:
            trust.check_program()
        found = work(pickle.load(sys.stdin.buffer))  # noqa: S301 - from this program's daemon
    except RunnerError as error:
        lines, status = errors.report(error)
        sys.stderr.writelines(f"{line}\n" for line in lines)
        return status
    pickle.dump(found, sys.stdout.buffer)
    return errors.EXIT_OK
