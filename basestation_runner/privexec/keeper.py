"""The keeper: one small process a job, child of the fork server, parent of the job. It outlives the helper.

It decides the job's identity, claims the job, starts it, waits for its end and records it. It reads nothing but its
order, and imports and opens no program file after the fork, since an upgrade may be replacing them: the child's program
has been opened before. A keeper whose job has ended may get another one: what it has in memory by then need not be made
again.
"""

import os
import resource  # noqa: F401 - wait4 returns something of it; nothing may be imported after the fork
import signal
import socket
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

from basestation_runner import processes, proctitle, protocol
from basestation_runner.privexec import accounts, ending, limits, probe
from basestation_runner.privexec.accounts import Caller, Resolved
from basestation_runner.privexec.child import Child, clock, receive, spawn
from basestation_runner.privexec.claims import Claims
from basestation_runner.privexec.ending import CANCELLED, SLOW, Ending
from basestation_runner.privexec.identity import Identity
from basestation_runner.privexec.job import JobPlan, Work
from basestation_runner.privexec.leaf import Leaf, limits_warning
from basestation_runner.privexec.order import NotNowError, Order, RefusedError
from basestation_runner.privexec.steps import NotRunError, Setting, Steps

LOOKUP_SECONDS: Final = 30
"""How long the name service may take before the job is put back and tried later."""

_RETRY_SECONDS: Final = 5  # a full disk gives no event to wait for


DONE: Final = b"d"
"""To the fork server: the job has ended or was not started, and another one may come."""

PASSED_WITH_ORDER: Final = 2
"""Descriptors that come with a job: a file with its Order, and the pipe for what is to be reported of it."""

_TITLE: Final = "runner-keeper"
"""What ps shows of a keeper; of one that has a job with the site's name after it."""

_MOST_NUMBER: Final = 8


class _ClaimedError(Exception):
    """Another keeper has claimed the job: one whose helper died before it knew."""


class Post(NamedTuple):
    """What every keeper of one helper works with."""

    caller: Caller
    claims: Claims
    cache_dir: str


def main(link: socket.socket, post: Post, become: int) -> NoReturn:
    """Keep the jobs that come on `link`, one after the other, in a fresh fork of the fork server. Never returns.

    `become` is the open program of their children.
    """
    try:
        _settle_in({link.fileno(), become, *post.claims.descriptors})
        proctitle.set_title(_TITLE)
        spare = _spare(become)
        while True:
            _, descriptors = receive(link, _MOST_NUMBER, PASSED_WITH_ORDER)
            if not descriptors:
                break  # there is no fork server any more, or it has enough keepers
            order, report = descriptors
            if keep(order, post, report, spare, become):
                break  # what an unruly job was ended in is not used for another one
            post.claims.release()
            os.close(order)
            os.close(report)
            proctitle.set_title(_TITLE)
            spare = _spare(become)
            link.send(DONE)
    finally:
        os._exit(0)  # a forked process must never return into the fork server's loop


def keep(order: int, post: Post, report: int, spare: Child | None, become: int) -> bool:
    """Keep one job from look-up to exit record, with a child that waits for it; tell whether it had to be ended.

    Says on the pipe `report` how the start went: {"outcome": "started", "pid", "started_at", "account", "uid",
    "groups", "command", "argv", "env", "warnings"}, {"outcome": "refused" or "temporary", "reason", "absent"}, or, when
    another keeper has claimed the job, {"outcome": "claimed"}; of each step that has ended {"outcome": "step", …}; and
    after a start, or when steps have run and the job cannot be run any more, {"outcome": "ended", "record"}. Of a
    probe it says {"outcome": "probed", …}.
    """
    try:
        wanted = Order.from_bytes(os.pread(order, os.fstat(order).st_size, 0))
        proctitle.set_title(f"{_TITLE}:{wanted.site.name}")
        child = spare or _started(become)
        if wanted.is_probe:
            _probe(wanted, post, report, child)
            return False
        try:
            steps = _start(wanted, post, report, child, become)
        except (RefusedError, NotNowError, _ClaimedError):
            child.end()
            raise
        except NotRunError as error:
            return _finish_unrun(wanted, post, report, child, error)
    except RefusedError as error:
        _report(report, outcome="refused", reason=str(error), absent=False)
    except NotNowError as error:
        _report(report, outcome="temporary", reason=str(error), absent=error.absent)
    except _ClaimedError:
        _report(report, outcome="claimed")
    except Exception as error:
        # The process ends by this: whatever it was, the helper's log must have it. Of a job that has been claimed
        # nobody can say by now that it has not been started; what this process leaves tells the helper.
        if not post.claims.is_holding:
            reason = f"the keeper failed: {type(error).__name__}: {error}"
            _report(report, outcome="temporary", reason=reason, absent=False)
        raise
    else:
        # Should that fail, there is no record, and the job is lost.
        return _finish(wanted, post, report, child, steps)
    return False


def _spare(become: int) -> Child | None:
    """Start a child before there is a job for it, which then need not wait for that. Return None if that cannot be."""
    with suppress(OSError):
        return spawn(become)
    return None


