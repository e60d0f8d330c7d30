"""Rounds of chaos: under load, something is killed at a random moment and started again; then all must come to rest."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from attrs import define, field

from tests.chaos.host import PATIENCE, Host, Load, describe, freeze, kill, seeded, thaw
from tests.chaos.verdict import Harm, faults

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.process import Daemon

SITES: Final = 8
_MAX_RUNNING: Final = "16"
_SHOWN: Final = 20


class ChaosError(Exception):
    """A promise was not kept."""


@define(kw_only=True)
class Report:
    """What a run of rounds came to."""

    seed: int
    rounds: int = 0
    requests: int = 0
    runs: int = 0
    states: Counter[str] = field(factory=Counter)
    acts: Counter[str] = field(factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        """Say it in a few lines."""
        return (
            f"rounds {self.rounds}, requests {self.requests}, runs {self.runs}, lost {self.states['lost']}, "
            f"seconds {self.seconds:.0f}, seed {self.seed}\n"
            f"ends: {describe(self.states)}\n"
            f"acts: {describe(self.acts)}"
        )


@define(eq=False)
class Chaos:
    """The rounds of one seed on one host. Which act comes next depends on the seed; what it hits, on the moment."""

    host: Host
    random: Random
    report: Report
    harm: Harm = field(factory=Harm)
    _waits: threading.Event = field(factory=threading.Event)

    @property
    def acts(self) -> dict[str, tuple[int, Callable[[], None]]]:
        """What may happen in a round, and how often against the others."""
        return {
            "kill the watcher": (4, self._kill_watcher),
            "kill the helper": (4, self._kill_helper),
            "kill both": (3, self._kill_both),
            "kill keepers": (4, self._kill_keepers),
            "kill keepers and the helper": (2, self._kill_keepers_and_helper),
            "kill the fork server": (2, self._kill_fork_server),
            "kill what waits for a job": (2, self._kill_waiting),
            "kill a job": (1, self._kill_job),
            "kill a watcher that is starting": (2, self._kill_starting_watcher),
            "kill a helper that is starting": (2, self._kill_starting_helper),
            "stop the watcher": (1, self._stop_watcher),
            "stop the helper": (1, self._stop_helper),
            "freeze one for a while": (1, self._freeze_one),
        }

    def play(self, rounds: int) -> None:
        """Play some rounds under load, wait for rest, and judge. Raises ChaosError."""
        acts = self.acts
        weights = [weight for weight, _ in acts.values()]
        load = Load(self.host, self.random.random(), per_second=self.random.choice((10.0, 30.0, 60.0)))
        try:
            for _ in range(rounds):
                self._pause(0.6)
                (name,) = self.random.choices(list(acts), weights)
                acts[name][1]()
                self.report.rounds += 1
                self.report.acts[name] += 1
        finally:
            load.close()
        left = self.host.come_to_rest()
        found = [*left, *faults(self.host, self.harm)]
        if found:
            more = len(found) - _SHOWN
            raise ChaosError("\n".join([*found[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]))

    def count(self) -> None:
        """Put the totals into the report."""
        self.report.requests = len(self.host.requests)
        self.report.runs = sum(len(request.runs) for request in self.host.requests.values())
        self.report.states = Counter(job.state for job in self.host.jobs())

    # Acts

    def _kill_watcher(self) -> None:
        self._watcher.kill()
        self._pause(0.3)
        self._start_watcher()

    def _kill_helper(self) -> None:
        self._helper.kill()
        self._pause(0.3)
        self.host.start_helper()

    def _kill_both(self) -> None:
        both = [self._watcher, self._helper]
        self.random.shuffle(both)
        for daemon in both:
            daemon.send_signal(signal.SIGKILL)
        for daemon in both:
            daemon.kill()
        self._pause(0.3)
        if self.random.random() < 0.5:
            self._start_watcher()
            self.host.start_helper()
        else:
            self.host.start_helper()
            self._start_watcher()

    def _kill_keepers(self) -> None:
        """Stop some keepers, see which jobs they have claimed, and kill them."""
        share = self.random.choice((0.2, 0.5, 1.0))
        frozen = {pid: freeze(pid) for pid in self.host.keepers() if self.random.random() < share}
        stopped = {pid: pidfd for pid, pidfd in frozen.items() if pidfd is not None}
        self.harm.without_keeper |= self.host.claimed_by(set(stopped))
        for pidfd in stopped.values():
            kill(pidfd)
        self.report.acts["keepers killed"] += len(stopped)

    def _kill_keepers_and_helper(self) -> None:
        self._helper.kill()
        self._kill_keepers()
        self._pause(0.3)
        self.host.start_helper()

    def _kill_fork_server(self) -> None:
        server = self.host.fork_server()
        if server is None or (pidfd := freeze(server)) is None:
            return
        kill(pidfd)
        status = self._helper.wait(PATIENCE)
        if status != 1:
            raise ChaosError(f"without its fork server the helper ended with status {status}")
        self.host.start_helper()

    def _kill_waiting(self) -> None:
        """Kill keepers without a job and children without an order; one that gets its own meanwhile counts too."""
        for pid in self.host.waiting():
            pidfd = freeze(pid) if self.random.random() < 0.5 else None
            if pidfd is not None:
                self.harm.without_keeper |= self.host.claimed_by({pid})
                self.harm.killed |= {job for job_pid, job in self.host.running_jobs().items() if job_pid == pid}
                kill(pidfd)

    def _kill_job(self) -> None:
        running = self.host.running_jobs()
        for pid in self.random.sample(sorted(running), min(1, len(running))):
            pidfd = freeze(pid)
            if pidfd is None:
                continue
            if self.host.running_jobs().get(pid) != running[pid]:  # it has ended, and another has its pid
                thaw(pidfd)
                continue
            self.harm.killed.add(running[pid])
            kill(pidfd)

    def _kill_starting_watcher(self) -> None:
        self._watcher.kill()
        starting = self.host.start_watcher("--max-running", _MAX_RUNNING, wait=False)
        self._pause(1.5)
        starting.kill()
        self._start_watcher()

    def _kill_starting_helper(self) -> None:
        self._helper.kill()
        starting = self.host.start_helper(wait=False)
        self._pause(1.0)
        starting.kill()
        self.host.start_helper()

    def _stop_watcher(self) -> None:
        self._stop(self._watcher)
        self._start_watcher()

    def _stop_helper(self) -> None:
        self._stop(self._helper)
        self.host.start_helper()

    def _freeze_one(self) -> None:
        daemon = self.random.choice((self._watcher, self._helper))
        daemon.send_signal(signal.SIGSTOP)
        self._pause(2.0)
        daemon.send_signal(signal.SIGCONT)

    def _stop(self, daemon: Daemon) -> None:
        status = daemon.stop()
        if status != 0:
            raise ChaosError(f"{daemon.name} ended with status {status}")

    def _start_watcher(self) -> None:
        self.host.start_watcher("--max-running", _MAX_RUNNING)

    @property
    def _watcher(self) -> Daemon:
        assert self.host.watcher is not None
        return self.host.watcher

    @property
    def _helper(self) -> Daemon:
        assert self.host.helper is not None
        return self.host.helper

    def _pause(self, most: float) -> None:
        self._waits.wait(self.random.uniform(0, most))


def run(installation: Installation, *, seed: int, rounds: int, rest_every: int = 20) -> Report:
    """Play rounds of this seed, with a rest and a judgement now and then. Raises ChaosError."""
    report = Report(seed=seed)
    began = time.monotonic()
    with Host(installation) as host:
        host.add_sites(SITES)
        host.start_helper()
        host.start_watcher("--max-running", _MAX_RUNNING)
        chaos = Chaos(host, seeded(seed), report)
        try:
            while report.rounds < rounds:
                chaos.play(min(rest_every, rounds - report.rounds))
        finally:
            chaos.count()
            report.seconds = time.monotonic() - began
        for daemon in (chaos._watcher, chaos._helper):
            chaos._stop(daemon)
    return report
