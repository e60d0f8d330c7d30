"""A stand-in for the basestation's scripts, run by the job's own account: it writes down what it was run as.

A program of its own: nothing of this package is importable where it runs.
"""

import time

STARTED_NS = time.time_ns()  # before anything that takes time

import json  # noqa: E402 - see above
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402


def main() -> None:
    """Write report-SCRIPT-JOB.json into the working directory, whole or not at all, and a line to the log."""
    script = Path(sys.argv[0]).name
    job_id = os.environ.get("RUNNER_JOB_ID", "")
    umask = os.umask(0)
    os.umask(umask)
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    report = {
        "script": script,
        "started_ns": STARTED_NS,
        "executable": sys.executable,
        "argv": sys.argv,
        "uids": os.getresuid(),
        "gids": os.getresgid(),
        "groups": os.getgroups(),
        "capabilities": {name: status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")},
        "no_new_privs": int(status["NoNewPrivs"]),
        "status": status,
        "umask": umask,
        "nice": os.nice(0),
        "cwd": str(Path.cwd()),
        "pid": os.getpid(),
        "session": os.getsid(0),
        "process_group": os.getpgrp(),
        "environment": dict(os.environ),
        "descriptors": _descriptors(),
    }
    path = Path(f"report-{script}-{job_id}.json")
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(report, indent=1) + "\n")
    unfinished.rename(path)
    print(f"{script}: uid {os.getuid()}, gid {os.getgid()}, groups {os.getgroups()}", flush=True)  # noqa: T201 - the log


def _descriptors() -> dict[int, str]:
    """Return the open descriptors and where each leads; the one that lists them is gone before it could be followed."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib would keep the listing open
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - the same
        except FileNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
