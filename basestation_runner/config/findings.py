"""What a check has found, as facts, and the three forms in which it is shown. Checks nothing itself."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from attrs import asdict, frozen

from basestation_runner.config.faults import Fault
from basestation_runner.errors import RunnerError, printable

Level = Literal["fault", "warning", "note"]

_WORKFLOW_COMMANDS: Final[Mapping[Level, str]] = {"fault": "error", "warning": "warning", "note": "notice"}


@frozen(kw_only=True)
class Finding:
    """One thing that was found. Only a fault makes a check fail; a note may well be intended."""

    level: Level
    what: str
    hint: str = ""
    command: str = ""  # what a person can run to mend it
    file: str | None = None  # None: it is about the host
    line: int | None = None  # None: it is about the file as a whole
    column: int | None = None
    path: str = ""  # the way to the field, as in `seaglider.groups[1]`

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        level = "" if self.level == "fault" else self.level
        return printable(": ".join(part for part in (place, level, self.message) if part))

    @property
    def message(self) -> str:
        """What a person reads where place and level are shown by other means."""
        advice = ": ".join(part for part in (self.hint, self.command) if part)
        return (f"{self.path}: " if self.path else "") + self.what + (f" ({advice})" if advice else "")


def found(fault: Fault, level: Level = "fault", command: str = "") -> Finding:
    """Given a fault at a place in a file, return it as a finding."""
    return Finding(
        level=level,
        what=fault.what,
        hint=fault.hint,
        command=command,
        file=fault.file,
        line=fault.line,
        column=fault.column,
        path=fault.path,
    )


def unread(error: RunnerError) -> Finding:
    """Given why a file cannot be used at all, return that as a finding."""
    return Finding(level="fault", what=error.what, hint=error.hint or "", file=error.where)


def as_json(files: Iterable[Mapping[str, Any]], findings: Iterable[Finding]) -> str:
    """Given what was checked and what was found, return one JSON object for other programs."""
    shown = [asdict(finding) for finding in findings]
    is_ok = all(finding["level"] != "fault" for finding in shown)
    return json.dumps({"ok": is_ok, "files": list(files), "findings": shown}, indent=2)


def as_workflow_command(finding: Finding) -> str:
    """Given a finding, return the line that makes GitHub show it beside the line of the file that it is about.

    GitHub wants paths as they are in the repository.
    """
    file = finding.file
    if file is not None:
        top = os.path.join(os.environ.get("GITHUB_WORKSPACE") or os.getcwd(), "")  # noqa: PTH109, PTH118 - texts only
        file = file.removeprefix(top)
    properties = {"file": file, "line": finding.line, "col": finding.column}
    shown = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value is not None)
    return f"::{_WORKFLOW_COMMANDS[finding.level]}{' ' * bool(shown)}{shown}::{_data(finding.message)}"


def _data(text: str) -> str:
    # All that could end a line is made visible before: what is left to escape is the escape itself.
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
