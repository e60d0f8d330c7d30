"""The keeper: one small process a job, child of the fork server, parent of the job. It outlives the helper.

It decides the job's identity, claims the job, starts it, waits for its end and records it. It reads nothing but its
order, and imports and opens no program file after the fork: an upgrade may be replacing them. A keeper whose job has
ended may get another one: what it has in memory by then need not be made again.
"""

import array
import json
import os
import signal
import socket
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

from basestation_runner import execgroups, processes, proctitle, protocol
from basestation_runner.errors import printable
from basestation_runner.privexec import accounts, ending, job, limits
from basestation_runner.privexec.accounts import Caller, Resolved
from basestation_runner.privexec.claims import Claims
from basestation_runner.privexec.ending import CANCELLED, Ending
from basestation_runner.privexec.identity import Identity
from basestation_runner.privexec.leaf import Leaf, limits_warning
from basestation_runner.privexec.order import NotNowError, Order, OrderedSite, RefusedError

LOOKUP_SECONDS: Final = 30
"""How long the name service may take before the job is put back and tried later."""

_TAIL_BYTES: Final = 4096
_MESSAGE_BYTES: Final = 1 << 16
_RETRY_SECONDS: Final = 5  # a full disk gives no event to wait for


DONE: Final = b"d"
"""To the fork server: the job has ended or was not started, and another one may come."""

PASSED_WITH_ORDER: Final = 2
"""Descriptors that come with a job: a file with its Order, and the pipe for what is to be reported of it."""

_TITLE: Final = "runner-keeper"
"""What ps shows of a keeper; of one that has a job with the site's name after it."""

_SAMPLE: Final = Order(
    job_id="0",
    site=OrderedSite("", "", None, (), None, None, None),
    application="",
    timing_line=False,
    home="/",
    mission_dir="/",
    log_file="/",
    jailed=False,
    script="",
    program=("", ""),
    own_args=(),
    appended_args=(),
    env={},
    request=None,
).to_bytes()
"""An order as any other, for `_rehearse`."""

_MOST_NUMBER: Final = 8


class _ClaimedError(Exception):
    """Another keeper has claimed the job: one whose helper died before it knew."""


class Post(NamedTuple):
    """What every keeper of one helper works with."""

    caller: Caller
    claims: Claims
    cache_dir: str


class _Log(NamedTuple):
    """The job's log, opened and verified by the job itself."""

    descriptor: int
    readable: bool
    start: int

    def write_line(self, level: str, text: str) -> None:
        """Append one line in the legacy daemon's form. A log that cannot be written must not lose the exit record."""
        with suppress(OSError):
            os.write(self.descriptor, f"{_clock(time.time())}: {level}: {printable(text)}\n".encode())

    def tail(self) -> str:
        """Return the last part of what was written since the job began."""
        if not self.readable:
            return ""
        with suppress(OSError):
            size = os.fstat(self.descriptor).st_size
            begin = max(min(self.start, size), size - _TAIL_BYTES)
            return os.pread(self.descriptor, size - begin, begin).decode(errors="replace")
        return ""


class Child:
    """A job's child and what it has told so far."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.socket = link
        self.log: _Log | None = None
        self.started_at = 0.0  # since when its program runs, by the wall clock, which may be stepped
        self.began = 0.0  # the same by the monotonic clock
        self.outcome: dict[str, Any] | None = None
        self.warnings: list[str] = []

    def close(self) -> None:
        """Close what this process has of it."""
        self.socket.close()
        if self.log is not None:
            os.close(self.log.descriptor)

    def end(self) -> None:
        """Let it end, if it has not: it runs nothing without this process's word."""
        self.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def main(link: socket.socket, post: Post) -> NoReturn:
    """Keep the jobs that come on `link`, one after the other, in a fresh fork of the fork server. Never returns."""
    try:
        _settle_in(link, post)
        proctitle.set_title(_TITLE)
        spare = _fork_child(link, post)
        _rehearse()
        while True:
            _, descriptors, _, _ = socket.recv_fds(link, _MOST_NUMBER, PASSED_WITH_ORDER)
            if not descriptors:
                break  # there is no fork server any more, or it has enough keepers
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            order, report = descriptors
            if keep(order, post, report, spare):
                break  # a child that was to signal may be left
            post.claims.release()
            os.close(order)
            os.close(report)
            proctitle.set_title(_TITLE)
            spare = _fork_child(link, post)
            _rehearse()
            link.send(DONE)
    finally:
        os._exit(0)  # a forked process must never return into the fork server's loop


