"""`probe`: what a site's job would be, without one. A child drops as a job's does, says what it is, and runs nothing.

The helper forks a prober, which in a keeper's place looks the account up and makes a cgroup, and forks that child.
Neither can hold the helper up: each step has a deadline.
"""

import json
import os
import resource
import select
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import structlog

from basestation_runner import processes, proctitle, protocol
from basestation_runner.config.model import Site
from basestation_runner.privexec import accounts, capabilities, identity
from basestation_runner.privexec.accounts import Caller
from basestation_runner.privexec.cgroups import Cgroups
from basestation_runner.privexec.ending import Ending
from basestation_runner.privexec.identity import DropError, Identity
from basestation_runner.privexec.leaf import Leaf, limits_warning
from basestation_runner.privexec.loop import Loop
from basestation_runner.privexec.order import NotNowError, RefusedError

MOST_AT_ONCE: Final = 4
LOOKUP_SECONDS: Final = 30.0
_DROP_SECONDS: Final = 5.0
_READ_BYTES: Final = 1 << 16

_CGROUP_FILES: Final = {
    "job": ("memory.high", "memory.max"),
    "site": ("cpu.max", "cpu.weight", "pids.max"),
}
_SETS: Final = ("inheritable", "permitted", "effective", "ambient")

log = structlog.get_logger()

Answer = Callable[[protocol.Message], None]
Facts = dict[str, Any]


class Probes:
    """The probes that are under way; who asks for a site that is being probed gets the same answer."""

    def __init__(self, events: Loop, caller: Caller, cgroups: Cgroups) -> None:
        """Nothing happens before `ask`."""
        self._loop = events
        self._caller = caller
        self._cgroups = cgroups
        self._asking: dict[str, list[Answer]] = {}

    def ask(self, site: Site, answer: Answer, asked_by: int) -> None:
        """Find out what a job of the site would be, and tell whoever asks."""
        if site.name in self._asking:
            if answer not in self._asking[site.name]:
                self._asking[site.name].append(answer)
            return
        if len(self._asking) >= MOST_AT_ONCE:
            answer(_event(site.name, outcome="temporary", reason="other sites are being probed"))
            return
        leaf = self._cgroups.leaf(site.name, uuid.uuid4().hex)
        try:
            pid, reader = _fork(lambda writer: _probe(site, self._caller, leaf, writer))
        except OSError as error:
            answer(_event(site.name, outcome="temporary", reason=f"no process can be made: {error.strerror}"))
            return
        self._asking[site.name] = [answer]
        received = bytearray()

        def arrived(_: int) -> None:
            data = os.read(reader, _READ_BYTES)
            received.extend(data)
            if not data:
                self._loop.forget(reader)
                os.close(reader)
                os.waitpid(pid, 0)
                self._tell(site.name, bytes(received), asked_by)

        self._loop.watch(reader, arrived)

    def _tell(self, site: str, data: bytes, asked_by: int) -> None:
        try:
            told = json.loads(data)
        except ValueError:  # its alarm has ended it
            reason = f"the name service did not answer within {LOOKUP_SECONDS:g} s"
            told = {"outcome": "temporary", "reason": reason}
        log.info("site probed", site=site, asked_by=asked_by, outcome=told["outcome"], reason=told.get("reason"))
        for answer in self._asking.pop(site):
            answer(_event(site, **told))


def _event(site: str, **facts: object) -> protocol.Message:
    return {"event": "probed", "site": site, **facts}


