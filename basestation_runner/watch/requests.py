"""The one table of what can be asked on the control socket, and what each request does.

Whoever asks may be anybody on the host: nothing but what is in the table, in exactly its form, is looked at.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import uuid
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from basestation_runner import nss, protocol
from basestation_runner.config.additions import AdditionsError, of_data
from basestation_runner.runfile import RequestError
from basestation_runner.watch.callers import UnknownCallerError
from basestation_runner.watch.errands import HungError
from basestation_runner.watch.history import Facts, TooMuchError, Wanted
from basestation_runner.watch.jobs import NotAllowedError
from basestation_runner.watch.ledger import Hold, NewJob
from basestation_runner.watch.states import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from structlog.typing import FilteringBoundLogger

    from basestation_runner.watch.callers import Caller, Callers
    from basestation_runner.watch.jobs import Jobs
    from basestation_runner.watch.ledger import Ledger
    from basestation_runner.watch.report import Report
    from basestation_runner.watch.sites import Sites

LONGEST_NAME: Final = 255
MOST_NAMES: Final = 100
COMMIT_PATIENCE: Final = 10.0
"""Seconds in which what was asked for must be in the ledger; else whoever asked is told that it may come later."""
RETURNED_AT_ONCE: Final = 50
NO_SUCH_SITE: Final = "there is no such site, or it is not yours"
NO_SUCH_JOB: Final = "there is no such job, or it is not of a site of yours"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()


def _is_names(value: object) -> bool:
    return value is None or (isinstance(value, list) and len(value) <= MOST_NAMES and all(map(_is_name, value)))


def _is_name_or_none(value: object) -> bool:
    return value is None or _is_name(value)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 40


def _is_time_or_none(value: object) -> bool:
    return value is None or _is_time(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_count_or_none(value: object) -> bool:
    return value is None or _is_count(value)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


@frozen
class Form:
    """How a request must look, and whether only those may ask who may ask everything."""

    fields: Mapping[str, Callable[[object], bool]]
    for_operators: bool = False


REQUESTS: Final[Mapping[str, Form]] = {
    "status": Form({"since": _is_time}),
    "sites": Form({"after": _is_name}),
    "site": Form({"site": _is_name}),
    "jobs": Form(
        {
            "sites": _is_names,
            "states": _is_names,
            "script": _is_name_or_none,
            "since": _is_time_or_none,
            "before": _is_count_or_none,
            "limit": _is_count,
        }
    ),
    "job": Form({"job": protocol.is_job_id}),
    "job of request": Form({"site": _is_name, "name": _is_name}),
    "cancel": Form({"job": protocol.is_job_id}),
    "rerun": Form({"job": protocol.is_job_id}),
    "modify": Form({"job": protocol.is_job_id, "application": _is_name}),
    "would run": Form(
        {
            "site": _is_name,
            "script": _is_name,
            "application": _is_name_or_none,
            "additions": protocol.is_additions,
        }
    ),
    "hold": Form({"site": _is_name, "closed": _is_flag}, for_operators=True),
    "release": Form({"site": _is_name}, for_operators=True),
    "return": Form({"site": _is_name}, for_operators=True),
    "reload": Form({}, for_operators=True),
    "probe": Form({"site": _is_name}, for_operators=True),
}
"""Every request, with exactly its fields. For hold, release and return the empty site is the whole host."""


class _RefusedError(Exception):
    """The request is answered with what is wrong."""


class _TemporaryError(Exception):
    """The same request may be answered later."""


class Requests:
    """Answers requests."""

    def __init__(  # noqa: PLR0913 - what the requests are about
        self,
        *,
        callers: Callers,
        report: Report,
        sites: Sites,
        jobs: Jobs,
        ledger: Ledger,
        reload: Callable[[], Awaitable[Facts]],
        probe: Callable[[str], Awaitable[Facts | None]],
        log: FilteringBoundLogger,
    ) -> None:
        self._reload_config = reload
        self._probe_site = probe
        self._callers = callers
        self._report = report
        self._sites = sites
        self._jobs = jobs
        self._ledger = ledger
        self._log = log
        self._actions: Final[Mapping[str, Callable[[Caller, Facts], Awaitable[Facts]]]] = {
            "status": self._status,
            "sites": self._some_sites,
            "site": self._site,
            "jobs": self._some_jobs,
            "job": self._job,
            "job of request": self._job_of_request,
            "cancel": self._cancel,
            "rerun": self._rerun,
            "modify": self._modify,
            "would run": self._would_run,
            "hold": self._hold,
            "release": self._release,
            "return": self._return,
            "reload": self._reload,
            "probe": self._probe,
        }

    async def answer(self, uid: int, message: protocol.Message) -> protocol.Message:
        """Return the answer to somebody's message. Raises ProtocolError for what is not in the table."""
        name = check(message)
        try:
            return {"ok": True, **await self._actions[name](await self._caller(uid, name), message)}
        except UnknownCallerError as error:
            raise protocol.ProtocolError(str(error)) from None
        except (_RefusedError, NotAllowedError) as error:
            return {"ok": False, "kind": "refused", "error": str(error)}
        except (_TemporaryError, HungError) as error:
            return {"ok": False, "kind": "temporary", "error": str(error)}
        except nss.LookupFailedError as error:
            return {"ok": False, "kind": "temporary", "error": f"the name service does not answer: {error}"}
        except TooMuchError:
            return {"ok": False, "kind": "refused", "error": "it would take too long: ask for less"}
        except sqlite3.Error as error:
            return {"ok": False, "kind": "temporary", "error": f"the ledger cannot be read: {error}"}

    async def _caller(self, uid: int, request: str) -> Caller:
        """Return who asks. Raises what Callers does, and _RefusedError if they may not ask that."""
        caller = await self._callers.caller(uid)
        if REQUESTS[request].for_operators and caller.sites is not None:
            raise _RefusedError("only root and members of the watcher's group may do that")
        return caller

    # Looking

    async def _status(self, caller: Caller, message: Facts) -> Facts:
        return await self._report.status(caller, message["since"])

    async def _some_sites(self, caller: Caller, message: Facts) -> Facts:
        return await self._report.some_sites(caller, message["after"])

    async def _site(self, caller: Caller, message: Facts) -> Facts:
        name = message["site"]
        if name not in self._sites or not caller.may_use(name):
            raise _RefusedError(NO_SUCH_SITE)
        return self._report.place(self._sites[name])

    async def _some_jobs(self, caller: Caller, message: Facts) -> Facts:
        sites = message["sites"]
        if caller.sites is not None:
            sites = sorted(caller.sites if sites is None else caller.sites.intersection(sites))
        wanted = Wanted(
            sites=sites,
            states=message["states"],
            script=message["script"],
            since=message["since"],
            before=message["before"],
            limit=message["limit"],
        )
        return await self._report.some_jobs(wanted)

    async def _job(self, caller: Caller, message: Facts) -> Facts:
        return {"job": await self._only(caller, message["job"])}

    async def _job_of_request(self, caller: Caller, message: Facts) -> Facts:
        if not caller.may_use(message["site"]):
            raise _RefusedError(NO_SUCH_SITE)
        return {"job": await self._report.of_request(message["site"], message["name"])}

    async def _would_run(self, caller: Caller, message: Facts) -> Facts:
        name = message["site"]
        if name not in self._sites or not caller.may_use(name):
            raise _RefusedError(NO_SUCH_SITE)
        try:
            additions = evolve(of_data(message["additions"]), application=message["application"])
            return self._report.would_run(name, message["script"], additions)
        except (AdditionsError, RequestError) as error:
            raise _RefusedError(str(error)) from None

    async def _only(self, caller: Caller, prefix: str) -> Facts:
        """Return everything about the one job whose id begins so. Raises _RefusedError."""
        found = await self._report.matching(prefix, caller)
        if not found:
            raise _RefusedError(NO_SUCH_JOB)
        if len(found) > 1:
            raise _RefusedError(f"several jobs' ids begin so, for instance {' and '.join(job['id'] for job in found)}")
        (job,) = found
        job["args"], job["additions"] = json.loads(job["args"]), json.loads(job["additions"])
        job["record"] = json.loads(job["record"] or "null")
        job["dispatch"] = json.loads(job["dispatch"] or "null")
        job["profile_changed"] = self._report.has_changed(job)
        return job

    # Changing

    async def _cancel(self, caller: Caller, message: Facts) -> Facts:
        known = await self._only(caller, message["job"])
        job = self._jobs.job(known["id"])
        if job is None:
            return {"id": known["id"], "outcome": "ended", "state": known["state"]}
        self._jobs.cancel(job, caller.uid)
        await self._durable()
        outcome = "cancelled" if job.state is State.CANCELLED else "asked"
        return {"id": job.job_id, "outcome": outcome, "state": job.state}

    async def _rerun(self, caller: Caller, message: Facts) -> Facts:
        known = await self._only(caller, message["job"])
        if self._jobs.job(known["id"]) is not None:
            raise _RefusedError(f"job {known['id']} has not ended")
        name = known["site"]
        if name not in self._sites:
            raise _RefusedError(f"site {name} is not configured")
        if self._sites[name].room <= 0:
            raise _TemporaryError(f"as many jobs of site {name} wait as may")
        new = NewJob(
            job_id=str(uuid.uuid4()),
            site=name,
            application=known["application"],
            script=known["script"],
            home=known["home"],
            mission_dir=known["mission_dir"],
            log_file=known["log_file"],
            args=tuple(known["args"]),
            submitter=caller.uid,
            request=known["request"],
            additions=known["additions"],
            rerun_of=known["id"],
        )
        self._jobs.rerun(new)
        await self._durable()
        return {"id": new.job_id, "rerun_of": known["id"]}

    async def _modify(self, caller: Caller, message: Facts) -> Facts:
        known = await self._only(caller, message["job"])
        job = self._jobs.job(known["id"])
        if job is None:
            raise _RefusedError(f"job {known['id']} has ended")
        self._jobs.move(job, known["additions"], message["application"], caller.uid)
        await self._durable()
        return {"id": job.job_id, "application": job.application}

    async def _hold(self, caller: Caller, message: Facts) -> Facts:
        name, closed = self._held(message), message["closed"]
        known = self._jobs.holds.get(name)
        if known is None or (closed and not known.closed):
            self._jobs.hold(Hold(site=name, held_by=caller.uid, held_at=time.time(), closed=closed))
            await self._durable()
            self._log.warning("held: nothing is started", site=name or None, by=caller.uid, closed=closed)
        return {"site": name, "running": self._running(name)}

    async def _release(self, caller: Caller, message: Facts) -> Facts:
        name = message["site"]
        was_held = name in self._jobs.holds
        self._jobs.release(name)
        if was_held:
            await self._durable()
            self._log.warning("released", site=name or None, by=caller.uid)
            for site in self._sites:
                site.take()
        return {"site": name, "was_held": was_held}

    async def _return(self, _: Caller, message: Facts) -> Facts:
        """Write the requests of some jobs that wait back into their rundirs; say how many, and how many cannot be."""
        name = self._held(message)
        sites = [self._sites[name]] if name else list(self._sites)
        sites = [site for site in sites if self._jobs.is_closed(site.site.name)]
        if not sites:
            raise _RefusedError("requests are returned only while none are taken: drain it first")
        watched = [site.site.name for site in sites if site.place is not None]
        rows = await self._report.longest_queued(watched, RETURNED_AT_ONCE)
        contents: dict[str, dict[str, bytes]] = {}
        for row in rows:
            job = self._jobs.job(row["id"])
            request = None if job is None else self._jobs.give_back(job)
            if request is not None:
                contents.setdefault(row["site"], {})[row["id"]] = request
        await self._durable()
        there = [self._sites[site].give_back(requests) for site, requests in contents.items()]
        if there:
            await asyncio.wait(there, timeout=COMMIT_PATIENCE)
        if not all(each.done() for each in there):
            raise _TemporaryError("some rundirs do not answer: the requests are written as soon as they do")
        left = sum(self._jobs.queued(site.site.name) for site in sites if site.place is None)
        return {"returned": sum(map(len, contents.values())), "left": left}

    async def _reload(self, caller: Caller, _: Facts) -> Facts:
        self._log.info("reload asked for", by=caller.uid)
        return await self._reload_config()

    async def _probe(self, caller: Caller, message: Facts) -> Facts:
        name = message["site"]
        if name not in self._sites:
            raise _RefusedError(NO_SUCH_SITE)
        self._log.info("probe asked for", site=name, by=caller.uid)
        try:
            told = await self._probe_site(name)
        except TimeoutError:
            raise _TemporaryError("the helper does not answer") from None
        if told is None:
            raise _TemporaryError("the helper is not reachable")
        return {"probe": {key: value for key, value in told.items() if key != "event"}}

    def _held(self, message: Facts) -> str:
        name = str(message["site"])
        if name and name not in self._sites:
            raise _RefusedError(NO_SUCH_SITE)
        return name

    def _running(self, name: str) -> int:
        return self._jobs.running(name) if name else len(self._jobs.in_flight)

    async def _durable(self) -> None:
        """Wait until everything so far is committed. Raises _TemporaryError when that takes long."""
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done() -> None:
            if not committed.done():
                committed.set_result(None)

        self._ledger.after(done)
        self._jobs.wake()
        try:
            async with asyncio.timeout(COMMIT_PATIENCE):
                await committed
        except TimeoutError:
            raise _TemporaryError("the ledger cannot be written: it is done as soon as it can") from None


def check(message: protocol.Message) -> str:
    """Return the name of a well-formed request. Raises ProtocolError that says what is wrong with any other."""
    name = message.get("request")
    form = REQUESTS.get(name) if isinstance(name, str) else None
    if form is None:
        raise protocol.ProtocolError("not a request that the watcher knows")
    if message.keys() != form.fields.keys() | {"request"}:
        raise protocol.ProtocolError(f"{name}: its fields must be {', '.join(sorted(form.fields)) or 'none'}")
    for field, is_valid in form.fields.items():
        if not is_valid(message[field]):
            raise protocol.ProtocolError(f"{name}: {field} is not valid")
    return str(name)
