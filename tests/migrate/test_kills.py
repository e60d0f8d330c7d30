"""A migration that is killed after any of its steps is finished, or undone, by the next call; requests run once."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

import pytest

from tests.patience import until

if TYPE_CHECKING:
    from tests.migrate.conftest import Host

KILLED: Final = -signal.SIGKILL
MARKS: Final = 60
"""More than a migration leaves in its journal and on the host."""
PARTS: Final = 4


def killed_and_called_again(host: Host, tags: list[str], words: list[str], again: list[str], kill_after: int) -> bool:
    """Begin something that is killed, hand in a request, and call again; tell whether it was killed."""
    status, said = host.run("alpha", *words, kill_after=kill_after)
    assert status in {KILLED, 0}, said
    tags.append(host.drop())
    if status == KILLED:
        status, said = host.run("alpha", *again)
        assert status == 0, f"{kill_after}: {said}"
        return True
    return False


@pytest.mark.parametrize("part", range(PARTS))
def test_killed_after_any_mark_it_is_finished_or_undone_by_the_next_call(host: Host, part: int) -> None:
    """A mark is a line in the journal, or a change of the host. Half of them are finished, half undone."""
    host.installation.accounts.join("baserunner", host.group)  # else the watcher is restarted each time, which is slow
    host.start()
    forth, back = ["--yes"], ["--rollback", "--yes"]
    tags: list[str] = []
    for kill_after in range(1 + part, MARKS, PARTS):
        is_undone = kill_after // PARTS % 2 == 1
        was_killed = killed_and_called_again(host, tags, forth, back if is_undone else forth, kill_after)
        if not (was_killed and is_undone):
            assert host.is_migrated(), kill_after
            was_killed |= killed_and_called_again(host, tags, back, back, kill_after)
        assert host.is_as_before(is_member=True), kill_after
        if not was_killed:
            break
    else:
        pytest.fail("there are more marks than that")
    until(lambda: host.ran() == sorted(tags), f"all to have run once: {tags}")


@pytest.mark.parametrize("step", ["join", "restart"])
@pytest.mark.parametrize("call", [["--yes"], ["--rollback", "--yes"]])
def test_killed_when_the_watcher_has_joined_the_group_it_is_finished_or_undone(
    host: Host, step: str, call: list[str]
) -> None:
    host.start()
    status, said = host.run("alpha", "--yes", kill_at=step)
    assert status == KILLED, said
    assert host.is_member()
    tag = host.drop()
    status, said = host.run("alpha", *call)
    assert status == 0, said
    assert host.is_migrated() if call == ["--yes"] else host.is_as_before()
    until(lambda: host.ran() == [tag])
