"""The dispatch record: what one job is started with, frozen when it is ordered, and what may stop that.

The helper makes it from its own configuration; plain values, since its keeper reads it in another process, which knows
no configuration.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

PROFILE: Final = "profile"
"""The origin of a step that is the application's own, and not the job's."""


class RefusedError(Exception):
    """The job must not run, now or later; the text says why to whoever dropped the request."""


class NotNowError(Exception):
    """The job cannot be started at this moment; the same order may be tried again.

    `absent`: the account or its effective group was not found, which a directory service that is late looks like.
    """

    def __init__(self, reason: str, *, absent: bool = False) -> None:
        """Keep the reason and whether something was not found."""
        super().__init__(reason)
        self.absent = absent


class OrderedSite(NamedTuple):
    """The part of a site's entry that counts for one of its jobs; each field is the entry's."""

    name: str
    runner_user: str
    groups: Sequence[str | int] | None
    roots: Sequence[str]
    jail_root: str | None
    memory_high_mb: int | None
    memory_max_mb: int | None


class Step(NamedTuple):
    """A program with its arguments that runs before or after a job, and whether PROFILE or the job says so."""

    origin: str
    argv: Sequence[str]

    def title(self, field: str) -> str:
        """Return what people call it, given the field that holds it."""
        return f"the {'application' if self.origin == PROFILE else 'job'}'s {field} {self.argv[0]}"


class Sandbox(NamedTuple):
    """What a job in a sandbox sees: each input and output with the place of the host that it must not lead out of."""

    network: bool
    inputs: Sequence[Sequence[str]]
    outputs: Sequence[Sequence[str]]


class Order(NamedTuple):
    """One job to start: the site and the application from the helper's own config, the rest from the request.

    `jailed`: its paths are as seen inside the site's jail. `program` is the interpreter and the script's path, or the
    application's command; `own_args` what the request gives it, jailed paths still as in the jail, `appended_args` what
    the application adds. `env` is what site, application and job set. `request` is what our own watcher can make its
    entry of the job from, should it have lost it; None for a legacy one's. `groups` is what the job has narrowed its
    site's to, None if it has not. `limits` are the application's and the job's: `runtime` in seconds, `memory` in
    bytes, `cpu` in per cent of a processor, `tasks`; `limit_texts` says them and the site's to people. `clears`: what
    the job leaves behind is killed. `cgroup` is where the job's is to be made, None for nowhere. `before` and `after`
    are the steps in the order in which they run. `added_env` names those of `env` that the job adds, which nothing of
    the application's own gets. `launcher` starts a parallel job's `tasks`. `facts` are kept of all this for people.
    """

    job_id: str
    site: OrderedSite
    application: str
    timing_line: bool
    home: str
    mission_dir: str
    log_file: str
    jailed: bool
    script: str
    program: Sequence[str]
    own_args: Sequence[str]
    appended_args: Sequence[str]
    env: Mapping[str, str]
    request: Mapping[str, Any] | None
    groups: Sequence[str | int] | None = None
    limits: Mapping[str, int] = {}
    limit_texts: Mapping[str, str] = {}
    clears: bool = False
    cgroup: str | None = None
    before: Sequence[Step] = ()
    after: Sequence[Step] = ()
    added_env: Sequence[str] = ()
    launcher: str | None = None
    tasks: int = 1
    sandbox: Sandbox | None = None
    facts: Mapping[str, Any] = {}

    @property
    def called(self) -> str:
        """What lines in the job's own log call it."""
        return f"runner: {self.script} (job_id={self.job_id})"

    @property
    def steps(self) -> list[Step]:
        """All steps; their places in this are their numbers."""
        return [*self.before, *self.after]

    def step_title(self, number: int) -> str:
        """Return what people call a step."""
        return self.steps[number].title("pre_exec" if number < len(self.before) else "post_exec")

    @classmethod
    def of_probe(cls, job_id: str, site: OrderedSite, cgroup: str | None) -> "Order":
        """Return the order to find out what a job of the site would be, and to run nothing."""
        return cls(
            job_id=job_id,
            site=site,
            application="",
            timing_line=False,
            home="/",
            mission_dir="/",
            log_file="/",
            jailed=False,
            script="",
            program=(),
            own_args=(),
            appended_args=(),
            env={},
            request=None,
            cgroup=cgroup,
        )

    @property
    def is_probe(self) -> bool:
        """Whether it runs nothing."""
        return not self.program

    def to_bytes(self) -> bytes:
        """Return what `from_bytes` makes an equal order of."""
        return json.dumps({**self._asdict(), "site": self.site._asdict()}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Order":
        """Return the order that another process wrote."""
        fields = json.loads(data)
        for name in ("before", "after"):
            fields[name] = [Step(*step) for step in fields[name]]
        if fields["sandbox"] is not None:
            fields["sandbox"] = Sandbox(*fields["sandbox"])
        return cls(**{**fields, "site": OrderedSite(**fields["site"])})
