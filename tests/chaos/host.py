"""A host under load: eight sites, both daemons, clients that drop requests, and jobs that count their own runs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import sqlite3
import subprocess
import threading
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self

from attrs import define, field, frozen

from basestation_runner.sandbox import HELPER, namespace
from basestation_runner.sandbox.process import Identity
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon

MISSIONS: Final = 3
SCRIPTS: Final = ("count.sh", "count-now.sh")
"""What runs here; the second one is interactive."""

PATIENCE: Final = 60.0
"""Seconds without any progress after which the host is stuck."""
_LOOK: Final = 0.2
_IDLE: Final = frozenset({"runner-forkserv", "runner-keeper", "runner-become"})  # what the kernel keeps of their titles

# Its first act says that it runs, in one write that appends; so a second run can never go unseen.
_JOB: Final = """\
echo "$RUNNER_JOB_ID" >> "runs/$1" || exit 99
echo "+ $1" >> order
case $3 in
  nap) sleep 0.3 ;;
  gate) read -r _ < gate ;;
esac
echo "- $1" >> order
exit "$2"
"""
_PROFILES: Final = """\
applications:
  - {name: count, scripts: [count.sh]}
  - {name: count-now, scripts: [count-now.sh], priority: interactive}
"""
# One line on stdin is one act; it answers each when it is done. `begin` leaves the file half written until `end`.
_CLIENT: Final = """\
import os, sys
os.umask(0o002)
half = {}
for line in sys.stdin:
    act, path, text = line.rstrip("\\n").split("\\t")
    text = (text + "\\n").encode()
    try:
        if act == "flood":
            folder, name = os.path.split(path)
            words, _, numbers = text.decode().rstrip("\\n").rpartition(" ")
            for number in range(*map(int, numbers.split("-"))):
                with open(f"{folder}/.new-{name}", "w") as file:
                    file.write(words.replace("%", f"{number:06}") + "\\n")
                os.rename(f"{folder}/.new-{name}", f"{folder}/{number:06}-{name}")
        elif act == "rename":
            folder, name = os.path.split(path)
            aside = f"{folder}/.new-{name}"
            with open(aside, "xb") as file:
                file.write(text)
            os.rename(aside, path)
        elif act == "end":
            with half.pop(path) as file:
                file.write(text[len(text) // 2:])
        else:
            file = open(path, "xb", buffering=0)
            if act == "begin":
                file.write(text[:len(text) // 2])
                half[path] = file
            else:
                with file:
                    file.write(text)
        print("done", flush=True)
    except FileExistsError:
        print("exists", flush=True)
"""


@frozen
class Request:
    """A request as its client meant it. `number` orders those of one mission by when they were begun."""

    name: str
    site: str
    mission: Path
    script: str
    exit_code: int
    lasts: str

    @property
    def text(self) -> str:
        return f"{self.mission.parent} {self.mission} {self.mission}/job.log {self.script} {self.words}"

    @property
    def words(self) -> str:
        return f"{self.name} {self.exit_code} {self.lasts}"

    @property
    def runs(self) -> list[str]:
        """The ids of the jobs that ran for it, one for each run."""
        try:
            return (self.mission / "runs" / self.name).read_text().split()
        except FileNotFoundError:
            return []


@frozen
class Job:
    """A row of the ledger."""

    seq: int
    job_id: str
    site: str
    request: str
    state: str
    reason: str | None
    exit_code: int | None
    signal: int | None
    ended: bool


class _Client:
    """A process that writes request files as an account of a site's group."""

    def __init__(self, installation: Installation, site: Site) -> None:
        installation.add_glider(site, f"sg-{site.name}")
        account = installation.account(f"sg-{site.name}")
        command = [*Identity(account).prefix(), installation.program.python, "-IS", "-c", _CLIENT]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        self.pid: Final = self._process.pid

    def act(self, act: str, path: Path, text: str) -> bool:
        """Have it done; return False if a file of that name was there already."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{act}\t{path}\t{text}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer in {"done", "exists"}, answer
        return answer == "done"

    def close(self) -> None:
        self._process.communicate()


class Load:
    """Drops requests at random sites in random ways, in a thread of its own, until it is closed."""

    def __init__(self, host: Host, seed: float, per_second: float) -> None:
        self._host = host
        self._random = seeded(seed)
        self._per_second = per_second
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._error: BaseException | None = None
        self._thread.start()

    def close(self) -> None:
        """Finish what is half written and end. Raises what went wrong."""
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        half: list[tuple[Request, Path]] = []
        try:
            while not self._over.wait(self._random.expovariate(self._per_second)):
                if half and self._random.random() < 0.5:
                    self._host.finish(*half.pop(0))
                    continue
                act = self._random.choice(("place", "place", "rename", "rename", "begin"))
                request = self._host.new_request(self._random)
                path = self._host.drop(request, act, again=self._random.random() < 0.5)
                if act == "begin":
                    half.append((request, path))
            for unfinished in half:
                self._host.finish(*unfinished)
        except BaseException as error:  # noqa: BLE001 - told where it is asked for
            self._error = error


@define(eq=False)
class Host:
    """One installation, its daemons, and everything that was asked of it."""

    installation: Installation
    sites: dict[str, Site] = field(factory=dict)
    requests: dict[str, Request] = field(factory=dict)
    watcher: Daemon | None = None
    helper: Daemon | None = None
    _clients: dict[str, _Client] = field(factory=dict)
    _missions: list[tuple[str, Path, str]] = field(factory=list)
    _numbers: Iterator[int] = field(factory=lambda: iter(range(1, 1 << 60)))
    _gates: list[int] = field(factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()
        for gate in self._gates:
            os.close(gate)

    # Making it

    def add_sites(self, count: int, missions: int = MISSIONS, scripts: Sequence[str] = SCRIPTS) -> None:
        """Make sites whose scripts are run by /bin/sh, each with a client and a few missions."""
        installation = self.installation
        for script in SCRIPTS:
            installation.write(installation.scripts / script, _JOB)
        installation.write(installation.applications_config, _PROFILES)
        for number in range(1, count + 1):
            name = f"site{number}"
            site = installation.add_site(name, name, layout="wide", python_version="/bin/sh", applications="all")
            self.sites[site.name] = site
            self._clients[site.name] = _Client(installation, site)
            home = site.homes / f"sg-{site.name}"
            for which in range(missions):
                self._add_mission(site, home / f"mission{which}", scripts[which % len(scripts)])

    def _add_mission(self, site: Site, mission: Path, script: str) -> None:
        for path in (mission, mission / "runs"):
            self.installation.make_directory(path, site.account, site.group, mode=0o2770)
        gate = mission / "gate"
        os.mkfifo(gate)
        gate.chmod(0o666)
        self._gates.append(os.open(gate, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        self._missions.append((site.name, mission, script))

    def start_helper(self, *arguments: str, wait: bool = True, command: Sequence[str] | None = None) -> Daemon:
        self.forget(self.helper)
        self.helper = self.installation.start_helper(*arguments, wait=wait, command=command)
        return self.helper

    def start_watcher(self, *arguments: str, wait: bool = True, command: Sequence[str] | None = None) -> Daemon:
        self.forget(self.watcher)
        self.watcher = self.installation.start_watcher(*arguments, wait=wait, command=command)
        return self.watcher

    def forget(self, daemon: Daemon | None) -> None:
        """Free what is held for a daemon that has ended; after hundreds of them it counts."""
        if daemon is not None and daemon in self.installation.daemons:
            daemon.close()
            self.installation.daemons.remove(daemon)

    # Asking something of it

    def new_request(self, random: Random, lasts: str | None = None) -> Request:
        """Make up a request; most jobs end at once."""
        site, mission, script = random.choice(self._missions)
        request = Request(
            name=f"r{next(self._numbers):06}",
            site=site,
            mission=mission,
            script=script,
            exit_code=random.choice((0, 0, 0, 3)),
            lasts=lasts or random.choice(("-", "-", "-", "-", "-", "-", "nap", "gate")),
        )
        self.requests[request.name] = request
        return request

    def ask(self, lasts: str = "-", *, mission: int = 0) -> Request:
        """Drop one request for a mission, which are counted over all sites; its job succeeds."""
        name, directory, script = self._missions[mission]
        request = Request(f"r{next(self._numbers):06}", name, directory, script, 0, lasts)
        self.requests[request.name] = request
        self.drop(request)
        return request

    def flood(self, count: int) -> None:
        """Have every client drop many requests as fast as it can; they are spread over all missions."""
        for site, of_site in itertools.groupby(self._missions, key=lambda mission: mission[0]):
            for _, mission, script in (missions := list(of_site)):
                share = count // len(self.sites) // len(missions)
                first = next(self._numbers)
                asked = [Request(f"r{first + n:06}", site, mission, script, 0, "-") for n in range(share)]
                self._numbers = iter(range(first + share, 1 << 60))
                self.requests |= {request.name: request for request in asked}
                template = asked[0].text.replace(asked[0].name, "r%")
                path = self.sites[site].watch_dir / f"flood-{first}.run"
                assert self._clients[site].act("flood", path, f"{template} {first}-{first + share}")

    def drop(self, request: Request, act: str = "rename", *, again: bool = False) -> Path:
        """Have the site's client begin to write the request, or write it; `again`: under a name that was used before.

        A name that is in use is never taken: a client that overwrites its own request loses it, whoever watches.
        """
        rundir = self.sites[request.site].watch_dir
        client = self._clients[request.site]
        if again and act != "rename" and client.act(act, path := rundir / "again.run", request.text):
            return path
        path = rundir / f"{request.name}.run"
        assert client.act(act, path, request.text)
        return path

    def finish(self, request: Request, path: Path) -> None:
        """Have the client write the rest of a request that it has begun."""
        assert self._clients[request.site].act("end", path, request.text)

    def open_gates(self) -> None:
        """Let one more job through at each gate."""
        for gate in self._gates:
            with contextlib.suppress(BlockingIOError):
                os.write(gate, b"\n")

    def _close_gates(self) -> None:
        """Take back what nobody has come for."""
        for gate in self._gates:
            with contextlib.suppress(BlockingIOError):
                while os.read(gate, 1 << 16):
                    pass

    # Looking at it

    def job(self, request: Request) -> Job | None:
        """Return a request's job, None if there is none."""
        return next((job for job in self.jobs() if job.request == request.name), None)

    def waits(self, request: Request) -> bool:
        """Tell whether a request is in its rundir still."""
        return (self.sites[request.site].watch_dir / f"{request.name}.run").exists()

    def jobs(self) -> list[Job]:
        """Return the ledger's rows, in their order. A watcher must be running: root must not make its files."""
        database = sqlite3.connect(f"file:{self.installation.watcher_state}/ledger.db?mode=ro", uri=True)
        try:
            rows = database.execute(
                "SELECT seq, id, site, args, state, reason, exit_code, signal, ended_at IS NOT NULL FROM jobs"
                " ORDER BY seq"
            ).fetchall()
        finally:
            database.close()
        return [
            Job(seq, job_id, site, json.loads(args)[0], state, reason, exit_code, number, bool(ended))
            for seq, job_id, site, args, state, reason, exit_code, number, ended in rows
        ]

    def left_in_rundirs(self) -> list[str]:
        """Return what is in the rundirs besides their locks."""
        return [
            f"{site.name}/{name}"
            for site in self.sites.values()
            for name in os.listdir(site.watch_dir)  # noqa: PTH208 - names are enough
            if name != ".base_runner_lockfile"
        ]

    def marks(self) -> list[str]:
        """Return the helper's marks."""
        state = self.installation.helper_state
        return [f"{kind}/{path.name}" for kind in ("claims", "exits") for path in (state / kind).iterdir()]

    def processes(self) -> dict[int, str]:
        """Return the pids of whatever runs for a job, zombies too, and what each is."""
        ours = {daemon.pid for daemon in self.installation.daemons} | {c.pid for c in self._clients.values()}
        helper = self.installation.accounts.user(HELPER).uid
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                # Not the directory's owner: that of a process which must not be dumped is root.
                status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines())
                pid, uid = int(entry.name), int(status["Uid"].split()[0])
                is_ours = self.installation.accounts.owns(uid) and pid not in ours
                is_idle = uid == helper and status["Name"] in _IDLE and not status["State"].startswith("Z")
                if is_ours and not is_idle and namespace.of(pid) in {None, namespace.of(os.getpid())}:
                    found[pid] = f"{status['Name']} {status['State']} uid {uid}"
        return found

    def keepers(self) -> list[int]:
        """Return the pids of the keepers that have a job."""
        return [
            pid for pid, what in self.processes().items() if what.startswith("runner-keeper:") and " Z " not in what
        ]

    def fork_server(self) -> int | None:
        """Return the pid of the helper's fork server, None if it has none."""
        assert self.helper is not None
        with contextlib.suppress(OSError, ValueError):
            (pid,) = map(int, Path(f"/proc/{self.helper.pid}/task/{self.helper.pid}/children").read_text().split())
            return pid
        return None

    def waiting(self) -> list[int]:
        """Return the pids of the keepers without a job, and of the children that wait for one."""
        server = self.fork_server()
        found: list[int] = [] if server is None else [server]
        for pid in found:
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return [pid for pid in found[1:] if _name_of(pid) == "runner-keeper"]

    def running_jobs(self) -> dict[int, str]:
        """Return the jobs' main processes, by pid, and each one's job."""
        found = {}
        for kind in (self.installation.helper_state / "claims").iterdir():
            with contextlib.suppress(OSError, ValueError, KeyError):
                found[int(json.loads(kind.read_text())["child"]["pid"])] = kind.name
        return found

    def running_of(self, request: Request) -> bool:
        """Tell whether the job of a request runs."""
        job = self.job(request)
        running = self.running_jobs()
        return any(running[pid] == job.job_id for pid in self.processes().keys() & running) if job else False

    def claimed_by(self, pids: set[int]) -> set[str]:
        """Return the jobs that these keepers have claimed."""
        found = set()
        for claim in (self.installation.helper_state / "claims").iterdir():
            with contextlib.suppress(OSError, ValueError, KeyError):
                if json.loads(claim.read_text())["keeper"]["pid"] in pids:
                    found.add(claim.name)
        return found

    # Waiting for it

    def come_to_rest(self) -> list[str]:
        """Wait until everything that was asked for has ended; return what is left when nothing gets on any more."""
        waits = threading.Event()
        seen: object = None
        until = time.monotonic() + PATIENCE
        while left := self._left():
            if left != seen:
                seen = left
                until = time.monotonic() + PATIENCE
            elif time.monotonic() > until:
                return left
            waits.wait(_LOOK)
        self._close_gates()
        return []

    def _left(self) -> list[str]:
        """Return what has not come to rest: requests, or, when all have ended, what is left of them."""
        self.open_gates()
        ended = {job.request for job in self.jobs() if job.ended}
        waiting = [f"request {name} has not ended" for name in self.requests if name not in ended]
        return waiting or [
            *(f"{name} is left" for name in self.left_in_rundirs() + self.marks()),
            *(f"process {pid} is left: {what}" for pid, what in self.processes().items()),
        ]


def _name_of(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return None


def seeded(seed: float) -> Random:
    """Return a source of numbers that are the same for the same seed."""
    return Random(seed)  # noqa: S311 - they are to be repeated


def freeze(pid: int) -> int | None:
    """Stop a process where it is and return its pidfd; None if it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        until(lambda: _state_of(pid) in {"T", "Z", None}, f"process {pid} to stop")
        if _state_of(pid) == "T":
            return pidfd
    os.close(pidfd)
    return None


def thaw(pidfd: int) -> None:
    """Let a stopped process go on."""
    signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    os.close(pidfd)


def kill(pidfd: int) -> None:
    """End a process with SIGKILL, and wait until it has ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert select.select([pidfd], [], [], PATIENCE)[0]
    os.close(pidfd)


def _state_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def describe(counts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
