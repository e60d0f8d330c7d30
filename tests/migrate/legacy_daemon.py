"""A stand-in for the legacy daemon of one site, a program of its own: lock, inotify, one job after the other.

legacy_daemon.py [OPTIONS] RUNDIR. A request's job writes down its `--tag` in RUNDIR/../ran-by-legacy when it
begins, in RUNDIR/../ended-by-legacy when it ends, and that is when the file after `--gate` exists.
"""

import ctypes
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

CLOSE_WRITE = 0x8
HEADER = struct.Struct("iIII")
JOB = """
echo "$1" >>ran-by-legacy
while [ -n "$2" ] && [ ! -e "$2" ]; do sleep 0.02; done
echo "$1" >>ended-by-legacy
"""

rundir = Path(sys.argv[-1])
lock = rundir / ".base_runner_lockfile"
is_over = False


def end(*_: object) -> None:
    global is_over  # noqa: PLW0603 - a signal's handler
    is_over = True


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def take_lock() -> None:
    try:
        pid = int(lock.read_text())
    except (OSError, ValueError):
        pid = 0
    if pid and is_alive(pid):
        sys.exit(f"held by {pid}")
    lock.write_text(str(os.getpid()))


def run(request: Path) -> None:
    """Run a request's job, and remove it then."""
    if not (request.exists() and stat.S_ISREG(request.stat().st_mode)):
        return
    words = request.read_text().split()
    tag = words[words.index("--tag") + 1]
    gate = words[words.index("--gate") + 1] if "--gate" in words else ""
    subprocess.run(["/bin/sh", "-c", JOB, "job", tag, gate], cwd=rundir.parent, start_new_session=True, check=False)
    request.unlink(missing_ok=True)


def main() -> None:
    signal.signal(signal.SIGTERM, end)
    os.umask(0o002)
    take_lock()
    libc = ctypes.CDLL(None)
    events = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(events, os.fsencode(rundir), CLOSE_WRITE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    while not is_over:
        try:
            data = os.read(events, 1 << 16)
        except BlockingIOError:
            time.sleep(0.02)
            continue
        while data:
            *_, length = HEADER.unpack_from(data)
            name = os.fsdecode(data[HEADER.size : HEADER.size + length].rstrip(b"\0"))
            data = data[HEADER.size + length :]
            if name.endswith(".run"):
                run(rundir / name)
    lock.unlink(missing_ok=True)


main()