def keep(order: int, post: Post, report: int, child: Child) -> bool:
    """Keep one job from look-up to exit record, with a child that was forked for it; tell whether it had to be ended.

    Says on the pipe `report` how the start went: {"outcome": "started", "pid", "started_at", "uid", "groups",
    "command", "warnings"}, {"outcome": "refused" or "temporary", "reason", "absent"}, or, when another keeper has
    claimed the job, {"outcome": "claimed"}; and after a start {"outcome": "ended", "record"}.
    """
    try:
        wanted = Order.from_bytes(os.pread(order, os.fstat(order).st_size, 0))
        proctitle.set_title(f"{_TITLE}:{wanted.site.name}")
        try:
            who = _start(order, wanted, post, report, child)
        except (RefusedError, NotNowError, _ClaimedError):
            child.end()
            raise
    except RefusedError as error:
        _report(report, outcome="refused", reason=str(error), absent=False)
    except NotNowError as error:
        _report(report, outcome="temporary", reason=str(error), absent=error.absent)
    except _ClaimedError:
        _report(report, outcome="claimed")
    except Exception as error:
        # The process ends by this: whatever it was, the helper's log must have it.
        _report(report, outcome="temporary", reason=f"the keeper failed: {type(error).__name__}: {error}", absent=False)
        raise
    else:
        return _finish(wanted, post, report, child, who)  # should that fail, there is no record, and the job is lost
    return False


def _settle_in(link: socket.socket, post: Post) -> None:
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
    kept = sorted({2, link.fileno(), *post.claims.descriptors})
    for below, above in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(below + 1, above)


def _rehearse() -> None:
    """Go through some of what each job needs: a page costs time when it is first written after a fork, as now."""
    order = Order.from_bytes(_SAMPLE)
    execgroups.decide((0,), {0})
    json.dumps(_mark(order, os.getpid()))
    proctitle.set_title(_TITLE)


def _start(file: int, order: Order, post: Post, report: int, child: Child) -> Identity:
    """Start the job, once; return whom it runs as."""
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
    with suppress(BrokenPipeError, ConnectionResetError):  # it has been killed: seen below, as the end of file
        socket.send_fds(child.socket, [job.ordered(resolved.account, who)], [file])
    command = _release(order, post, child)
    _report(
        report,
        outcome="started",
        pid=child.pid,
        started_at=child.started_at,
        uid=who.uid,
        groups=who.groups,
        command=command,
        warnings=warnings + child.warnings,
    )
    return who


def _release(order: Order, post: Post, child: Child) -> str:
    """Claim the job and let its child go on; return the command that it executes."""
    _claim(order, post, child)
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended already: seen below, as the end of file
        child.socket.send(job.GO)
    _await_exec(child)
    if child.outcome is None or child.outcome["outcome"] != "ready":
        _give_up(order, post, child)
    return str(child.outcome["command"])


