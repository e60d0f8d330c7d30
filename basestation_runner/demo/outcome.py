"""What became of one request, and whether that is what should have."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import field, frozen

from basestation_runner.demo.scenario import Request
from basestation_runner.sandbox.installation import Drop

_CAPABILITIES: Final = ("CapInh", "CapPrm", "CapEff", "CapAmb")  # the bounding set by itself gives nothing


@frozen
class Outcome:
    """What the watcher says of a job's end, and what the job said of itself."""

    request: Request
    drop: Drop
    job_id: str | None
    exit_code: int | None
    reason: str | None  # why the job did not run
    report: Mapping[str, Any] | None = field(repr=False)  # the stand-in script's

    @property
    def ms(self) -> float | None:
        """From just before the request's file was closed to the script's first statement."""
        return None if self.report is None else round((self.report["started_ns"] - self.drop.closed_ns) / 1e6, 1)

    @property
    def capabilities(self) -> dict[str, str]:
        """The job's capability sets in hex, an empty one as 0."""
        if self.report is None:
            return {}
        return {name: f"{int(self.report['capabilities'][name], 16):x}" for name in _CAPABILITIES}

    @property
    def faults(self) -> list[str]:
        """What is not as it should be, in words."""
        if self.request.expected is None:
            return [] if self.reason else ["it must be refused, and was not"]
        if self.report is None:
            return [f"it did not run: {self.reason or 'it left no report'}"]
        return [*self._identity_faults(self.report), *self._run_faults(self.report)]

    def _identity_faults(self, report: Mapping[str, Any]) -> Iterator[str]:
        expected = self.request.expected
        if expected is None:
            return
        for kind, wanted in (("uids", expected.uid), ("gids", expected.gid)):
            if report[kind] != [wanted] * 3:
                yield f"its {kind} are {report[kind]}, not {wanted} throughout"
        # A job without setgroups keeps a list that need not name the effective group again.
        if {expected.gid, *report["groups"]} != expected.groups:
            yield f"its groups are {report['groups']}, not {sorted(expected.groups)}"
        if set(self.capabilities.values()) != {"0"}:
            yield f"it has capabilities: {self.capabilities}"
        if report["no_new_privs"] != 1:
            yield "it may gain privileges by executing a file"

    def _run_faults(self, report: Mapping[str, Any]) -> Iterator[str]:
        mission, arguments = str(self.request.mission), report["argv"]
        if report["cwd"] != mission:
            yield f"it ran in {report['cwd']}, not in {mission}"
        if arguments[1:3] != ["--mission_dir", mission] and mission not in arguments:
            yield f"its arguments do not name {mission}: {arguments}"
        if self.exit_code != 0:
            yield f"its exit code is {self.exit_code}, not 0"
        if self.drop.path.exists():
            yield "its request file is still there"

    def as_json(self) -> dict[str, Any]:
        """Return the entry for `--json`."""
        report = self.report or {"uids": [None] * 3, "gids": [None] * 3, "groups": None, "no_new_privs": None}
        return {
            "site": self.request.site.name,
            "script": self.request.script,
            "account": self.request.account,
            "uid": report["uids"][1],
            "egid": report["gids"][1],
            "groups": report["groups"],
            "caps": self.capabilities,
            "no_new_privs": report["no_new_privs"],
            "exit_code": self.exit_code,
            "ms": self.ms,
            "job_id": self.job_id,
            "reason": self.reason,
            "faults": self.faults,
        }


def report_of(request: Request, job_id: str) -> Mapping[str, Any] | None:
    """Return what the stand-in script wrote down for this job, if it did."""
    path = request.mission / f"report-{request.script}-{job_id}.json"
    try:
        report = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return dict(report)
