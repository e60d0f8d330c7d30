"""The manual pages, made from the commands themselves: `python -m basestation_runner.manual DIRECTORY` (`make man`).

What a command cannot say of itself, an example and what its exit status means, is here. No command imports this.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from basestation_runner import __version__, cli

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXAMPLES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "watch": (
        ("runner watch --base-log /var/log/baserunner/watch.log", "As its unit starts it, as the account baserunner."),
        ("runner watch --metrics 127.0.0.1:9464 --max-running 16", "With metrics for Prometheus."),
    ),
    "privexec": (
        ("runner privexec --watcher-user baserunner", "As its unit starts it, with CAP_SETUID and CAP_SETGID."),
    ),
    "status": (
        ("runner status --watch", "Everything, again every two seconds."),
        ("runner status --check --since 1h", "One line and an exit status, for monitoring."),
    ),
    "jobs": (("runner jobs --state failed --state lost --since 12h", "What went wrong last night."),),
    "show": (("runner show 3f2a", "The job whose id begins so."),),
    "logs": (("runner logs -f 3f2a", "What the job writes, until it has ended."),),
    "submit": (
        (
            "runner submit --wait --mission-dir /home/sg123/mission1 seaglider Base.py --verbose",
            "Run a script as the site's job and wait for its end.",
        ),
    ),
    "cancel": (("runner cancel 3f2a 77b0", "End two jobs."),),
    "rerun": (("runner rerun 3f2a", "Run what that job ran once more."),),
    "modify": (("runner modify --application reprocess 3f2a", "Have a job that waits run as another kind."),),
    "hold": (("runner hold seaglider", "Start nothing of that site."), ("runner hold --all", "Start nothing at all.")),
    "release": (("runner release seaglider", "Start its jobs again."),),
    "drain": (
        ("runner drain", "Before a kernel update: returns when nothing runs on the host."),
        ("runner drain --return-requests seaglider", "Write what waits back into the rundir."),
    ),
    "reload": (
        (
            "runner validate-config --host && runner reload",
            "Check changed files, then have both daemons go by them.",
        ),
    ),
    "doctor": (
        ("runner doctor", "As root: every point, and what mends those that are not as they must be."),
        ("runner doctor --probe seaglider", "Also what a job of that site would be, without running one."),
    ),
    "migrate-site": (
        ("runner migrate-site --list", "Which sites could be migrated, and what keeps them."),
        ("runner migrate-site seaglider --dry-run", "The new entry and each step, and nothing else."),
        ("runner migrate-site seaglider --rollback", "Give the site back to its legacy unit."),
    ),
    "validate-config": (
        ("runner validate-config --host", "The installed files, and whether this host is ready for them."),
        ("runner validate-config --format github sites.yaml", "In a repository's checks."),
    ),
    "applications": (("runner applications --site seaglider", "What that site may use."),),
    "install": (
        ("runner install", "With sudo, from the one file that make binary has made: onto this host."),
        ("runner install --root /mnt/image", "Into an image of another one."),
    ),
    "uninstall": (("runner uninstall --purge", "Everything but the configuration and the accounts."),),
    "demo": (("runner demo --json", "Three throw-away sites, and what each of their jobs was, as JSON."),),
}

_OPERATING: Final = {
    0: "Done.",
    1: "It could not be done; the line on stderr says why.",
    75: "Temporary: there is no watcher, or the ledger or a directory service does not answer. Try again.",
}
_DAEMON: Final = {
    0: "It was told to end. Running jobs go on.",
    1: "It must not start, or not go on, like this; the line on stderr says why.",
    75: "Temporary: it may start when it is tried again.",
}
STATUSES: Final[Mapping[str, Mapping[int, str]]] = {
    "watch": _DAEMON,
    "privexec": _DAEMON,
    "status": {**_OPERATING, 1: "With --check: something is wrong, and the line says what."},
    "submit": {**_OPERATING, 0: "Done. With --wait the exit status is the job's own."},
    "reload": {**_OPERATING, 1: "The files have a fault, or the helper refuses them; nothing is changed."},
    "doctor": {0: "No fault; there may be warnings, and points that were skipped.", 1: "There are faults."},
    "migrate-site": {
        0: "Done.",
        1: "It cannot be, or it failed and all of it was undone; the line on stderr says why.",
        75: "Temporary: something did not answer. Call it again: what was begun goes on.",
    },
    "validate-config": {0: "No fault; there may be warnings.", 1: "There are faults.", 75: "Something did not answer."},
    "applications": {0: "Done.", 1: "The files have a fault, or there is no such site."},
    "install": {0: "It is installed.", 1: "It is not, or not wholly; the line on stderr says why."},
    "uninstall": {0: "Nothing of it is left.", 1: "It could not be removed; the line on stderr says why."},
    "demo": {0: "All jobs were what they had to be.", 1: "Some were not."},
    **dict.fromkeys(("jobs", "show", "logs", "cancel", "rerun", "modify", "hold", "release", "drain"), _OPERATING),
}
"""What each command's exit status means; those that all have come besides."""

_ALWAYS: Final = {2: "Wrong usage.", 70: "Internal error: runner --debug shows where.", 130: "Interrupted."}


def page(name: str) -> str:
    """Return one command's manual page, or the whole program's for the empty name."""
    command = cli.runner if not name else cli.runner.get_command(click.Context(cli.runner), name)
    if command is None:
        raise KeyError(name)
    return "\n".join(_page(name, command)) + "\n"


def _page(name: str, command: click.Command) -> Iterator[str]:
    title = f"runner-{name}" if name else "runner"
    context = click.Context(command, info_name=f"runner {name}".strip(), **cli.CONTEXT_SETTINGS)
    yield f'.TH "{title.upper()}" "1" "" "basestation-runner {__version__}" "User Commands"'
    yield ".SH NAME"
    short = cli.COMMANDS[name][1] if name else "Run the jobs of many sites on one host, each as its own site's account."
    yield _text(f"{title} - {short.rstrip('.')}")
    yield ".SH SYNOPSIS"
    yield f".B {_text(context.command_path)}"
    yield _text(" ".join(command.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    for paragraph in (command.help or "").strip().split("\n\n"):
        yield ".PP"
        yield _text(" ".join(paragraph.split()))
    records = [found for param in command.get_params(context) if (found := param.get_help_record(context))]
    if records:
        yield ".SH OPTIONS"
    for option, text in records:
        yield from _item(option, text)
    if not name:
        yield ".SH COMMANDS"
        for each, (_, line) in cli.COMMANDS.items():
            yield from _item(f"runner-{each}(1)", line)
        return
    yield ".SH EXIT STATUS"
    for code, meaning in sorted({**STATUSES[name], **_ALWAYS}.items()):
        yield from _item(str(code), meaning)
    yield ".SH EXAMPLES"
    for line, meaning in EXAMPLES[name]:
        yield from _item(line, meaning)
    yield ".SH SEE ALSO"
    yield "runner(1)"


def _item(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f".B {_text(term)}"
    yield _text(text)


def _text(text: str) -> str:
    """Return words as roff takes them for nothing but words."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def main(directory: Path) -> None:
    """Write every page into a directory, which is made if need be."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "runner.1").write_text(page(""), encoding="utf-8")
    for name in cli.COMMANDS:
        (directory / f"runner-{name}.1").write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
