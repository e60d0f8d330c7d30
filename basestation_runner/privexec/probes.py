"""The probes that are under way, in the helper: each has a keeper, as a job has, and holds nobody up."""

import os
import uuid
from collections.abc import Callable
from typing import Any, Final

import structlog

from basestation_runner import protocol
from basestation_runner.config.model import Site
from basestation_runner.privexec.cgroups import Cgroups
from basestation_runner.privexec.forks import Forks
from basestation_runner.privexec.loop import Loop
from basestation_runner.privexec.order import Order
from basestation_runner.privexec.policy import ordered_site

MOST_AT_ONCE: Final = 4
_READ_BYTES: Final = 1 << 16
_ENDED: Final = {
    "outcome": "temporary",
    "reason": "the keeper ended, for instance since the name service did not answer in time",
}

log = structlog.get_logger()

Answer = Callable[[protocol.Message], None]


class Probes:
    """Who waits for which probe; whoever asks for a site that is being probed gets the same answer."""

    def __init__(self, events: Loop, forks: Forks, cgroups: Cgroups) -> None:
        """Nothing happens before `ask`."""
        self._loop = events
        self._forks = forks
        self._cgroups = cgroups
        self._asking: dict[str, list[Answer]] = {}

    def ask(self, site: Site, answer: Answer, asked_by: int) -> None:
        """Find out what a job of the site would be, and tell whoever asks."""
        if site.name in self._asking:
            if answer not in self._asking[site.name]:
                self._asking[site.name].append(answer)
            return
        if len(self._asking) >= MOST_AT_ONCE:
            answer(_event(site.name, outcome="temporary", reason="other sites are being probed"))
            return
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            self._forks.fork(self._order(site), writer, lambda *_: None)
        except OSError as error:
            os.close(reader)
            answer(_event(site.name, outcome="temporary", reason=f"no process can be made: {error.strerror}"))
            return
        finally:
            os.close(writer)
        self._asking[site.name] = [answer]
        self._listen(site.name, reader, asked_by)

    def _order(self, site: Site) -> Order:
        job_id = uuid.uuid4().hex
        return Order.of_probe(job_id, ordered_site(site), self._cgroups.leaf(site.name, job_id))

    def _listen(self, site: str, reader: int, asked_by: int) -> None:
        frames = protocol.FrameDecoder()
        told: dict[str, Any] = _ENDED

        def arrived(_: int) -> None:
            nonlocal told
            data = os.read(reader, _READ_BYTES)
            for message in frames.feed(data):
                told = message
            if not data:
                self._loop.forget(reader)
                os.close(reader)
                self._tell(site, told, asked_by)

        self._loop.watch(reader, arrived)

    def _tell(self, site: str, told: dict[str, Any], asked_by: int) -> None:
        log.info("site probed", site=site, asked_by=asked_by, outcome=told["outcome"], reason=told.get("reason"))
        for answer in self._asking.pop(site):
            answer(_event(site, **told))


def _event(site: str, **facts: object) -> protocol.Message:
    return {"event": "probed", "site": site, **facts}
