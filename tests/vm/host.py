"""A booted Debian with the package installed, two sites and both daemons; and jobs that are dropped there."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tests.vm.machine import Done, Machine

if TYPE_CHECKING:
    from types import TracebackType

TOPS: Final = {"alpha": "/srv/alpha", "beta": "/home/beta"}
CONFIG: Final = "/etc/baserunner/sites.yaml"
HELPER: Final = "baserunner-exec"
WATCHER: Final = "baserunner-watch"
HELPER_LOG: Final = "/var/log/baserunner-exec/privexec.log"
WATCHER_LOG: Final = "/var/log/baserunner/watch.log"
JOBS: Final = "/sys/fs/cgroup/baserunner.slice/jobs"

_GUEST: Final = Path(__file__).with_name("guest")


@dataclass(frozen=True)
class Request:
    """A request that was dropped, in a mission of its own."""

    site: str
    mission: str
    file: str

    @property
    def log(self) -> str:
        """The job's log."""
        return f"{self.mission}/log"


@dataclass(frozen=True)
class Job:
    """A job that has started."""

    request: Request
    job_id: str
    pid: int

    @property
    def leaf(self) -> str:
        """The job's cgroup."""
        return f"{JOBS}/site-{self.request.site}/job-{self.job_id}"


class Host:
    """The machine, as an administrator and its sites' people use it."""

    def __init__(self, suite: str, program: Path) -> None:
        """Boot a release of Debian and install the package, or the one-file program."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(_GUEST, folder, dirs_exist_ok=True)
            shutil.copy(program, Path(folder) / ("package.deb" if program.suffix == ".deb" else "runner"))
            self._machine: Final = Machine(suite, Path(folder))
        self._numbers = itertools.count(1)
        try:
            self.check("exec bash /in/setup.sh 2>&1")
        except BaseException:
            self._machine.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._machine.close()

    def run(self, script: str) -> Done:
        """Run a bash script as root, which has the functions of guest/lib.sh."""
        return self._machine.run(f". /in/lib.sh\n{script}")

    def check(self, script: str) -> str:
        """Run a bash script as root that must not fail; return what it wrote."""
        return self._machine.check(f". /in/lib.sh\n{script}")

    def wait(self, condition: str) -> None:
        """Wait until a bash command succeeds; fail when it does not within a minute."""
        self.check(f"wait_for {shlex.quote(condition)}")

    def reboot(self) -> None:
        """Boot again, in order."""
        self._machine.reboot()

    def power_cycle(self) -> None:
        """Boot again after a power failure; what is not on the disk is lost."""
        self._machine.power_cycle()

    def main_pid(self, unit: str) -> int:
        """Return the pid of a unit's daemon."""
        return int(self.check(f"main_pid {unit}"))

    def wait_active(self, unit: str, not_pid: int = 0) -> None:
        """Wait until a unit is ready, with another main process than the one named."""
        self.wait(f"active {unit} {not_pid}")

    def is_alive(self, pid: int) -> bool:
        """Return whether there is a process of that number that has not ended."""
        return self.run(f"grep -q '^State:[[:space:]]*[^ZX]' /proc/{pid}/status 2>/dev/null").status == 0

    def drop(self, site: str, act: str, script: str = "Base.py") -> Request:
        """Drop a request in the site's rundir, for a job that does what guest/job.sh says of `act`."""
        number = next(self._numbers)
        top = TOPS[site]
        request = Request(site, f"{top}/missions/m{number}", f"{top}/rundir/r{number}.run")
        line = f"{top}/missions {request.mission} {request.log} {script} --mission_dir {request.mission} --act={act}"
        self.check(f"""
            mkdir -m 2770 {request.mission}; mkfifo -m 660 {request.mission}/go
            chown -R runner-{site}:{site} {request.mission}
            echo {line} >{request.file}.new; chmod 660 {request.file}.new; mv {request.file}.new {request.file}
        """)
        return request

    def started(self, request: Request) -> Job:
        """Wait until the request's job runs."""
        self.wait(f"grep -q '^job ' {request.log} 2>/dev/null")
        _, job_id, _, pid = self.check(f"head -n 1 {request.log}").split()
        return Job(request, job_id, int(pid))

    def start(self, site: str, act: str, script: str = "Base.py") -> Job:
        """Drop a request and wait until its job runs."""
        return self.started(self.drop(site, act, script))

    def finish(self, job: Job, status: int) -> None:
        """Let a job end that waits for it."""
        self.check(f"timeout 60 bash -c 'echo {status} >{job.request.mission}/go'")

    def end(self, job: Job) -> dict[str, Any]:
        """Wait until the watcher has told how the job ended, and return its words."""
        found = f"event {WATCHER_LOG} {job.job_id} '\"job ended\"'"
        told = json.loads(self.check(f"wait_for {shlex.quote(f'{found} >/dev/null')} && {found}"))
        assert isinstance(told, dict)
        return told

    def status(self) -> dict[str, Any]:
        """Return what `runner status --json` tells root."""
        told = json.loads(self.check("runner status --json"))
        assert isinstance(told, dict)
        return told

    def show(self, job: Job) -> dict[str, Any]:
        """Return what `runner show --json` tells root of a job."""
        told = json.loads(self.check(f"runner show --json {job.job_id}"))
        assert isinstance(told, dict)
        return told

    def log_of(self, job: Job) -> str:
        """Return what is in the job's log."""
        return self.check(f"cat {job.request.log}")

    def read(self, *paths: str) -> list[str]:
        """Return the files' contents."""
        return [self.check(f"cat {path}") for path in paths]
