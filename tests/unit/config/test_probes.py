"""Questions that hang, die or fail hold nobody up."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from basestation_runner.config import probes
from basestation_runner.config.probes import AT_ONCE, Question, Unseen, ask


def hang(mark: Path) -> None:
    mark.write_text(str(os.getpid()))
    signal.pause()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_answers_come_in_the_order_of_the_questions() -> None:
    numbers = list(range(3 * AT_ONCE + 1))
    assert ask([partial(int, number) for number in numbers]) == numbers
    assert ask([]) == []


def test_a_question_that_hangs_is_given_up_and_its_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "AT_ONCE", 2)
    questions: list[Question] = [partial(int, number) for number in range(5)]
    hung, *others = ask([partial(hang, tmp_path / "mark"), *questions], patience=1)
    assert hung == Unseen("does not answer within 1 s", is_fault=True)
    assert others == list(range(5))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "mark").read_text()), 0)


def test_all_questions_together_have_an_end(tmp_path: Path) -> None:
    questions = [partial(hang, tmp_path / str(number)) for number in range(2 * AT_ONCE)]
    answers = ask(questions, patience=60, in_all=0.2)
    assert set(answers) == {Unseen("was not looked at: too much else did not answer", is_fault=True)}


def test_a_question_whose_process_is_killed_has_no_good_answer() -> None:
    killed, *others = ask([die, *(partial(int, number) for number in range(AT_ONCE + 5))])
    assert isinstance(killed, Unseen)
    assert killed.is_fault
    assert others == list(range(AT_ONCE + 5))


def test_a_question_that_fails_is_a_mistake_that_is_told() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        ask([partial(divmod, 1, 0)])


def held() -> list[str]:
    found = []
    for descriptor in range(1024):
        with suppress(OSError):
            found.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    return found


def test_a_process_that_cannot_be_ended_would_hold_nothing_of_ours(tmp_path: Path) -> None:
    with (tmp_path / "ours").open("w"):
        ((*standard, pipe),) = ask([held])
    assert standard == [os.devnull] * 3
    assert pipe.startswith("pipe:")