def _finish(order: Order, post: Post, report: int, child: Child, who: Identity) -> bool:
    """Wait for the job's end, or see to it, and record it; tell whether it had to be ended."""
    leaf = Leaf(order.cgroup)
    end = Ending(who, child.pid, leaf, is_cancelled=lambda: post.claims.is_cancelled(order.job_id))
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
    if order.timing_line and child.log:
        child.log.write_line("INFO", _timing(order, child.started_at, seconds, code))
    record = {
        "job_id": order.job_id,
        "site": order.site.name,
        "application": order.application,
        "script": order.script,
        "pid": child.pid,
        "exit_code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "limit": reached,
        "started_at": child.started_at,
        "ended_at": ended_at,
        "seconds": seconds,
        "user_seconds": usage.ru_utime,
        "system_seconds": usage.ru_stime,
        "max_rss_kib": usage.ru_maxrss,
        "memory_peak_bytes": leaf.memory_peak(),
        "cgroup_cpu_seconds": leaf.cpu_seconds(),
        "leftover_processes": leaf.processes(),
        "log_tail": child.log.tail() if child.log else "",
        "cancelled": end.reason == CANCELLED,
    }
    _record(post.claims, order.job_id, record, report)
    leaf.remove()
    child.close()
    return end.reason is not None


def _resolve(order: Order, caller: Caller) -> Resolved:
    """Look up account and groups; a name service that hangs ends this process by the alarm, and only this job waits."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LOOKUP_SECONDS)
    try:
        return accounts.resolve(order.site, caller, order.groups)
    finally:
        signal.alarm(0)


def _fork_child(link: socket.socket, post: Post) -> Child:
    """Fork the next job's child, which waits for its order."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        for descriptor in (ours.fileno(), link.fileno(), *post.claims.descriptors):
            os.close(descriptor)
        job.run(theirs, post.cache_dir)
    theirs.close()
    return Child(pid, ours)


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
    return {
        "job_id": order.job_id,
        "site": order.site.name,
        "application": order.application,
        "script": order.script,
        "request": order.request,
        "claimed_at": time.time(),
        "boot_id": processes.boot_id(),
        "keeper": processes.identify(os.getpid()),
        "child": processes.identify(child),
    }


def _await_exec(child: Child) -> None:
    """Take the child's messages until its end of the socket closes: by execve, or because it ended before."""
    while True:
        try:
            data, descriptors = _receive(child.socket)
        except ConnectionResetError:  # it was killed with our word unread; what it has said before still follows
            continue
        if not data:
            child.started_at, child.began = time.time(), time.monotonic()
            return
        message = json.loads(data)
        if descriptors:
            child.log = _Log(descriptors[0], message["readable"], message["start"])
        elif "warnings" in message:
            child.warnings += message["warnings"]
        else:
            child.outcome = message


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = channel.recvmsg(_MESSAGE_BYTES, socket.CMSG_LEN(array.array("i").itemsize))
    descriptors = array.array("i")
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, list(descriptors)


def _give_up(order: Order, post: Post, child: Child) -> NoReturn:
    """Clean up after a child that never executed its program, and raise the reason."""
    _, status = os.waitpid(child.pid, 0)
    post.claims.unclaim(order.job_id)
    Leaf(order.cgroup).remove()
    if child.outcome is None or child.outcome["outcome"] == "ready":
        raise NotNowError(f"its process ended before the program was started (wait status {status})")
    reason = str(child.outcome["reason"])
    if child.outcome["outcome"] == "temporary":
        raise NotNowError(reason)
    if child.log:
        child.log.write_line("ERROR", f"runner: {order.script} (job_id={order.job_id}) was not started: {reason}")
    raise RefusedError(reason)


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
        f"BaseRunner: {order.script} (job_id={order.job_id}) started {_clock(started_at)}, "
        f"completed in {seconds:.2f}s, returncode={code}"
    )


def _clock(when: float) -> str:
    """Return a time in the legacy daemon's form. Nothing here sets a locale, so the month is English."""
    return time.strftime("%H:%M:%S %d %b %Y UTC", time.gmtime(when))


def _report(report: int, **message: Any) -> None:  # noqa: ANN401 - JSON
    with suppress(BrokenPipeError):  # the helper is gone; its successor reads claim and record
        os.write(report, protocol.encode(message))
