"""A short run of every fuzz target, every input that was once found, and proof that a bad input would be found."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import run
from tests.fuzz.bounds import MEMORY, TooSlowError, bounded
from tests.fuzz.targets import TARGETS, Target

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("*/*"))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_any_input_gives_a_result_or_the_documented_error(target: Target) -> None:
    @settings(max_examples=target.share // 2, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.randoms(use_true_random=True))
    def each(random: Random) -> None:
        target.run(target.make(random))

    each()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_an_input_that_was_found_once_is_taken_well(case: Path) -> None:
    TARGETS[case.parent.name].run(case.read_bytes())


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_some_inputs_are_taken_and_some_are_not(target: Target) -> None:
    random = Random(1)  # noqa: S311 - nothing is secret
    taken = [target.run(target.make(random)) for _ in range(100)]
    assert 0 < sum(taken) < 100


def test_an_input_that_takes_too_much_memory_is_noticed() -> None:
    with pytest.raises(MemoryError), bounded(10):
        bytes(2 * MEMORY)


def test_an_input_that_takes_too_long_is_noticed_even_by_code_that_catches_every_exception() -> None:
    def stubborn() -> None:
        while True:
            try:
                while True:
                    pass
            except Exception:  # noqa: BLE001, S110 - what is tested
                pass

    with pytest.raises(TooSlowError), bounded(0.05):
        stubborn()


def test_a_bad_input_is_found_shortened_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(content: bytes) -> bool:
        if b"\x1b" in content:
            raise ValueError("an escape")
        return True

    monkeypatch.setattr(run, "TARGETS", {"request": evolve(TARGETS["request"], check=check)})
    monkeypatch.setattr(run, "FOUND", tmp_path)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--seconds", "2", "--seed", "1"])
    assert run.main() == 1
    (kept,) = (tmp_path / "request").iterdir()
    assert kept.read_bytes() == b"\x1b"
    printed = capsys.readouterr().out
    assert printed.startswith("FUZZ_SEED=1 ")
    assert "ValueError: an escape" in printed
    assert "problems found: 1" in printed


def test_the_same_seed_makes_the_same_inputs() -> None:
    def inputs(number: int) -> list[bytes]:
        seen: list[bytes] = []

        def check(content: bytes) -> bool:
            seen.append(content)
            return True

        target = evolve(TARGETS["request"], check=check, share=20)
        assert run.bad_input(target, number, time.monotonic() + 60, lambda: None) is None
        return seen

    assert inputs(1) == inputs(1) != inputs(2)
