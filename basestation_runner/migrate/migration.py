"""A migration from its first step to its end, or back to where it began; and the next call after a kill."""

import fcntl
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
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
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TemporaryError("another migration is going on", where=str(directory)) from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Have the first signal that asks for an end raise KeyboardInterrupt. What is yielded puts off all from then on."""
    is_over = False

    def put_off() -> None:
        nonlocal is_over
        is_over = True

    def interrupt(*_: object) -> None:
        if not is_over:
            put_off()
            raise KeyboardInterrupt

    with _handled(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), interrupt)):
        yield put_off


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    """Handle signals in some way for a while, but those that are ignored, as nohup(1) does."""
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def begin(journal: Journal, facts: Mapping[str, Any]) -> None:
    """Write down all that a migration goes by. It has begun then, and nothing is touched yet."""
    journal.note(**facts)
    journal.turn("begun")


def go_on(context: Context, steps: Sequence[Step]) -> None:
    """Do what is not done yet. If anything fails, undo all of it. Raises RunnerError, which then says so."""
    journal = context.journal
    with _interruptible() as put_off:
        try:
            for step in steps:
                if not journal.is_done(step.name):
                    journal.step(step.name, "begun")
                    step.do(context)
                    journal.step(step.name, "done")
            journal.turn("migrated")
        except (Exception, KeyboardInterrupt) as error:
            put_off()
            why = _words(error)
            context.say(f"{why}: all that was done is being undone")
            with suppress(RunnerError):
                journal.turn("going back")
            _undo(context, steps)
            hint = "everything is as it was before"
            raise RunnerError(f"{_what(context)} is not migrated: {why}", hint=hint) from error


def go_back(context: Context, steps: Sequence[Step]) -> None:
    """Undo what was begun, the last first, if it is seen that this can be done.

    Raises RunnerError, also when something fails on the way: the next call goes on with it.
    """
    check_way_back(context, steps)
    context.journal.turn("going back")
    # It goes on when the terminal is gone. It may wait for jobs: a person can end that.
    with _handled({signal.SIGHUP: lambda *_: None, signal.SIGTERM: _interrupt}):
        _undo(context, steps)


def check_way_back(context: Context, steps: Sequence[Step]) -> None:
    """See that what was begun can be undone, without touching anything. Raises RunnerError."""
    try:
        for step in steps:
            if context.journal.was_begun(step.name):
                step.check(context)
    except RunnerError as error:
        raise RunnerError(f"{_what(context)} cannot be given back: {error}", hint="nothing was touched") from error


def _undo(context: Context, steps: Sequence[Step]) -> None:
    """Undo what was begun. That it cannot be written down is no reason not to: what is undone can be undone again."""
    journal = context.journal
    try:
        for step in reversed(steps):
            if journal.was_begun(step.name):
                step.undo(context)
                with suppress(RunnerError):
                    journal.step(step.name, "undone")
    except (Exception, KeyboardInterrupt) as error:
        hint = "mend it and call this again: it goes on where it was"
        raise RunnerError(f"{_what(context)} cannot be given back yet: {_words(error)}", hint=hint) from error
    with suppress(RunnerError):
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
