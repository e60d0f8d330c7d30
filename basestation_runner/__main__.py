"""The program's entry: what `runner` and `python -m basestation_runner` run. Imports only what is asked for."""

import sys


def main() -> int:
    """Run the command line, or be the helper's fork server, and return the exit status."""
    if sys.argv[1:2] == ["fork-server"]:  # which is to hold as little in memory as it can
        from basestation_runner.privexec import forkserver  # noqa: PLC0415

        return forkserver.main(sys.argv[2:])
    from basestation_runner import cli  # noqa: PLC0415

    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