def _fork(work: Callable[[int], None]) -> tuple[int, int]:
    """Have a child do something and end; return its pid, and the descriptor from which comes what it writes."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        try:
            processes.close_all_but({0, 1, 2, writer})
            work(writer)
        finally:
            os._exit(0)  # it must never return into the helper's loop
    os.close(writer)
    return pid, reader


def _probe(site: Site, caller: Caller, leaf: str | None, writer: int) -> None:
    """Be the prober: find out all there is to know, and say it in one JSON object."""
    signal.set_wakeup_fd(-1)
    proctitle.set_title(f"runner-probe:{site.name}")
    try:
        told = _look(site, caller, Leaf(leaf))
    except RefusedError as error:
        told = {"outcome": "refused", "reason": str(error)}
    except (NotNowError, OSError) as error:
        told = {"outcome": "temporary", "reason": str(error)}
    os.write(writer, json.dumps(told).encode())


def _look(site: Site, caller: Caller, leaf: Leaf) -> Facts:
    signal.setitimer(signal.ITIMER_REAL, LOOKUP_SECONDS)  # SIGALRM ends this process
    resolved = accounts.resolve(site, caller)
    signal.setitimer(signal.ITIMER_REAL, 0)
    procs, faults = leaf.make(memory_high_mb=site.memory_high_mb, memory_max_mb=site.memory_max_mb)
    warnings = [limits_warning(faults)] if faults else []
    if resolved.some_removed:
        warnings.append("the account lacks some of the site's supplementary groups")
    who = Identity(resolved.account.uid, resolved.groups, changes=caller.changes, cgroup_procs=procs)
    try:
        told = _told_by_child(who, leaf)
        limits = dict(_cgroup_limits(leaf))
    finally:
        leaf.remove()
    if told["outcome"] == "probed":
        told["warnings"] = warnings + told["warnings"]
        told |= {"account": resolved.account.name, "cgroup_root": leaf.path, "cgroup_limits": limits}
    return told


def _told_by_child(who: Identity, leaf: Leaf) -> Facts:
    """Have a child become `who`; return what it says of itself, or why it has not come to that."""
    pid, reader = _fork(lambda writer: _become(who, writer))
    try:
        data = _read(reader, time.monotonic() + _DROP_SECONDS)
    finally:
        Ending(who, pid, leaf, is_cancelled=lambda: False).clear()  # its site may have stopped it
        os.waitpid(pid, 0)
        os.close(reader)
    try:
        return dict(json.loads(data))
    except ValueError:
        return {"outcome": "temporary", "reason": "its process ended, or hung, before it had become the site"}


def _read(reader: int, until: float) -> bytes:
    """Return what comes until the other end closes, or the time is over."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    data = b""
    while poll.poll(max(0.0, until - time.monotonic()) * 1000):
        part = os.read(reader, _READ_BYTES)
        if not part:
            break
        data += part
    return data


def _become(who: Identity, writer: int) -> None:
    """Be that child: drop as a job's child does, and say what has come of it.

    It has the helper's memory, other sites' environments in it: nobody of the site can look into a process that is not
    dumpable, which the drop sees to.
    """
    try:
        identity.prepare()
        warnings = identity.drop(who)
        told = {"outcome": "probed", **_self(), "warnings": warnings}
    except (DropError, OSError) as error:
        told = {"outcome": "refused", "reason": f"its identity could not be taken on: {error}"}
    os.write(writer, json.dumps(told).encode())


def _self() -> Facts:
    """Return what this process is, in the kernel's words."""
    now = capabilities.process_status()
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    return {
        "uids": now.uids[:3],
        "gids": now.gids[:3],
        "groups": now.groups,
        "capabilities": {name: getattr(now, name) for name in _SETS},
        "no_new_privs": now.no_new_privs,
        "umask": now.umask,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": len(os.sched_getaffinity(0)),
        "limits": {name.removeprefix("RLIMIT_").lower(): resource.getrlimit(getattr(resource, name)) for name in names},
        "cgroup": _own_cgroup(),
    }


def _own_cgroup() -> str | None:
    """Return this process's cgroup of version 2, from the hierarchy's root; None if there is none."""
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as lines:
        return next((line[3:].rstrip("\n") for line in lines if line.startswith("0::")), None)


def _cgroup_limits(leaf: Leaf) -> Iterator[tuple[str, str]]:
    """Yield the limits that the kernel has for such a job, its own and its site's."""
    if leaf.path is None:
        return
    for directory, of in ((leaf.path, "job"), (os.path.dirname(leaf.path), "site")):
        for file in _CGROUP_FILES[of]:
            with suppress(OSError), open(f"{directory}/{file}", encoding="ascii") as text:
                yield file, text.read().strip()
