"""The three forms in which findings are shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.config.faults import Fault
from basestation_runner.config.findings import Finding, as_json, as_workflow_command, found, unread
from basestation_runner.errors import RunnerError

if TYPE_CHECKING:
    import pytest

FIELD = found(Fault("/etc/sites.yaml", 3, 7, "a.groups[1]", "not a member", "add it"), "warning", "usermod -aG b a")
HOST = Finding(level="fault", what="no account")


def test_a_person_reads_place_level_field_and_what_to_do() -> None:
    assert str(FIELD) == "/etc/sites.yaml:3:7: warning: a.groups[1]: not a member (add it: usermod -aG b a)"
    assert str(HOST) == "no account"


def test_a_fault_looks_as_it_does_in_a_daemons_log() -> None:
    fault = Fault("s.yaml", 1, 2, "a.b", "wrong\x1b", "right")
    assert str(found(fault)) == str(fault)
    error = RunnerError("cannot be read", where="s.yaml", hint="chmod it")
    assert str(unread(error)) == str(error)


def test_a_program_gets_every_fact() -> None:
    shown = json.loads(as_json([{"file": "/etc/sites.yaml", "ok": True}], [FIELD]))
    assert shown == {
        "ok": True,
        "files": [{"file": "/etc/sites.yaml", "ok": True}],
        "findings": [
            {
                "level": "warning",
                "what": "not a member",
                "hint": "add it",
                "command": "usermod -aG b a",
                "file": "/etc/sites.yaml",
                "line": 3,
                "column": 7,
                "path": "a.groups[1]",
            }
        ],
    }
    assert not json.loads(as_json([], [FIELD, HOST]))["ok"]


def test_github_gets_a_workflow_command() -> None:
    said = "a.groups[1]: not a member (add it: usermod -aG b a)"
    assert as_workflow_command(FIELD) == f"::warning file=/etc/sites.yaml,line=3,col=7::{said}"
    assert as_workflow_command(HOST) == "::error::no account"
    assert as_workflow_command(Finding(level="note", what="x")) == "::notice::x"


def test_github_gets_paths_as_they_are_in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", "/etc")
    assert as_workflow_command(FIELD).startswith("::warning file=sites.yaml,line=3,")
    monkeypatch.setenv("GITHUB_WORKSPACE", "/et")
    assert as_workflow_command(FIELD).startswith("::warning file=/etc/sites.yaml,")
    monkeypatch.delenv("GITHUB_WORKSPACE")
    monkeypatch.chdir("/etc")
    assert as_workflow_command(FIELD).startswith("::warning file=sites.yaml,")


def read(line: str) -> tuple[dict[str, str], str]:
    """Return a workflow command's properties and message as GitHub's runner reads them."""
    head, _, message = line.removeprefix("::").partition("::")
    properties = dict(part.split("=", 1) for part in head.partition(" ")[2].split(","))
    for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        properties = {key: value.replace(code, character) for key, value in properties.items()}
    return properties, message.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


@given(st.text(), st.text(min_size=1), st.integers(1))
def test_no_text_breaks_out_of_a_workflow_command(what: str, file: str, line: int) -> None:
    finding = Finding(level="fault", what=what, file=f"/{file}", line=line, column=1)
    shown = as_workflow_command(finding)
    assert shown.isprintable()
    properties, message = read(shown)
    assert properties.keys() == {"file", "line", "col"}
    assert properties["line"] == str(line)
    if what.isprintable() and file.isprintable():
        assert (properties["file"], message) == (f"/{file}", what)


@given(st.builds(Finding, level=st.sampled_from(["fault", "warning", "note"]), what=st.text(), file=st.text()))
def test_what_is_found_is_one_line(finding: Finding) -> None:
    assert str(finding).isprintable()
    assert as_json([], [finding]).isascii()
