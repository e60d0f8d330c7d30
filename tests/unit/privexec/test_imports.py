"""What runs with capabilities: the helper loads as little foreign code as it can."""

from __future__ import annotations

import subprocess
import sys

ALLOWED = {"basestation_runner", "prctl", "_prctl", "cgroupspy", "structlog", "attr", "attrs", "cattrs", "ruamel"}
NEEDED_BY_THOSE = {"typing_extensions"}  # by cattrs and structlog on older Pythons

SHOW = """
import sys
builtin = {name.partition(".")[0] for name in sys.modules}
import basestation_runner.privexec.daemon
found = {name.partition(".")[0] for name in sys.modules} - builtin - sys.stdlib_module_names
print(*sorted(found))
"""


def test_the_helper_loads_its_few_libraries_and_no_framework() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW], check=True, capture_output=True, text=True)
    found = set(done.stdout.split())
    assert {"basestation_runner", "prctl"} <= found
    assert found <= ALLOWED | NEEDED_BY_THOSE
