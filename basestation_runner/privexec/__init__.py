"""The helper, `runner privexec`: the only daemon with capabilities, and the keepers that it forks, one for each job.

Imports nothing but the standard library, python-prctl, cgroupspy, structlog and the shared core: what is not loaded
here cannot be turned against the two capabilities. Read daemon, server, policy, keeper, job, child in that order, then
become/, the C program that each job's child is.
"""

import sys

# Where rich is installed, structlog would load it, for a form of lines that is not used here.
sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
