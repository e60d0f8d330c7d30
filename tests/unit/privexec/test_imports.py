"""What runs with capabilities: the helper loads as little foreign code as it can."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import basestation_runner

ALLOWED = {"basestation_runner", "prctl", "_prctl", "cgroupspy", "structlog", "attr", "attrs"}
NEEDED_BY_THOSE = {"typing_extensions"}  # by structlog on older Pythons

SHOW = """
import sys
builtin = {name.partition(".")[0] for name in sys.modules}
import basestation_runner.privexec.daemon
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
found = loaded - builtin - sys.stdlib_module_names
print(*sorted(found))
"""


SHOW_ALL = """
import sys
sys.path[:0] = sys.argv[1:]
import basestation_runner.privexec.forkserver
print(*sorted(name for name, module in sys.modules.items() if module is not None))
"""


def test_the_helper_loads_its_few_libraries_and_no_framework() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW], check=True, capture_output=True, text=True)
    found = set(done.stdout.split())
    assert {"basestation_runner", "prctl"} <= found
    assert found <= ALLOWED | NEEDED_BY_THOSE


def test_the_fork_server_loads_no_more_than_keepers_use() -> None:
    # Isolated: an editable installation has Python load more at its start.
    here = str(Path(basestation_runner.__file__).parents[1])
    command = [sys.executable, "-IS", "-c", SHOW_ALL, here, *filter(None, sys.path)]
    found = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert "basestation_runner.privexec.keeper" in found
    foreign = {name.partition(".")[0] for name in found} - sys.stdlib_module_names
    assert foreign - {"__main__"} == {"basestation_runner", "prctl", "_prctl"}
    large = {"asyncio", "dataclasses", "inspect", "logging", "pathlib", "sqlite3", "subprocess", "threading"}
    assert not large & found