def _settle_in(kept: set[int]) -> None:
    """Let go of everything that is the fork server's, and hear what that alone has heard.

    What it ignores is ignored here too: signals that are meant for the helper.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ending.ignore_wake()
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    processes.close_all_but({0, 1, 2} | kept)


def _started(become: int) -> Child:
    try:
        return spawn(become)
    except OSError as error:
        raise NotNowError(f"the process that becomes it cannot be started: {error.strerror}") from error


def _probe(order: Order, post: Post, report: int, child: Child) -> None:
    """Say what a job of the site would be, by a child that becomes one as far as its program."""
    try:
        resolved, who, warnings = _prepare(order, post, child)
        told = probe.probed(order, resolved, who, child, post.cache_dir)
    finally:
        child.end()
        Leaf(order.cgroup).remove()
    told["warnings"] = warnings + told["warnings"]
    _report(report, outcome="probed", **told)


def _prepare(order: Order, post: Post, child: Child) -> tuple[Resolved, Identity, list[str]]:
    """Decide whom the child becomes, make its cgroup, and tell it; return that and warnings."""
    resolved = _resolve(order, post.caller)
    leaf = Leaf(order.cgroup)
    procs, faults = leaf.make(memory_high_mb=order.site.memory_high_mb, memory_max_mb=order.site.memory_max_mb)
    address_space, warnings = limits.apply(order, leaf)
    if faults:
        warnings.append(limits_warning(faults))
    if resolved.some_removed:
        warnings.append("the account lacks some of the site's supplementary groups: the job runs without them")
    who = Identity(
        resolved.account.uid,
        resolved.groups,
        changes=post.caller.changes,
        cgroup_procs=procs,
        address_space=address_space,
    )
    child.become(who, Ending(who, child.pid, leaf, is_cancelled=lambda: post.claims.is_cancelled(order.job_id)))
    return resolved, who, warnings


def _start(order: Order, post: Post, report: int, child: Child, become: int) -> Steps | None:
    """Start the job, once, after the steps before it; return its steps if it has any."""
    resolved, who, warnings = _prepare(order, post, child)
    work = Work(order, resolved.account, who, post.cache_dir)
    steps = None
    if order.before or order.after:
        steps = Steps(
            Setting(
                work=work,
                claims=post.claims,
                spawn=lambda: spawn(become),
                mark=lambda running: _mark(order, running.pid),
                report=lambda result: _report(report, outcome="step", **result),
            )
        )
    plan = JobPlan(work)
    _release(order, plan, post, child, steps)
    _report(
        report,
        outcome="started",
        pid=child.pid,
        started_at=child.started_at,
        account=resolved.account.name,
        uid=who.uid,
        groups=who.groups,
        warnings=warnings + child.warnings + plan.warnings,
        **plan.told,
    )
    return steps


def _release(order: Order, plan: JobPlan, post: Post, child: Child, steps: Steps | None) -> None:
    """Claim the job and let its child go on, after the steps before it."""
    _claim(order, post, child)
    if not child.open(plan):
        _give_up(order, post, child)
    if steps is not None and order.before:
        steps.begin(child, plan)
    else:
        child.execute(plan)
    if not child.has_executed:
        _give_up(order, post, child)


def _finish_unrun(order: Order, post: Post, report: int, child: Child, unrun: NotRunError) -> bool:
    """Run what has to be run although the job is not, and record why; tell whether something had to be ended."""
    child.socket.close()
    child.ending.clear()  # its site may have stopped it
    os.waitpid(child.pid, 0)
    reason = str(unrun)
    if child.log:
        child.log.write_line("ERROR", f"{order.called} was not started: {reason}")
    unrun.steps.after(child.log, did_run=False, cancelled=unrun.cancelled)
    record = {
        **_about(order, child),
        "started_at": None,
        "ended_at": time.time(),
        "not_run": reason,
        "cancelled": unrun.cancelled,
        **_left(order, child, unrun.steps),
    }
    _conclude(order, post, report, child, record)
    return unrun.steps.had_to_end


def _finish(order: Order, post: Post, report: int, child: Child, steps: Steps | None) -> bool:
    """Wait for the job's end, or see to it, and record it; tell whether something had to be ended."""
    leaf, end = Leaf(order.cgroup), child.ending
    runtime = order.limits.get(limits.RUNTIME)
    end.wait(None if runtime is None else child.began + runtime)
    if end.reason is not None or order.clears:
        end.clear()
    _, status, usage = os.wait4(child.pid, 0)
    ended_at, seconds = time.time(), time.monotonic() - child.began
    code = os.waitstatus_to_exitcode(status)
    reached = limits.RUNTIME if end.reason == limits.RUNTIME else None
    if end.reason is None and code != 0 and leaf.ran_out_of_memory():
        reached = limits.MEMORY
    if reached is not None and child.log:
        child.log.write_line("ERROR", limits.told(order, reached))
    if end.reason == SLOW and child.log:
        child.log.write_line("ERROR", f"{order.called} was killed: it did not get to its program in time")
    if order.timing_line and child.log:
        child.log.write_line("INFO", _timing(order, child.started_at, seconds, code))
    if steps is not None:
        steps.after(child.log, did_run=True, cancelled=end.reason == CANCELLED)
    record = {
        **_about(order, child),
        "exit_code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "limit": reached,
        "started_at": child.started_at,
        "ended_at": ended_at,
        "seconds": seconds,
        "user_seconds": usage.ru_utime,
        "system_seconds": usage.ru_stime,
        "max_rss_kib": usage.ru_maxrss,
        "cancelled": end.reason == CANCELLED or (steps is not None and steps.was_cancelled),
        **_left(order, child, steps),
    }
    _conclude(order, post, report, child, record)
    return end.reason is not None or (steps is not None and steps.had_to_end)


