"""Facts about the machine and the program, without which figures say nothing."""

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any


def facts(runner: Path, state: Path) -> dict[str, Any]:
    """Return what the figures depend on; `state` is a directory on the disk of the daemons' state."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "filesystem": _filesystem(state),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "program": _version(runner),
        "max_user_instances": int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()),
    }


def _cpu() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _filesystem(path: Path) -> str:
    command = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(path)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _version(runner: Path) -> str:
    return subprocess.run([runner, "--version"], check=True, stdout=subprocess.PIPE, text=True, cwd="/").stdout.strip()
