"""A stand-in for a BaseRunnerMulti's programs: with `--serve` its helper, which does nothing, else its watcher.

The watcher has the lock of each rundir of its `--sites_config`, takes requests at once, and writes down the `--tag` of
each in RUNDIR/../ran-by-legacy, as if it had run it. While there is a file RUNDIR/../queue-in-memory it keeps what it
has taken in its memory, and writes it down when that is gone.
"""

import ctypes
import os
import re
import signal
import socket
import struct
import sys
import time
from pathlib import Path

CLOSE_WRITE = 0x8
HEADER = struct.Struct("iIII")
is_over = False


def end(*_: object) -> None:
    global is_over  # noqa: PLW0603 - a signal's handler
    is_over = True


def ready() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])


def watch() -> None:
    config = Path(sys.argv[sys.argv.index("--sites_config") + 1]).read_text()
    rundirs = [Path(found) for found in re.findall(r"watch_dir: (\S+)", config)]
    libc = ctypes.CDLL(None)
    events = libc.inotify_init1(os.O_NONBLOCK)
    watched = {}
    queue: list[tuple[Path, str]] = []
    for rundir in rundirs:
        (rundir / ".base_runner_lockfile").write_text(str(os.getpid()))
        watched[libc.inotify_add_watch(events, os.fsencode(rundir), CLOSE_WRITE)] = rundir
    ready()
    while not is_over:
        for place, tag in [each for each in queue if not (each[0] / "queue-in-memory").exists()]:
            queue.remove((place, tag))
            with (place / "ran-by-legacy").open("a") as log:
                log.write(f"{tag}\n")
        try:
            data = os.read(events, 1 << 16)
        except BlockingIOError:
            time.sleep(0.02)
            continue
        while data:
            watch, _, _, length = HEADER.unpack_from(data)
            name = os.fsdecode(data[HEADER.size : HEADER.size + length].rstrip(b"\0"))
            data = data[HEADER.size + length :]
            path = watched[watch] / name
            if name.endswith(".run") and path.exists():
                words = path.read_text().split()
                path.unlink()
                queue.append((watched[watch].parent, words[words.index("--tag") + 1]))
    for rundir in rundirs:
        (rundir / ".base_runner_lockfile").unlink(missing_ok=True)


signal.signal(signal.SIGTERM, end)
os.umask(0o002)
if "--serve" in sys.argv:
    ready()
    while not is_over:
        time.sleep(0.02)
else:
    watch()
