"""The steps before and after a job, in its keeper: each is a process that becomes the site exactly as the job does.

Profile's before, job's before, job, job's after, profile's after. The profile's last step runs whatever became of the
others, once one of them or the job has begun. A job without steps does not come here.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from basestation_runner.privexec.child import Child, Log
from basestation_runner.privexec.claims import Claims
from basestation_runner.privexec.ending import CANCELLED, SLOW, START_SECONDS, Ending
from basestation_runner.privexec.job import JobPlan, StepPlan, Work
from basestation_runner.privexec.leaf import Leaf
from basestation_runner.privexec.order import PROFILE

STEP_SECONDS: Final = 600
"""How long one step may take; the job's own time does not count it."""

_TOO_SLOW: Final = f"could not be started within {START_SECONDS:.0f} s"


class NotRunError(Exception):
    """A step has begun, and the job is not run: it can never be ordered again, since a step may have had an effect."""

    def __init__(self, reason: str, steps: "Steps", *, cancelled: bool = False) -> None:
        """Keep the reason, how the steps went, and whether somebody has cancelled the job."""
        super().__init__(reason)
        self.steps = steps
        self.cancelled = cancelled


class Setting(NamedTuple):
    """What all steps of one job have in common. `mark` makes the claim's content for the process that runs now."""

    work: Work
    claims: Claims
    spawn: Callable[[], Child]
    mark: Callable[[Child], dict[str, Any]]
    report: Callable[[dict[str, Any]], None]


class Steps:
    """The steps of one job and how they went."""

    def __init__(self, setting: Setting) -> None:
        """Nothing runs before `begin` or `after`."""
        self.results: list[dict[str, Any]] = []
        """Of each step: {"step", "exit_code", "signal", "seconds", "failed"}, the last why it failed, or None."""
        self.had_to_end = False
        """Whether one of them had to be ended."""
        self._setting = setting

    def begin(self, job: Child, plan: JobPlan) -> None:
        """Run the steps before the job, whose child waits, and start that. Raises NotRunError if it must not run."""
        order = self._setting.work.order
        for number in range(len(order.before)):
            self._require_wanted()
            failed = self._run(number, job.log, can_be_cancelled=True)
            if failed is not None:
                self._require_wanted()
                raise NotRunError(f"{order.step_title(number)} {failed}", self)
        self._require_wanted()
        self._note(job)
        job.ending.start_anew()
        job.execute(plan)
        if job.has_executed:
            return
        if job.ending.reason is not None:
            was_cancelled = job.ending.reason == CANCELLED
            reason = "it was cancelled when it was about to run" if was_cancelled else f"it {_TOO_SLOW}"
            raise NotRunError(reason, self, cancelled=was_cancelled)
        raise NotRunError(
            "its process ended before the program was started" if job.fault is None else job.fault.reason, self
        )

    def after(self, log: Log | None, *, did_run: bool, cancelled: bool) -> None:
        """Run the steps after the job, or after what kept it from running: then the profile's alone."""
        order = self._setting.work.order
        if not did_run and not self.results:
            return  # nothing has begun
        for number, step in enumerate(order.after, len(order.before)):
            if step.origin == PROFILE or (did_run and not cancelled):
                failed = self._run(number, log, can_be_cancelled=step.origin != PROFILE)
                if failed is not None and log is not None:
                    log.write_line("ERROR", f"{order.called}: {order.step_title(number)} {failed}")

    @property
    def was_cancelled(self) -> bool:
        """Whether a step was ended because somebody has cancelled the job."""
        return any(result["failed"] == CANCELLED for result in self.results)

    def _require_wanted(self) -> None:
        if self._setting.claims.is_cancelled(self._setting.work.order.job_id):
            raise NotRunError("it was cancelled before it ran", self, cancelled=True)

    def _run(self, number: int, log: Log | None, *, can_be_cancelled: bool) -> str | None:
        """Run one step to its end; return why it failed, or None."""
        work, _, spawn, _, report = self._setting
        order = work.order
        plan = StepPlan(work, number)
        begun = time.monotonic()
        failed: str | None = None
        code: int | None = None
        try:
            made = spawn()
        except OSError as error:
            failed = f"could not be started: {error.strerror}"
        else:
            ending = self._ending(made, can_be_cancelled=can_be_cancelled)
            made.become(work.who, ending, log)
            self._note(made)
            if made.open(plan):
                made.execute(plan)
            ending.wait(time.monotonic() + STEP_SECONDS)
            self.had_to_end = self.had_to_end or ending.reason is not None
            if ending.reason is not None or (order.clears and number >= len(order.before)):
                ending.clear()
            _, status = os.waitpid(made.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            failed = _failure(made, ending.reason, code)
            made.close()
        result = {
            "step": order.step_title(number),
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "seconds": time.monotonic() - begun,
            "failed": failed,
        }
        self.results.append(result)
        report(result)
        return failed

    def _ending(self, child: Child, *, can_be_cancelled: bool) -> Ending:
        order, claims = self._setting.work.order, self._setting.claims
        return Ending(
            self._setting.work.who,
            child.pid,
            Leaf(order.cgroup),
            is_cancelled=lambda: can_be_cancelled and claims.is_cancelled(order.job_id),
        )

    def _note(self, running: Child) -> None:
        """Have the claim name the process that runs now, so that it is waited for should this one be killed."""
        with suppress(OSError):  # on a full disk: then only a cgroup tells what is left of a killed keeper's job
            self._setting.claims.hand_on(self._setting.work.order.job_id, self._setting.mark(running))


def _failure(step: Child, ended_because: str | None, code: int) -> str | None:
    if ended_because == SLOW:
        return _TOO_SLOW
    if not step.has_executed and ended_because is None:
        why = f"its process ended before ({code})" if step.fault is None else step.fault.reason
        return f"could not be started: {why}"
    if ended_because == CANCELLED:
        return CANCELLED
    if ended_because is not None:
        return f"was stopped: it ran longer than {STEP_SECONDS // 60}m"
    if code:
        return f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
    return None
