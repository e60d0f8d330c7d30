"""The program's entry: what `runner` and `python -m basestation_runner` run. Imports only what is asked for."""

import os
import sys

from basestation_runner import program


def main() -> int:
    """Run the command line, or be one of the daemons' own processes, and return the exit status."""
    if sys.argv[1:2] and sys.argv[1] in program.PARTS:  # which are to hold as little in memory as they can
        return program.run_part(sys.argv[1:])
    if sys.argv[1:] == ["--version"] and _say(f"runner {program.version()}\n"):
        return 0
    from basestation_runner import cli  # noqa: PLC0415

    return cli.main()


def _say(text: str) -> bool:
    """Write to stdout, and return whether all was written: the command line knows what to do when it cannot be."""
    try:
        return os.write(1, text.encode()) == len(text)
    except OSError:
        return False


if __name__ == "__main__":
    raise SystemExit(main())
