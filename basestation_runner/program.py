"""This program's own command, and the parts of it that run as processes of their own.

They are for the program itself: the daemons start them, nobody types them.
"""

import sys
from importlib import import_module
from typing import Final

FORK_SERVER: Final = "fork-server"
PARSE_CONFIG: Final = "parse-config"

PARTS: Final = {
    FORK_SERVER: "basestation_runner.privexec.forkserver",
    PARSE_CONFIG: "basestation_runner.config.apart",
}
"""The first argument -> the module whose `main` takes the others and returns the exit status."""


def command(part: str, *arguments: str) -> list[str]:
    """Return the words that start a part of this program, the interpreter's path first."""
    own = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]  # options for the interpreter, and what it runs
    return [sys.executable, *own, part, *arguments]


def run_part(arguments: list[str]) -> int:
    """Be the part that the first argument names; return the exit status."""
    status = import_module(PARTS[arguments[0]]).main(arguments[1:])
    assert isinstance(status, int)  # noqa: S101 - what each `main` is declared to return
    return status
