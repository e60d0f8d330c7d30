"""`make chaos`: kill -9 at random moments under load, many times, and see that nothing is lost and nothing runs twice.

CHAOS_ROUNDS says how many rounds, CHAOS_SEED with which random numbers, CHAOS_KEEP where everything is kept to look at
when a promise was broken. Needs root.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import SystemRandom

from basestation_runner.errors import RunnerError
from basestation_runner.sandbox import with_accounts
from tests.chaos.rounds import ChaosError, run


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main() -> int:
    rounds = int(os.environ.get("CHAOS_ROUNDS", "200"))
    seed = int(os.environ.get("CHAOS_SEED") or SystemRandom().randrange(1 << 32))
    say(f"CHAOS_SEED={seed} CHAOS_ROUNDS={rounds}")
    try:
        with with_accounts() as sandbox, sandbox.installation() as installation:
            try:
                say(run(installation, seed=seed, rounds=rounds))
            except BaseException:
                if keep := os.environ.get("CHAOS_KEEP"):
                    installation.save(Path(keep))
                raise
    except (ChaosError, RunnerError) as error:
        say("\n".join([str(error), *getattr(error, "__notes__", [])]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
