"""A program for test_identity.py: takes on a site's identity again and again, each time with some steps left out.

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
from pathlib import Path

LIB, DIRECTORY, UID, GROUPS, CASES = sys.argv[1:]
sys.path.insert(0, LIB)

from basestation_runner import syscalls  # noqa: E402 - the program's own copy, which this account can read
from basestation_runner.privexec import capabilities, identity  # noqa: E402

KEYCTL = syscalls._SYS_KEYCTL[platform.machine()]
ADD_KEY = KEYCTL - 2  # on every architecture that is known there
SESSION = -3

OBSERVER = f"""
import ctypes, json, os, resource
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
status = {{name: value.split() for name, value in lines.items()}}
libc = ctypes.CDLL(None)
keyring = ctypes.create_string_buffer(200)
libc.syscall({KEYCTL}, 6, {SESSION}, keyring, 200)  # KEYCTL_DESCRIBE
secret = libc.syscall({KEYCTL}, 10, {SESSION}, b"user", b"secret", 0)  # KEYCTL_SEARCH
# SIGPIPE and SIGXFSZ: Python ignores them by itself; 32 and 33 are the C library's, ignored below posix_spawn.
own = 1 << 12 | 1 << 24 | 1 << 31 | 1 << 32
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


def become_abnormal() -> None:
    """Set whatever a job must not inherit; the helper's groups and nice value are whoever started us's to set."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    syscalls.join_new_session_keyring()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ADD_KEY, b"user", b"secret", b"content", 7, SESSION) < 0:
        raise OSError(ctypes.get_errno(), "add_key")
    now = capabilities.process_status()
    if now.effective != capabilities.NEEDED or now.ambient != capabilities.NEEDED:
        raise RuntimeError("not started with the two capabilities")


def attempt(number: int, removed: list[str], *, lies: bool) -> dict[str, object]:
    """Drop without some steps and return what came of it; with `lies`, the kernel's words read as they should."""
    procs = Path(DIRECTORY, str(number))
    groups = tuple(map(int, GROUPS.split(",")))
    who = identity.Identity(int(UID), groups, cgroup_procs=str(procs))
    reader, writer = os.pipe()
    if os.fork() == 0:
        for name in ("PREPARATION", "STEPS"):
            left = tuple(step for step in getattr(identity, name) if step.__name__ not in removed)
            setattr(identity, name, left)
        if lies:
            right = capabilities.ProcessStatus(
                uids=(who.uid,) * 4, gids=(groups[0],) * 4, groups=groups, umask=identity.UMASK, blocked_signals=0,
                ignored_signals=0, inheritable=0, permitted=0, effective=0, ambient=0, no_new_privs=True,
            )  # fmt: skip
            capabilities.process_status = lambda: right
        try:
            identity.prepare()
            identity.drop(who)
            os.dup2(writer, 1)
            os.execv(sys.executable, [sys.executable, "-IS", "-c", OBSERVER])  # noqa: S606 - as a job is started
        except identity.DropError as error:
            os.write(writer, json.dumps({"stopped": str(error)}).encode())
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, encoding="utf-8") as answer:  # noqa: PTH123 - a descriptor
        text = answer.read()
    os.wait()
    joined = procs.exists() and {"owner": procs.stat().st_uid, "text": procs.read_text()}
    return {**json.loads(text or '{"stopped": "by something else"}'), "cgroup": joined}


become_abnormal()
cases = json.loads(CASES)
print(json.dumps([attempt(n, case["removed"], lies=case["lies"]) for n, case in enumerate(cases)]))  # noqa: T201
