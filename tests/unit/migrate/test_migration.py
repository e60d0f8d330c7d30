"""Steps that are done, fail, are interrupted, and undone; whatever becomes of the journal."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, NoReturn

import pytest

from basestation_runner.errors import RunnerError
from basestation_runner.migrate import migration
from basestation_runner.migrate.context import Context
from basestation_runner.migrate.journal import Journal
from basestation_runner.migrate.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def steps(done: list[str], last: Callable[[], None], undo: Callable[[], None] = lambda: None) -> tuple[Step, ...]:
    """Return two steps, of which the last does something of its own."""

    def undo_last(_: Context) -> None:
        undo()
        done.append("not last")

    return (
        Step("first", "", lambda _: done.append("first"), lambda _: done.append("not first")),
        Step("last", "", lambda _: last(), undo_last),
    )


def fail() -> NoReturn:
    raise RunnerError("it is meant to fail")


def test_a_full_disk_keeps_nothing_from_being_undone(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    done: list[str] = []
    with pytest.raises(RunnerError, match=r"not migrated.*No space left") as raised:
        migration.go_on(context, steps(done, lambda: monkeypatch.setattr(os, "write", write)))
    assert done == ["first", "not last", "not first"]
    assert raised.value.hint == "everything is as it was before"
    assert not Journal.of(context.setting.journals, "alpha").is_known


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_has_all_undone_and_a_further_one_does_not_keep_it_from_that(context: Context, number: int) -> None:
    before = signal.signal(number, signal.default_int_handler)  # whoever runs this may ignore it
    done: list[str] = []
    try:
        with pytest.raises(RunnerError, match="interrupted"):
            migration.go_on(
                context, steps(done, lambda: signal.raise_signal(number), lambda: signal.raise_signal(number))
            )
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert done == ["first", "not last", "not first"]


def test_a_signal_that_is_ignored_stays_so(context: Context) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        migration.go_on(context, steps([], lambda: signal.raise_signal(signal.SIGHUP)))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert context.journal.state == "migrated"


def test_where_undoing_fails_nothing_says_that_it_was_done(context: Context) -> None:
    said: list[str] = []
    talking = Context(context.setting, context.journal, said.append)
    with pytest.raises(RunnerError, match="cannot be given back yet") as raised:
        migration.go_on(talking, steps([], fail, fail))
    assert "as it was before" not in f"{said} {raised.value} {raised.value.hint}"
    assert Journal.of(context.setting.journals, "alpha").state == "going back"


def test_what_is_seen_to_fail_on_the_way_back_keeps_it_from_beginning(context: Context) -> None:
    done: list[str] = []
    checked = (*steps(done, lambda: None), Step("check", "", lambda _: None, check=lambda _: fail()))
    migration.go_on(context, checked)
    with pytest.raises(RunnerError, match="cannot be given back: it is meant to fail") as raised:
        migration.go_back(context, checked)
    assert raised.value.hint == "nothing was touched"
    assert done == ["first"]
    assert Journal.of(context.setting.journals, "alpha").state == "migrated"


def test_only_one_migration_goes_on_and_what_fails_in_it_is_not_taken_for_another(tmp_path: Path) -> None:
    with (
        migration.only_one(tmp_path / "journals"),
        pytest.raises(RunnerError, match="another migration"),
        migration.only_one(tmp_path / "journals"),
    ):
        pass
    with pytest.raises(BlockingIOError), migration.only_one(tmp_path / "journals"):
        raise BlockingIOError
