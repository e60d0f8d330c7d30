"""Emptying a site before it is given back: what waits becomes requests again, written by the watcher itself."""

from typing import Final

from attrs import define

from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.migrate.context import Context
from basestation_runner.operate.client import Facts

_LOOKS: Final = 6
"""How often jobs that wait may be seen to stay, before they are said to be what cannot be written back."""


@define
class _Draining:
    """How far it has come."""

    context: Context
    returned: int = 0
    running: int = 0
    stayed: int = 0

    def is_over(self) -> bool:
        """Have what waits written back, and tell whether there is anything left. Raises RunnerError."""
        site = self._written_back()
        self.running = site["running"]
        if site["queued"] and not self.running:
            self.stayed += 1
        if self.stayed > _LOOKS:
            raise RunnerError(
                f"{site['queued']} jobs of site {self.context.site} wait and cannot be written back as requests",
                hint="runner jobs --state queued; cancel them, then call this again",
            )
        return not site["queued"] and (not self.running or self.context.is_now)

    def _written_back(self) -> Facts:
        """Have no request taken and no job started, and what waits written back; return what is left."""
        with self.context.client() as client:
            client.ask("hold", site=self.context.site, closed=True)
            while count := client.ask("return", site=self.context.site)["returned"]:
                self.returned += count
            return client.ask("site", site=self.context.site)

    def __str__(self) -> str:
        jobs = "a running job" if self.running == 1 else f"{self.running} running jobs"
        return f"waiting for {jobs} of site {self.context.site} (--now does not wait)"


def drain(context: Context) -> None:
    """Have nothing of the site waiting or running, and take no more. With `is_now` what runs goes on by itself.

    Raises RunnerError when jobs wait that no request can ask for, or the watcher that has the site does not answer.
    """
    try:
        if context.ask_site() is None:
            return
    except TemporaryError:
        if context.journal.facts.get("is_watched"):
            raise
        return
    draining = _Draining(context)
    context.wait(draining.is_over, None, lambda: str(draining))
    if draining.returned:
        context.say(f"jobs that waited and are requests again: {draining.returned}")
    if draining.running:
        context.say(
            f"jobs of site {context.site} that go on beside what {context.unit_name} starts: {draining.running}"
        )
