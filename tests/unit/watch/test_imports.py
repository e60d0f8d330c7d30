"""What runs all the time loads nothing that only the operators' commands need."""

from __future__ import annotations

import subprocess
import sys

SHOW = "import sys, basestation_runner.watch.daemon; print(sorted(sys.modules))"


def test_the_watcher_loads_no_library_for_tables() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SHOW], check=True, capture_output=True, text=True)
    assert "'basestation_runner.watch.daemon'" in done.stdout
    assert "'rich." not in done.stdout
    assert "'pygments" not in done.stdout
