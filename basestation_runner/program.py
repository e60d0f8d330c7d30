"""This program's own command and version, and the parts of it that run as processes of their own.

They are for the program itself: the daemons start them, nobody types them.
"""

import os
import sys
from importlib import import_module
from typing import Any, Final

from basestation_runner import __version__

FORK_SERVER: Final = "fork-server"
PARSE_CONFIG: Final = "parse-config"
CHECK_CONFIG: Final = "check-config"

PARTS: Final = {
    FORK_SERVER: "basestation_runner.privexec.forkserver",
    PARSE_CONFIG: "basestation_runner.config.apart",
    CHECK_CONFIG: "basestation_runner.privexec.reload",
}
"""The first argument -> the module whose `main` takes the others and returns the exit status."""

_COMPILER: Final[Any] = globals().get("__compiled__")
COMPILED: Final = _COMPILER is not None
"""Whether this is the compiled program, which runs without Python and lies in a folder with all that it needs."""

# Of a compiled program sys.executable names an interpreter that is not there. Read before an upgrade replaces the file.
EXECUTABLE: Final = os.readlink("/proc/self/exe") if COMPILED else sys.executable
"""The file that is executed to start this program."""

BECOME: Final = os.path.join(os.path.dirname(__file__), "privexec", "become", "runner-become")
"""The program that is started for each job, and becomes it."""


def command(part: str, *arguments: str) -> list[str]:
    """Return the words that start a part of this program, the executable's path first."""
    if COMPILED:
        return [EXECUTABLE, part, *arguments]
    own = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]  # options for the interpreter, and what it runs
    return [EXECUTABLE, *own, part, *arguments]


def run_part(arguments: list[str]) -> int:
    """Be the part that the first argument names; return the exit status."""
    status = import_module(PARTS[arguments[0]]).main(arguments[1:])
    assert isinstance(status, int)  # noqa: S101 - what each `main` is declared to return
    return status


def version() -> str:
    """Return the version and what it was made of: of a compiled program also the commit and the compiler."""
    made_of = [f"Python {sys.version.split()[0]}"]
    if COMPILED:
        with open(os.path.join(os.path.dirname(__file__), "commit"), encoding="ascii") as file:
            made_of.insert(0, f"commit {file.read()}")
        made_of.append(f"Nuitka {_COMPILER.major}.{_COMPILER.minor}.{_COMPILER.micro}")
    return f"{__version__} ({', '.join(made_of)})"
