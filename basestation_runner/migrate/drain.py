"""Emptying sites before they are given back: what waits becomes requests again, written by the watcher itself."""

from typing import Final

from attrs import define

from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.migrate.context import Context

_LOOKS: Final = 6
"""How often jobs that wait may be seen to stay, before they are said to be what cannot be written back."""


@define
class _Draining:
    """How far a site's draining has come."""

    context: Context
    site: str
    returned: int = 0
    running: int = 0
    stayed: int = 0

    def is_over(self) -> bool:
        """Have what waits written back, and tell whether there is anything left. Raises RunnerError."""
        queued, self.running = self._written_back()
        if queued and not self.running:
            self.stayed += 1
        if self.stayed > _LOOKS:
            raise RunnerError(
                f"{queued} jobs of site {self.site} wait and cannot be written back as requests",
                hint="runner jobs --state queued; cancel them, then call this again",
            )
        return not queued and (not self.running or self.context.is_now)

    def _written_back(self) -> tuple[int, int]:
        """Have no request taken and no job started, and what waits written back; return what waits and runs still."""
        with self.context.client() as client:
            client.ask("hold", site=self.site, closed=True)
            while count := client.ask("return", site=self.site)["returned"]:
                self.returned += count
            left = client.ask("site", site=self.site)
            return left["queued"], left["running"]

    def __str__(self) -> str:
        jobs = "a running job" if self.running == 1 else f"{self.running} running jobs"
        return f"waiting for {jobs} of site {self.site} (--now does not wait)"


def drain(context: Context) -> None:
    """Have nothing of the sites waiting or running, and take no more. With `is_now` what runs goes on by itself.

    Raises RunnerError when jobs wait that no request can ask for, or the watcher that has the sites does not answer.
    """
    if context.is_running(context.setting.watcher_unit):
        context.wait_for_watcher()
    try:
        sites = [site for site in context.sites if context.ask_site(site) is not None]
        with context.client() as client:
            for site in sites:
                client.ask("hold", site=site, closed=True)
    except TemporaryError:
        if context.journal.facts.get("is_watched"):
            raise
        return
    for site in sites:
        draining = _Draining(context, site)
        context.wait(draining.is_over, None, draining.__str__)
        if draining.returned:
            context.say(f"jobs of site {site} that waited and are requests again: {draining.returned}")
        if draining.running:
            context.say(f"jobs of site {site} that go on beside what {context.unit_name} starts: {draining.running}")
