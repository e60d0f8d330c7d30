"""What the watcher can tell of itself, as plain dicts: the one source of everything that shows a state.

Memory and ledger are read in portions, so that no answer holds the loop up, however many sites and jobs there are.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from basestation_runner import __version__
from basestation_runner.config.model import fingerprint
from basestation_runner.watch.admission import would_run
from basestation_runner.watch.history import MOST_ROWS
from basestation_runner.watch.sitewatch import NOT_YET

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from basestation_runner.config.additions import Additions
    from basestation_runner.watch.callers import Caller
    from basestation_runner.watch.errands import Errands
    from basestation_runner.watch.helper import Helper
    from basestation_runner.watch.history import Facts, History, Wanted
    from basestation_runner.watch.jobs import Jobs
    from basestation_runner.watch.sites import Sites
    from basestation_runner.watch.sitewatch import SiteWatch

SITES_IN_A_PORTION: Final = 100
MOST_TOLD: Final = 300
"""Characters of a reason."""
_WHAT: Final = "the ledger"


@frozen(kw_only=True)
class Report:
    """Tells what is so now. Raises HungError, TooMuchError or sqlite3.Error when the ledger does not answer.

    `trouble` says why the watcher as a whole does not go on, if it does not.
    """

    sites: Sites
    jobs: Jobs
    helper: Helper
    history: History
    errands: Errands
    trouble: Callable[[], str | None]
    started_at: float

    async def status(self, caller: Caller, since: float) -> Facts:
        """Return the whole in figures, what runs, what waits longest, and what went wrong since then."""
        seen = None if caller.sites is None else sorted(caller.sites)
        mine = [site for site in self.sites if caller.may_use(site.site.name)]
        running = [job.seq for job in self.jobs.in_flight if caller.may_use(job.site)]
        stuck = [job for job in self.jobs.stuck if caller.may_use(job.site)]
        queued = (
            sum(self.jobs.queued(site.site.name) for site in mine) if seen is not None else self.jobs.total_queued()
        )
        failures, lost, rows, waiting = await self.errands.run(
            _WHAT,
            lambda: (
                self.history.failures(seen, since),
                self.history.lost(seen, since),
                self.history.with_numbers(running[:MOST_ROWS]),
                self.history.first_queued(seen),
            ),
        )
        return {
            "watcher": {
                "pid": os.getpid(),
                "program": __version__,
                "started_at": self.started_at,
                "trouble": self.trouble(),
                "hold": self._hold(""),
            },
            "helper": self.helper.facts | {"same_config": self.has_same_config()},
            "sites": {
                **{state: sum(_state(site) == state for site in mine) for state in ("watching", "starting", "pending")},
                "held": sum(site.site.name in self.jobs.holds for site in mine),
            },
            "queued": queued,
            "running": len(running),
            "jobs_running": self.told(rows),
            "oldest_waiting": next(iter(self.told(waiting)), None),
            "stuck": {
                "jobs": len(stuck),
                "first": next(iter(self._brief(stuck)), None),
            },
            "since": since,
            "lost": lost,
            "failures": self.told(failures),
        }

    async def accepted_first(self) -> dict[str, float]:
        """Return, for each site of which jobs wait, when the oldest of them was accepted."""
        waiting = [site.site.name for site in self.sites if self.jobs.queued(site.site.name)]
        rows = await self.errands.run(_WHAT, lambda: self.history.oldest_queued(waiting)) if waiting else []
        return {facts["site"]: facts["accepted_at"] for facts in rows}

    def states(self) -> dict[str, str]:
        """Return the state of each site, by its name."""
        return {site.site.name: _state(site) for site in self.sites}

    @property
    def held(self) -> int:
        """How many sites are held."""
        return sum(site.site.name in self.jobs.holds for site in self.sites)

    async def ran_since(self, since: float) -> list[Facts]:
        """Return what has run since then, the newest first."""
        return await self.errands.run(_WHAT, lambda: self.history.ran_since(since))

    async def details(self, job_ids: Sequence[str]) -> dict[str, Facts]:
        """Return everything about some jobs, by their ids."""
        rows = await self.errands.run(_WHAT, lambda: [self.history.with_prefix(each, None) for each in job_ids])
        return {facts["id"]: facts for found in rows for facts in found}

    async def some_sites(self, caller: Caller, after: str) -> Facts:
        """Return the next sites by name, and whether there are more."""
        names = sorted(site.site.name for site in self.sites if caller.may_use(site.site.name))
        names = [name for name in names if name > after]
        portion = [self.sites[name] for name in names[:SITES_IN_A_PORTION]]
        waiting = [site.site.name for site in portion if self.jobs.queued(site.site.name)]
        oldest: dict[str, Facts] = {}
        if waiting:
            rows = await self.errands.run(_WHAT, lambda: self.history.oldest_queued(waiting))
            oldest = {facts["site"]: facts for facts in self.told(rows)}
        return {
            "sites": [self._site(site) | {"oldest_waiting": oldest.get(site.site.name)} for site in portion],
            "more": len(names) > len(portion),
        }

    async def some_jobs(self, wanted: Wanted) -> Facts:
        """Return jobs, the newest first, and whether there may be more."""
        rows = await self.errands.run(_WHAT, lambda: self.history.jobs(wanted))
        return {"jobs": self.told(rows), "more": bool(rows)}

    async def matching(self, prefix: str, caller: Caller) -> list[Facts]:
        """Return everything about the job whose id begins so; the ids if there are several such jobs."""
        seen: Sequence[str] | None = None if caller.sites is None else sorted(caller.sites)
        rows = await self.errands.run(_WHAT, lambda: self.history.with_prefix(prefix, seen))
        return self.told(rows) if len(rows) == 1 else rows

    async def of_request(self, site: str, name: str) -> Facts | None:
        """Return the job that a request has become."""
        rows = await self.errands.run(_WHAT, lambda: self.history.of_request(site, name))
        return next(iter(self.told(rows)), None)

    async def longest_queued(self, sites: Sequence[str], most: int) -> list[Facts]:
        """Return the jobs of some sites that have waited longest, the oldest first."""
        return await self.errands.run(_WHAT, lambda: self.history.longest_queued(sites, most))

    def place(self, site: SiteWatch) -> Facts:
        """Return where a site's requests go, and how its paths are to be written in them."""
        entry, place = site.site, site.place
        return self._site(site) | {
            "rundir": entry.watch_dir,
            "device": None if place is None else place.device,
            "inode": None if place is None else place.inode,
            "jailed": entry.jailed,
            "roots": [entry.jail_root] if entry.jailed else list(entry.roots),
            "scripts": sorted({script for name in entry.applications for script in self._scripts(name)}),
            "any_script": self.jobs.config.default_application in entry.applications,
        }

    def would_run(self, site: str, script: str, additions: Additions) -> Facts:
        """Return what a request for this would be run with. Raises RequestError when it would not be accepted."""
        return would_run(self.jobs.config, self.jobs.config.sites[site], script, additions)

    def has_changed(self, job: Facts) -> bool | None:
        """Tell whether a job's profile is another one than when it was started; None if it is not known what it was."""
        dispatch = job["dispatch"]
        if not isinstance(dispatch, dict) or "revision" not in dispatch:
            return None
        name = job["application"]
        return name not in self.jobs.config.applications or dispatch["revision"] != self.jobs.config.revision(name)

    def told(self, rows: Iterable[Facts]) -> list[Facts]:
        """Add to jobs from the ledger what only memory knows: why each waits, where its log is on the host."""
        return [self._told(row) for row in rows]

    def _told(self, row: Facts) -> Facts:
        job = self.jobs.job(row["id"])
        told = dict(row)
        if job is not None:
            told["state"] = job.state  # the ledger's is a moment older
            told["reason"] = self.jobs.reason(job) if job.state == "queued" else None
        told["reason"] = told["reason"] and told["reason"][:MOST_TOLD]
        return told

    def _brief(self, jobs: Collection[Any]) -> Iterable[Facts]:
        for job in islice(jobs, 1):
            yield {
                "id": job.job_id,
                "site": job.site,
                "script": job.script,
                "reason": self.jobs.reason(job)[:MOST_TOLD],
            }

    def _site(self, site: SiteWatch) -> Facts:
        name = site.site.name
        return {
            "site": name,
            "state": _state(site),
            "reason": site.reason and site.reason[:MOST_TOLD],
            "remarks": [remark[:MOST_TOLD] for remark in site.remarks.values()],
            "hold": self._hold(name),
            "queued": self.jobs.queued(name),
            "running": self.jobs.running(name),
        }

    def _hold(self, name: str) -> Facts | None:
        hold = self.jobs.holds.get(name)
        return None if hold is None else {"by": hold.held_by, "at": hold.held_at, "closed": hold.closed}

    def _scripts(self, application: str) -> tuple[str, ...]:
        return self.jobs.config.applications[application].claims

    def has_same_config(self) -> bool | None:
        """Tell whether the helper has read the same config; None if it has not said."""
        theirs = self.helper.facts["config"]
        return None if theirs is None else theirs == fingerprint(self.jobs.digests)


def _state(site: SiteWatch) -> str:
    if site.reason is None:
        return "watching"
    return "starting" if site.reason == NOT_YET else "pending"