def _about(order: Order, child: Child) -> dict[str, object]:
    """Return what a record says of every job."""
    return {
        "job_id": order.job_id,
        "site": order.site.name,
        "application": order.application,
        "script": order.script,
        "pid": child.pid,
        "exit_code": None,
        "signal": None,
        "limit": None,
    }


def _left(order: Order, child: Child, steps: Steps | None) -> dict[str, object]:
    """Return what a record says of a job with all of its steps, when everything is over."""
    leaf = Leaf(order.cgroup)
    return {
        "memory_peak_bytes": leaf.memory_peak(),
        "cgroup_cpu_seconds": leaf.cpu_seconds(),
        "leftover_processes": leaf.processes(),
        "log_tail": child.log.tail() if child.log else "",
        **({} if steps is None else {"steps": steps.results}),
    }


def _conclude(order: Order, post: Post, report: int, child: Child, record: dict[str, object]) -> None:
    _record(post.claims, order.job_id, record, report)
    Leaf(order.cgroup).remove()
    child.close()


def _resolve(order: Order, caller: Caller) -> Resolved:
    """Look up account and groups; a name service that hangs ends this process by the alarm, and only this job waits."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LOOKUP_SECONDS)
    try:
        return accounts.resolve(order.site, caller, order.groups)
    finally:
        signal.alarm(0)


def _claim(order: Order, post: Post, child: Child) -> None:
    """Mark the job as started before it can start.

    Raises _ClaimedError when it has been started before, or NotNowError.
    """
    try:
        is_claimed = post.claims.claim(order.job_id, _mark(order, child.pid))
    except OSError as error:
        raise NotNowError(f"the claim cannot be written: {error.strerror}") from error
    if not is_claimed:
        raise _ClaimedError


def _mark(order: Order, child: int) -> dict[str, object]:
    """Return what a claim says: by whom the job is kept, and which process of it runs now."""
    return {
        "job_id": order.job_id,
        "site": order.site.name,
        "application": order.application,
        "script": order.script,
        "request": order.request,
        "dispatch": order.facts,
        "claimed_at": time.time(),
        "boot_id": processes.boot_id(),
        "keeper": processes.identify(os.getpid()),
        "child": processes.identify(child),
    }


def _give_up(order: Order, post: Post, child: Child) -> NoReturn:
    """Clean up after a child that never executed its program, and raise the reason."""
    _, status = os.waitpid(child.pid, 0)
    post.claims.unclaim(order.job_id)
    Leaf(order.cgroup).remove()
    fault = child.fault
    if fault is None:
        if child.ending.reason == SLOW:
            raise NotNowError(f"it could not be started within {ending.START_SECONDS:g} s")
        if child.ending.reason == CANCELLED:
            raise NotNowError("it was cancelled while it was being started")
        raise NotNowError(f"its process ended before the program was started (wait status {status})")
    if fault.passes:
        raise NotNowError(fault.reason)
    if child.log:
        child.log.write_line("ERROR", f"{order.called} was not started: {fault.reason}")
    raise RefusedError(fault.reason)


def _record(claims: Claims, job_id: str, record: dict[str, object], report: int) -> None:
    """Write the exit record and tell the helper.

    While it cannot be written (a full disk), this process is the only one that knows: it tells the helper all the same,
    and tries again until it is written, or the watcher knows and the job's claim has been pruned.
    """
    try:
        claims.record_exit(job_id, record)
    except OSError:
        is_written = False
    else:
        is_written = True
    _report(report, outcome="ended", record=record)
    while not is_written:
        time.sleep(_RETRY_SECONDS)
        if claims.claimed(job_id) is None:
            return
        with suppress(OSError):
            claims.record_exit(job_id, record)
            is_written = True


def _timing(order: Order, started_at: float, seconds: float, code: int) -> str:
    return (
        f"BaseRunner: {order.script} (job_id={order.job_id}) started {clock(started_at)}, "
        f"completed in {seconds:.2f}s, returncode={code}"
    )


def _report(report: int, **message: Any) -> None:  # noqa: ANN401 - JSON
    with suppress(BrokenPipeError):  # the helper is gone; its successor reads claim and record
        os.write(report, protocol.encode(message))
