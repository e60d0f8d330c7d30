"""One site's requests that were accepted and are not yet known to be out of the rundir. Pure memory, on the loop.

While a request is here, its file is no new request, whatever tells of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from basestation_runner.watch.ledger import Intake


class InHand:
    """What is in hand, by job and by identity."""

    def __init__(self, known: Iterable[Intake]) -> None:
        """Begin with what the ledger knows."""
        self._requests: dict[str, Intake] = {}
        self._identities: set[bytes] = set()
        self._uncommitted: dict[str, Intake] = {}
        self.stuck: set[str] = set()
        """Jobs whose requests could not be taken out of the rundir."""
        for request in known:
            self._put(request)

    @property
    def job_ids(self) -> frozenset[str]:
        """The jobs whose requests are in hand."""
        return frozenset(self._requests)

    def has(self, identity: bytes) -> bool:
        """Tell whether a file is a request in hand."""
        return identity in self._identities

    def accept(self, request: Intake) -> bool:
        """Take a request that is about to be committed; tell whether it is the first of those."""
        self._put(request)
        self._uncommitted[request.job_id] = request
        return len(self._uncommitted) == 1

    def committed(self) -> list[Intake]:
        """What was accepted has been committed: return it."""
        committed, self._uncommitted = self._uncommitted, {}
        return list(committed.values())

    def in_directory(self, inode: int, *, only_stuck: bool = False) -> list[Intake]:
        """Return the committed requests that came from a directory."""
        return [
            request
            for job_id, request in self._requests.items()
            if request.rundir == inode and job_id not in self._uncommitted and (job_id in self.stuck or not only_stuck)
        ]

    def remove(self, job_id: str) -> bool:
        """A job's request is out of the rundir; tell whether it was still in hand."""
        request = self._requests.pop(job_id, None)
        if request is None:
            return False
        self._identities.discard(request.identity)
        self.stuck.discard(job_id)
        return True

    def _put(self, request: Intake) -> None:
        self._requests[request.job_id] = request
        self._identities.add(request.identity)
