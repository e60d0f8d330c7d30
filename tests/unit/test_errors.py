"""How faults read, and which exit status they give."""

from __future__ import annotations

import copy
import pickle

from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.errors import EXIT_FAILED, EXIT_INTERNAL, EXIT_TEMPORARY, RunnerError, TemporaryError, report


def test_a_fault_says_where_what_and_what_to_do() -> None:
    fault = RunnerError("no such account", where="sites.yaml", hint="create it")
    assert report(fault) == (["runner: sites.yaml: no such account (create it)"], EXIT_FAILED)


def test_a_temporary_fault_has_its_own_status() -> None:
    assert report(TemporaryError("the helper does not answer")) == (
        ["runner: the helper does not answer"],
        EXIT_TEMPORARY,
    )


def test_several_faults_are_a_line_each_and_temporary_only_if_all_are() -> None:
    both = ExceptionGroup("", [TemporaryError("one"), ExceptionGroup("", [RunnerError("two")])])
    assert report(both) == (["runner: one", "runner: two"], EXIT_FAILED)


def test_a_class_that_holds_several_faults_gets_a_line_each() -> None:
    class SeveralError(RunnerError):
        def __str__(self) -> str:
            return "one\ntwo"

    assert report(SeveralError("two faults"))[0] == ["runner: one", "runner: two"]


def test_a_group_with_something_unforeseen_is_an_internal_error() -> None:
    assert report(ExceptionGroup("x", [RunnerError("one"), KeyError("k")]))[1] == EXIT_INTERNAL


def test_an_internal_error_tells_how_to_learn_more() -> None:
    line = "runner: internal error: KeyError: 'k'"
    assert report(KeyError("k")) == ([f"{line} (runner --debug shows where it happened)"], EXIT_INTERNAL)
    assert report(KeyError("k"), debug=True) == ([line], EXIT_INTERNAL)


@given(st.text(st.characters()), st.text(st.characters()), st.text(st.characters()))
def test_any_fault_is_one_printable_line(what: str, where: str, hint: str) -> None:
    lines, _ = report(RunnerError(what, where=where, hint=hint))
    assert len(lines) == 1
    assert lines[0].isprintable()


def test_a_fault_survives_copy_and_pickle() -> None:
    fault = RunnerError("a", where="b", hint="c")
    assert str(copy.copy(fault)) == str(pickle.loads(pickle.dumps(fault))) == "b: a (c)"  # noqa: S301 - our own
