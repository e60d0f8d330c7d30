"""The helper, `runner privexec`: the only daemon with capabilities, and the keepers that it forks, one for each job.

Imports nothing but the standard library, python-prctl, cgroupspy, structlog and the shared core: what is not loaded
here cannot be turned against the two capabilities. Read daemon, server, policy, keeper, job, identity in that order.
"""
