"""What all sites of one watcher use, and how long things take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from basestation_runner.watch.inotify import Watches
    from basestation_runner.watch.jobs import Jobs
    from basestation_runner.watch.lanes import Lanes
    from basestation_runner.watch.ledger import Ledger


@frozen(kw_only=True)
class Timing:
    """How long things take, in seconds."""

    settle: float = 2.0  # a file that a scan found is taken when it has not changed for this long
    recheck: float = 60.0
    poll: float = 5.0  # between two looks at a rundir whose filesystem does not tell of everything
    pause: float = 0.2  # between two looks at the same rundir that were asked for by events
    first_wait: float = 1.0  # before a request that could not be judged is tried again; doubles each time
    longest_wait: float = 30.0
    stale: float = 600.0  # a request's age at the first activation beyond which it is set aside
    hung: float = 10.0


@frozen(kw_only=True)
class Shared:
    """What all sites use. `wake` asks for a turn of the loop that ends in a commit."""

    loop: asyncio.AbstractEventLoop
    lanes: Lanes
    watches: Watches
    ledger: Ledger
    jobs: Jobs
    log: FilteringBoundLogger
    timing: Timing
    max_queued: int
    wake: Callable[[], None]
