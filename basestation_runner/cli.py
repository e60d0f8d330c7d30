"""The program `runner`: finds the sub-command, runs it, turns what it raises into lines and an exit status.
Must not import what only one sub-command needs: `runner --help` stays quick and needs no daemon's libraries.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from basestation_runner import errors, program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# name -> (where its click command is, one line for --help)
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "watch": ("basestation_runner.commands.watch:watch", "Take requests from the sites' rundirs and run them in turn."),
    "privexec": ("basestation_runner.commands.privexec:privexec", "Start each job as its site's account (the helper)."),
    "status": ("basestation_runner.commands.status:status", "Show sites, queues, running jobs and failures."),
    "jobs": ("basestation_runner.commands.jobs:jobs", "List jobs that wait, run or have ended."),
    "show": ("basestation_runner.commands.show:show", "Show everything about one job."),
    "logs": ("basestation_runner.commands.logs:logs", "Show a job's log."),
    "submit": ("basestation_runner.commands.submit:submit", "Have a script run as a site's job."),
    "cancel": ("basestation_runner.commands.cancel:cancel", "Cancel jobs that wait or run."),
    "rerun": ("basestation_runner.commands.rerun:rerun", "Run a job that has ended once more."),
    "modify": ("basestation_runner.commands.modify:modify", "Move a job that waits to another application."),
    "hold": ("basestation_runner.commands.hold:hold", "Start nothing of a site until it is released."),
    "release": ("basestation_runner.commands.release:release", "Start a site's jobs again."),
    "drain": ("basestation_runner.commands.drain:drain", "Hold, and wait until nothing runs."),
    "reload": ("basestation_runner.commands.reload:reload", "Read the configuration anew, without a restart."),
    "doctor": ("basestation_runner.commands.doctor:doctor", "Check this installation and the host below it."),
    "migrate-site": (
        "basestation_runner.commands.migrate_site:migrate_site",
        "Take a site over from its legacy unit, or give it back.",
    ),
    "validate-config": (
        "basestation_runner.commands.validate_config:validate_config",
        "Check config files and show all faults at once.",
    ),
    "applications": (
        "basestation_runner.commands.applications:applications",
        "List the application profiles that a site may use.",
    ),
    "install": (
        "basestation_runner.commands.install:install",
        "Install the one-file program on this host, or upgrade it.",
    ),
    "uninstall": ("basestation_runner.commands.uninstall:uninstall", "Remove what `runner install` has installed."),
}
if not program.COMPILED:  # it copies the program's source, and runs that with the host's Python
    COMMANDS["demo"] = (
        "basestation_runner.commands.demo:demo",
        "Run a throw-away runner with sites, requests and jobs.",
    )

# Third-party modules that only some commands need -> the extra of this package that brings them.
EXTRAS: Final[Mapping[str, str]] = {
    "asyncore": "daemon",
    "cgroupspy": "daemon",
    "prctl": "daemon",
    "prometheus_client": "metrics",
    "pyinotify": "daemon",
    "rich": "daemon",
    "zmq": "vis",
}

STDOUT: Final = 1

# The existing daemons spell options with underscores; both spellings of every option work, and of every command.
CONTEXT_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda token: token.replace("_", "-"),
    "max_content_width": 100,
}


@dataclass
class Invocation:
    """What the group's own options say, for the sub-command and for `main` after it has failed."""

    debug: bool = False


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), function)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{function} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings=CONTEXT_SETTINGS)
@click.version_option(program.version(), prog_name="runner", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Log more, and show tracebacks.")
@click.pass_obj
def runner(invocation: Invocation, *, debug: bool) -> None:
    """Run the jobs of many sites on one host, each job as its own site's account.

    Exit status: 0 done, 1 the thing itself failed, 2 wrong usage, 70 internal error, 75 temporary.
    """
    invocation.debug = debug


def main(arguments: Sequence[str] | None = None) -> int:
    """Given the command line, run it and return the exit status."""
    if "_RUNNER_COMPLETE" in os.environ:
        return _complete(os.environ["_RUNNER_COMPLETE"])
    invocation = Invocation()
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments), invocation)
        click.echo(nl=False)  # flushes, and may find that nobody reads any more
    except KeyboardInterrupt:
        return errors.EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the outermost handler: whatever it is becomes one line and a status
        if isinstance(error, BrokenPipeError) and _is_closed(STDOUT):
            # The reader, for instance `head`, has had enough. Nothing may be flushed at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
            return errors.EXIT_FAILED
        if invocation.debug:
            sys.excepthook(type(error), error, error.__traceback__)
        lines, status = errors.report(_explain(error), debug=invocation.debug)
        for line in lines:
            click.echo(line, err=True)
    return status


def _run(arguments: list[str], invocation: Invocation) -> int:
    try:
        with runner.make_context("runner", arguments, obj=invocation) as context:
            status = runner.invoke(context)
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except click.ClickException as wrong:
        wrong.show()
        return wrong.exit_code
    if not isinstance(status, int):
        raise TypeError(f"the command returned {status!r}, not an exit status")
    return status


def _explain(error: Exception) -> Exception:
    """Given a missing library that an extra of this package brings, say so; return anything else as it is."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None and error.name in EXTRAS:
        return errors.RunnerError(
            f"the Python module {error.name} is not installed",
            hint=f"pip install 'basestation-runner[{EXTRAS[error.name]}]'",
        )
    return error


def _is_closed(output: int) -> bool:
    """Given an output, return whether nobody reads it any more."""
    import select  # noqa: PLC0415 - for this one case

    poll = select.poll()
    poll.register(output, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _complete(instruction: str) -> int:
    """Given what a shell's completion asks, answer it on stdout."""
    from click.shell_completion import shell_complete  # noqa: PLC0415 - for this one case

    return shell_complete(runner, {}, "runner", "_RUNNER_COMPLETE", instruction)
