"""The configuration read anew while the watcher runs: the helper first, so that both go by the same one.

Everything that can be slow is done off the loop. Nothing changes unless the new files are right as a whole, here and
for the helper.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from basestation_runner import nss
from basestation_runner.config.faults import sentences
from basestation_runner.config.model import changed
from basestation_runner.errors import RunnerError
from basestation_runner.watch import start
from basestation_runner.watch.errands import HungError
from basestation_runner.watch.rundir import NotReadyError, has_group, needs_restart, owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from basestation_runner.config.model import Config, Site
    from basestation_runner.watch.errands import Errands
    from basestation_runner.watch.helper import Helper
    from basestation_runner.watch.history import Facts
    from basestation_runner.watch.jobs import Jobs

MOST_TOLD: Final = 200
"""Sites, reasons and faults of each kind that an answer lists."""
NO_ANSWER: Final = "the helper does not answer"
NAME_SERVICE: Final = "the name service"


def load(sites: Path, applications: Path | None) -> Config:
    """Return what the files say, or the built-in profiles where no file is. Raises ConfigErrors or RunnerError."""
    with start.begin(sites, applications) as parsing:
        return parsing.config()


class Reload:
    """Reads the configuration anew, once at a time."""

    def __init__(  # noqa: PLR0913 - what a configuration is read by, and what goes by it
        self,
        *,
        read: Callable[[], Config],
        errands: Errands,
        helper: Helper,
        jobs: Jobs,
        trouble: Callable[[], str | None],
        use: Callable[[Config], asyncio.Future[None]],
        log: FilteringBoundLogger,
    ) -> None:
        """`trouble` says why nothing can be changed now, if it cannot.

        `use` goes by another Config at once, and returns what is done when all sites do.
        """
        self._read = read
        self._errands = errands
        self._helper = helper
        self._jobs = jobs
        self._trouble = trouble
        self._use = use
        self._log = log
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Facts]] = set()

    def begin(self) -> asyncio.Task[Facts]:
        """Read the configuration anew; return what is done with an answer to show when that is through."""
        task = asyncio.get_running_loop().create_task(self._run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def ask(self) -> Facts:
        """The same for whoever asks: it is finished also when they do not wait for the answer."""
        return await asyncio.shield(self.begin())

    async def stop(self) -> None:
        """Let go of what is going on."""
        for task in tuple(self._running):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> Facts:
        async with self._lock:
            answer = await self._reload()
        if answer["faults"]:
            self._log.error("configuration not reloaded: what was read before stays in force", faults=answer["faults"])
        else:
            told = {name: answer[name] for name in ("added", "removed", "changed")}
            self._log.info("configuration reloaded", **told, helper=answer["helper"])
            for each in answer["needs_restart"]:
                self._log.warning("site cannot be served before a restart", site=each["site"], reason=each["reason"])
        return answer

    async def _reload(self) -> Facts:
        """Return what has become of it; with `faults` nothing has changed."""
        try:
            config = await self._errands.run("the configuration", self._read)
            sites = config.sites.values()
            faults = await self._errands.run_steps(NAME_SERVICE, lambda get_on: unknown_accounts(sites, get_on))
            restarts = await self._errands.run_steps(NAME_SERVICE, lambda get_on: _restarts(sites, get_on))
            if (trouble := self._trouble()) is not None:
                faults.append(f"not now: {trouble}")
            helper = None if faults else await self._helper.reload()
        except RunnerError as error:
            return _refused(sentences(error))
        except (HungError, nss.LookupFailedError) as error:
            return _refused([str(error)])
        except TimeoutError:
            return _refused([NO_ANSWER])
        if faults or helper:
            return _refused(faults or [f"the helper refuses it: {fault}" for fault in helper or ()])
        changes = changed(self._jobs.config, config)
        await self._use(config)
        told = {*changes["added"], *changes["changed"]}
        return {
            "faults": [],
            **{what: names[:MOST_TOLD] for what, names in changes.items()},
            "helper": "away" if helper is None else "reloaded",
            "held": [{"reason": reason, "jobs": count} for reason, count in self._jobs.held.most_common(MOST_TOLD)],
            "needs_restart": [each for each in restarts if each["site"] in told][:MOST_TOLD],
        }


def unknown_accounts(sites: Iterable[Site], get_on: Callable[[str], None]) -> list[str]:
    """Return, as sentences, which accounts and groups of sites do not exist. Blocking."""
    faults = []
    for site in sites:
        get_on(NAME_SERVICE)
        group = site.groups[0] if site.groups else None
        try:
            if nss.account(site.runner_user) is None:
                faults.append(f"there is no account {site.runner_user} (runner_user of site {site.name})")
            if isinstance(group, str) and nss.group(group) is None:
                faults.append(f"there is no group {group} (the first of groups of site {site.name})")
        except nss.LookupFailedError as error:
            faults.append(f"the name service does not answer: {error} (site {site.name})")
    return faults


def _restarts(sites: Iterable[Site], get_on: Callable[[str], None]) -> list[Facts]:
    """Return the sites whose group this process was started without. Blocking. Raises nss.LookupFailedError."""
    lacking = []
    for site in sites:
        get_on(NAME_SERVICE)
        with suppress(NotReadyError):  # said as a fault
            _, gid = owner(site)
            if not has_group(gid):
                lacking.append({"site": site.name, "reason": needs_restart(gid)})
    return lacking


def _refused(faults: list[str]) -> Facts:
    return {"faults": faults[:MOST_TOLD], "more_faults": max(0, len(faults) - MOST_TOLD)}
