"""What a migration would do, found out without touching anything: the entry, what is lost, what the host says to it."""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve, frozen

from basestation_runner import nss
from basestation_runner.config.document import Source, parse
from basestation_runner.config.findings import Finding
from basestation_runner.config.host import judge
from basestation_runner.config.hostfacts import gather
from basestation_runner.config.load import load_sources, read
from basestation_runner.config.location import applications_path
from basestation_runner.config.model import NO_CONTAINERS, Config
from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.migrate import finding, sitesfile
from basestation_runner.migrate.entry import Proposal, propose
from basestation_runner.migrate.people import people_of, variables_of_unit
from basestation_runner.migrate.setting import Setting
from basestation_runner.migrate.unit import Unit


@frozen(kw_only=True)
class Plan:
    """A migration that could begin."""

    site: str
    unit: Unit
    proposal: Proposal
    old: str | None  # sites.yaml as it is; None: there is none
    new: str
    findings: tuple[Finding, ...]
    gid: int
    group: str  # as usermod takes it
    is_member: bool  # whether the watcher's account has the group, by the name service

    @property
    def faults(self) -> list[Finding]:
        """What keeps the migration from beginning."""
        return [finding for finding in self.findings if finding.level == "fault"]


def proposal_for(unit: Unit, site: str) -> Proposal:
    """Return what a unit becomes. Raises RunnerError."""
    return propose(site, unit, people_of(unit), variables_of_unit(unit))


def make(setting: Setting, site: str, unit: Unit) -> Plan:
    """Return the plan for a site. Raises RunnerError, ConfigErrors among them."""
    proposal = proposal_for(unit, site)
    if proposal.wants_container:
        fields = ", ".join(name for name in proposal.entry if "docker" in name)
        raise RunnerError(f"{NO_CONTAINERS}, and site {site} runs its jobs in one ({fields})", where=unit.name)
    finding.refuse_link(setting.units, unit)
    old = sitesfile.read(setting.sites_config)
    new = sitesfile.added(setting.sites_config, old or "", site, proposal.entry)
    applications = applications_path(setting.applications_config)
    source = Source(str(setting.sites_config), new.encode())
    config = load_sources(source, read(applications) if applications else None)
    # What is wrong with other sites is no reason not to begin.
    config = evolve(config, sites={site: config.sites[site]})
    gid, group, is_member = _group(setting, config, site)
    files = [] if old is None else [str(setting.sites_config)]
    files += [str(applications)] if applications else []
    return Plan(
        site=site,
        unit=unit,
        proposal=proposal,
        old=old,
        new=new,
        findings=tuple(_findings(setting, source, config, files, gid)),
        gid=gid,
        group=group,
        is_member=is_member,
    )


def _group(setting: Setting, config: Config, site: str) -> tuple[int, str, bool]:
    """Return the site's group by number and by name, and whether the watcher's account has it."""
    (first, *_) = config.sites[site].groups or ("",)
    try:
        group = nss.group(first) if isinstance(first, str) else nss.group_by_gid(first)
        watcher = nss.account(setting.watcher_user)
        if group is None:
            raise RunnerError(f"the site's group {first} is not known by name", hint="groupadd it")
        if watcher is None:
            raise RunnerError(f"there is no account {setting.watcher_user}, the watcher's", hint="install the package")
        return group.gid, group.name, group.gid in nss.groups_of(watcher)
    except nss.LookupFailedError as error:
        raise TemporaryError(f"the name service does not answer: {error}") from error


def _findings(setting: Setting, source: Source, config: Config, files: Sequence[str], gid: int) -> Iterator[Finding]:
    """Look at the host as it will be when the watcher has joined a group."""
    facts = gather(
        config, files, watcher_user=setting.watcher_user, helper_user=setting.helper_user, joining=frozenset({gid})
    )
    facts = evolve(facts, watchers=())  # one without the group is restarted
    yield from judge(parse(source), config, facts)


def facts_of(plan: Plan) -> dict[str, Any]:
    """Return all that the migration goes by."""
    return {
        "site": plan.site,
        "unit": plan.unit.name,
        "entry": plan.proposal.entry,
        "old": plan.old,
        "new": plan.new,
        "gid": plan.gid,
        "group": plan.group,
        "was_active": plan.unit.is_active,
        "was_enabled": plan.unit.is_enabled,
        "is_runtime": plan.unit.is_runtime,
    }


def difference(plan: Plan, path: str) -> list[str]:
    """Return what changes in sites.yaml, as lines of a diff."""
    before = (plan.old or "").splitlines()
    name = "/dev/null" if plan.old is None else path
    return list(difflib.unified_diff(before, plan.new.splitlines(), name, path, lineterm=""))
