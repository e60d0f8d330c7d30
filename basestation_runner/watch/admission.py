"""Which application a request's job gets, and what keeps a job from running with it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from basestation_runner.config.additions import NOTHING, AdditionsError, of_data
from basestation_runner.config.effective import ConflictsError, effective
from basestation_runner.config.plain import stated_data
from basestation_runner.runfile import RequestError

if TYPE_CHECKING:
    from typing import Any

    from basestation_runner.config.additions import Additions
    from basestation_runner.config.model import Application, Config, Site
    from basestation_runner.runfile import Request
    from basestation_runner.watch.ledger import NewJob, Unfinished


def application_for(config: Config, site: Site, request: Request) -> Application:
    """Given a request, return its application. Raises RequestError as `accepting` does."""
    return accepting(config, site, request.script, request.additions)


def accepting(config: Config, site: Site, script: str, additions: Additions) -> Application:
    """Given a request's script and what it adds, return its application: the one that it names, or that its script
    belongs to, or the default.

    Raises RequestError when there is none, when it is not one that runs the script at this site, or when it does not
    allow what the request adds.
    """
    named = additions.application
    if named is not None and (reason := _unusable(config, site, named)):
        raise RequestError(reason)
    application = config.application_for(site, script)
    if application is None:
        raise RequestError(f"no application that this site may use runs {script}")
    if named not in {None, application.name}:
        raise RequestError(f"application {named} does not run {script}: that is for application {application.name}")
    if additions != NOTHING:
        try:
            effective(site, application, additions)
        except ConflictsError as error:
            raise RequestError(str(error)) from None
    return application


def would_run(config: Config, site: Site, script: str, additions: Additions) -> dict[str, Any]:
    """Given what a request would say, return its application and what its job would be run with, as plain data.

    Raises RequestError as `accepting` does.
    """
    application = accepting(config, site, script, additions)
    made = effective(site, application, additions)
    return {"application": application.name, "effective": stated_data(made)}


def uses(application: Application, additions: Additions) -> tuple[tuple[str, int], ...]:
    """Given a job's application and what it adds, return what it takes of the host's resources while it runs."""
    return (*application.resreq.rusage, *additions.resreq.rusage)


def why_held(config: Config, job: NewJob | Unfinished) -> str | None:
    """Say why a job that was accepted cannot run with the present configuration; None if it can."""
    site = config.sites.get(job.site)
    if site is None:
        return f"site {job.site} is not configured"
    if reason := _unusable(config, site, job.application):
        return reason
    application = config.applications[job.application]
    if config.application_for(site, job.script) != application:
        return f"application {application.name} does not run {job.script} at this site any more"
    try:
        effective(site, application, of_data(job.additions))
    except (AdditionsError, ConflictsError) as error:
        return str(error)
    return None


def _unusable(config: Config, site: Site, application: str) -> str | None:
    if application not in config.applications:
        return f"application {application} is not defined"
    if application not in site.applications:
        return f"application {application} is not one that site {site.name} may use: {', '.join(site.applications)}"
    return None
