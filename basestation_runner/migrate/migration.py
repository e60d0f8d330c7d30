"""A migration from its first step to its end, or back to where it began; and the next call after a kill."""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.migrate.context import Context
from basestation_runner.migrate.journal import Journal, make_directory
from basestation_runner.migrate.plan import Plan
from basestation_runner.migrate.setting import Setting
from basestation_runner.migrate.steps import Step


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Keep others from migrating at the same moment. Raises TemporaryError while somebody does."""
    make_directory(directory)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise TemporaryError("another migration is going on", where=str(directory)) from error
    finally:
        os.close(descriptor)


def begin(journal: Journal, facts: Mapping[str, Any]) -> None:
    """Write down all that a migration goes by. It has begun then, and nothing is touched yet."""
    journal.note(**facts)
    journal.turn("begun")


def go_on(context: Context, steps: Sequence[Step]) -> None:
    """Do what is not done yet. If anything fails, undo all of it. Raises RunnerError, which then says so."""
    journal = context.journal
    try:
        for step in steps:
            if not journal.is_done(step.name):
                journal.step(step.name, "begun")
                step.do(context)
                journal.step(step.name, "done")
        journal.turn("migrated")
    except (Exception, KeyboardInterrupt) as error:
        why = _words(error)
        context.say(f"{why}: all of it is undone")
        journal.turn("going back")
        go_back(context, steps)
        raise RunnerError(f"{_what(context)} is not migrated: {why}", hint="everything is as it was before") from error


def go_back(context: Context, steps: Sequence[Step]) -> None:
    """Undo what was begun, the last first. Raises RunnerError when that fails: the next call goes on with it."""
    journal = context.journal
    journal.turn("going back")
    try:
        for step in reversed(steps):
            if journal.was_begun(step.name):
                step.undo(context)
                journal.step(step.name, "undone")
    except (Exception, KeyboardInterrupt) as error:
        hint = "mend it and call this again: it goes on where it was"
        raise RunnerError(f"{_what(context)} cannot be given back yet: {_words(error)}", hint=hint) from error
    journal.turn("undone")
    journal.close()


def _what(context: Context) -> str:
    return "this host" if "sites" in context.journal.facts else f"site {context.site}"


def _words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"


def titles(steps: Sequence[Step], plan: Plan, setting: Setting) -> list[str]:
    """Return what a plan says of its steps."""
    words = {
        "unit": plan.unit.name,
        "watch_dir": plan.proposal.entry["watch_dir"],
        "watcher": setting.watcher_user,
        "group": plan.group,
        "config": setting.sites_config,
    }
    return [step.title.format(**words) for step in steps]
