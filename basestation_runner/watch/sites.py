"""All sites of the config together: which directory is whose, when all are decided, the pause, the stop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from basestation_runner.watch.admission import application_for
from basestation_runner.watch.sitewatch import SiteWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from basestation_runner.config.model import Config, Site
    from basestation_runner.watch.rundir import Place
    from basestation_runner.watch.shared import Shared


class Sites:
    """All sites of the config."""

    def __init__(self, config: Config, shared: Shared, *, on_change: Callable[[], None]) -> None:
        """`on_change`: some site has begun or ceased to be watched, or has a new reason."""
        self.places: dict[Place, str] = {}
        """Which site watches which directory."""
        self.is_paused = False
        self.decided = asyncio.Event()
        """Set once every site is watched and was scanned, or is pending."""
        self._shared = shared
        self._on_change = on_change
        self._undecided = set(config.sites)
        self._sites: dict[str, SiteWatch] = {}
        for site in config.sites.values():
            self._add(config, site)

    def __iter__(self) -> Iterator[SiteWatch]:
        return iter(self._sites.values())

    def __getitem__(self, name: str) -> SiteWatch:
        return self._sites[name]

    def __len__(self) -> int:
        return len(self._sites)

    def __contains__(self, name: object) -> bool:
        return name in self._sites

    def start(self) -> None:
        """Begin to look at all sites."""
        for site in self:
            site.start()
        if sharing := sum(site.watches is self._shared.watches for site in self):
            self._shared.log.warning(
                "no inotify instance is left for some sites: one with very many events can delay the others",
                sites=sharing,
                hint="raise the sysctl fs.inotify.max_user_instances",
            )
        if not self._sites:
            self.decided.set()

    async def reconfigure(self, config: Config, commit: Callable[[], None], patience: float) -> None:
        """Go on with other sites. Only those are let go, or taken up, that are new, gone, or not as they were.

        What had begun at a site that is let go is finished; one that hangs is waited for no longer than `patience`.
        """
        gone = []
        for known in self:
            site = config.sites.get(known.site.name)
            if site is None or _whose(site) != _whose(known.site):
                gone.append(known)
            else:
                known.follow(site, partial(application_for, config, site))
        self._undecided.intersection_update(config.sites)
        await self._let_go(gone, commit, patience)
        for known in gone:
            del self._sites[known.site.name]
        for name, site in config.sites.items():
            if name not in self:
                self._add(config, site)
                self[name].start()
        if not self._undecided:
            self.decided.set()
        self._on_change()

    def _add(self, config: Config, site: Site) -> None:
        self._sites[site.name] = SiteWatch(site, self._shared, self, partial(application_for, config, site))

    def scan(self) -> None:
        """Events were lost: look at everything again."""
        for site in self:
            site.doubt()

    def unclaimed(self) -> None:
        """An event came before anybody had subscribed to its watch: whoever is just making one looks again."""
        for site in self:
            site.look_again_after_finding()

    def pause(self) -> None:
        """Take no further requests until `go_on`."""
        self.is_paused = True

    def go_on(self) -> None:
        """Take requests again."""
        self.is_paused = False
        for site in self:
            site.take()

    def has_room(self, name: str) -> None:
        """Fewer jobs of a site wait."""
        if name in self._sites:
            self._sites[name].take()

    def changed(self, name: str) -> None:
        """Called by a site: it is watched and scanned, or it is pending."""
        self._undecided.discard(name)
        if not self._undecided:
            self.decided.set()
        self._on_change()

    async def stop(self, commit: Callable[[], None], patience: float) -> None:
        """Take nothing more, finish what has begun, give the locks back. A hung site is left as it is."""
        self.is_paused = True
        await self._let_go(tuple(self), commit, patience)

    async def _let_go(self, sites: Collection[SiteWatch], commit: Callable[[], None], patience: float) -> None:
        until = self._shared.loop.time() + patience
        await self._all(sites, until, SiteWatch.retire)
        commit()  # asks for the acknowledgement of what was just accepted
        await self._all(sites, until, SiteWatch.release)
        commit()
        for site in sites:
            site.close()

    async def _all(
        self, sites: Iterable[SiteWatch], until: float, ask: Callable[[SiteWatch], asyncio.Future[None] | None]
    ) -> None:
        """Ask something of some sites, and wait for what is asked until that time of the loop."""
        waited_for = [future for site in sites if (future := ask(site)) is not None]
        if waited_for:
            await asyncio.wait(waited_for, timeout=max(0.0, until - self._shared.loop.time()))


def _whose(site: Site) -> tuple[object, ...]:
    """Return what decides where a site's requests are, whose they are, and how its rundir is watched and locked."""
    return site.watch_dir, site.runner_user, site.groups, site.ignore_lock, site.not_supported
