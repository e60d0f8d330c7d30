"""A program for test_identity.py: has a job's child take on a site's identity, each time by another program for it.

It is started with the helper's account and capabilities, puts itself into a state that no job should begin in, and
prints for each case what stopped the drop, or what a program that is executed after it finds itself to be.
"""

import ctypes
import json
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

LIB, DIRECTORY, UID, GROUPS = sys.argv[1:5]
sys.path.insert(0, LIB)

from basestation_runner import program  # noqa: E402 - a copy of its own, which this account can read
from basestation_runner.privexec import capabilities, child  # noqa: E402
from basestation_runner.privexec.child import Log  # noqa: E402
from basestation_runner.privexec.identity import Identity  # noqa: E402
from basestation_runner.privexec.job import Execution  # noqa: E402

KEYCTL = {"x86_64": 250, "ppc64le": 271, "s390x": 280}.get(platform.machine(), 219)
ADD_KEY = KEYCTL - 2  # on every architecture that is known here
SESSION = -3

OBSERVER = f"""
import ctypes, json, os, resource
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
status = {{name: value.split() for name, value in lines.items()}}
libc = ctypes.CDLL(None)
keyring = ctypes.create_string_buffer(200)
libc.syscall({KEYCTL}, 6, {SESSION}, keyring, 200)  # KEYCTL_DESCRIBE
secret = libc.syscall({KEYCTL}, 10, {SESSION}, b"user", b"secret", 0)  # KEYCTL_SEARCH
own = 1 << 12 | 1 << 24  # SIGPIPE and SIGXFSZ: Python ignores them by itself
print(json.dumps({{
    "uids": status["Uid"], "gids": status["Gid"], "groups": sorted(status["Groups"], key=int),
    "capabilities": [status[name][0] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"][0], "umask": status["Umask"][0],
    "blocked": int(status["SigBlk"][0], 16), "ignored": int(status["SigIgn"][0], 16) & ~own,
    "leads_session": os.getsid(0) == os.getpid(), "leads_group": os.getpgrp() == os.getpid(),
    "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
    "nice": os.nice(0), "processors": len(os.sched_getaffinity(0)),
    "keyring_owner": keyring.value.split(b";")[1].decode(), "finds_secret": secret > 0,
}}))
"""


class Observer:
    """A plan that has nothing to open, and executes the observer."""

    def opening(self) -> tuple[()]:
        """Nothing."""
        return ()

    def view(self) -> tuple[()]:
        """Nothing."""
        return ()

    def take(self, found: object) -> None:
        """Nothing was looked for."""

    def execution(self, found: object) -> Execution:  # noqa: ARG002 - nothing was looked for
        """Return the observer's command."""
        return Execution("the observer", (sys.executable, "-IS", "-c", OBSERVER), {})


class Patience:
    """Waits for a child as long as that takes."""

    reason = None

    def await_start(self, _channel: int, hear: Callable[[], bool]) -> None:
        """Hear all of it."""
        while hear():
            pass

    def clear(self) -> None:
        """It ends by itself."""


def become_abnormal() -> None:
    """Set whatever a job must not inherit; the helper's groups and nice value are whoever started us's to set."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.syscall(KEYCTL, 1, None, 0, 0, 0) < 0  # KEYCTL_JOIN_SESSION_KEYRING
        or libc.syscall(ADD_KEY, b"user", b"secret", b"content", 7, SESSION) < 0
    ):
        raise OSError(ctypes.get_errno(), "keyring")
    now = capabilities.process_status()
    if now.effective != capabilities.NEEDED or now.ambient != capabilities.NEEDED:
        raise RuntimeError("not started with the two capabilities")


def is_waiting(pid: int) -> bool:
    """Tell whether a process sleeps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def attempt(path: Path) -> dict[str, object]:
    """Drop by this program and return what came of it."""
    procs = Path(DIRECTORY, f"procs-{path.name}")
    procs.touch()
    program.BECOME = str(path)  # type: ignore[misc]
    become = child.open_program()
    made = child.spawn(become)
    os.close(become)
    while not is_waiting(made.pid):  # for its order
        pass
    is_closed = Path(f"/proc/{made.pid}/environ").stat().st_uid == 0  # what is not dumpable shows as root's
    reader, writer = os.pipe()
    who = Identity(int(UID), tuple(map(int, GROUPS.split(","))), cgroup_procs=str(procs))
    made.become(who, Patience(), Log(writer, readable=False, start=0))  # type: ignore[arg-type]
    os.close(writer)
    made.execute(Observer())
    with open(reader, encoding="utf-8") as answer:  # noqa: PTH123 - a descriptor
        text = answer.read()
    os.waitpid(made.pid, 0)
    made.socket.close()
    joined = {"owner": procs.stat().st_uid, "text": procs.read_text()}
    found = json.loads(text) if text else {"stopped": made.fault.reason if made.fault else "by something else"}
    return {**found, "cgroup": joined, "closed": is_closed}


become_abnormal()
programs = sys.argv[5:]
print(json.dumps({Path(path).name: attempt(Path(path)) for path in programs}))  # noqa: T201
