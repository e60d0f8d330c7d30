"""A sites.yaml's document in, sites and faults out: each entry's, those between entries, those with the profiles."""

from collections.abc import Iterator, Mapping, Sequence
from posixpath import dirname

from attrs import evolve

from basestation_runner.config import rules
from basestation_runner.config.document import Document
from basestation_runner.config.faults import Fault
from basestation_runner.config.model import Site, conflicts
from basestation_runner.config.places import Steps
from basestation_runner.config.profiles import Profiles, located, undefined
from basestation_runner.config.rules import ALL, RuleError
from basestation_runner.config.structure import structured


def sites_of(document: Document, profiles: Profiles | None, faults: list[Fault]) -> dict[str, Site]:
    """Given a document, return its valid sites, and add its faults to the list.

    Without profiles the names of applications are not looked up.
    """
    if not document.data or not isinstance(document.data, dict):
        # Daemons without a site are of no use, but a file that was emptied by accident is easily made.
        what = "no sites" if not document.data else rules.expected("a mapping", document.data).what
        faults.append(document.fault((), what, "a mapping with at least one site's name and its fields"))
        return {}
    sites: dict[str, Site] = {}
    rundirs: dict[str, str] = {}
    allowed: dict[str, tuple[str, ...]] = {}
    for name, data in document.data.items():
        faults += located(document, (name,), _misnamed(name))
        outcome = structured(Site, data, name=name)
        errors = [*outcome.errors, *conflicts(outcome.values)]
        if profiles:
            errors += _wrong_applications(outcome.values.get("applications", ()), profiles)
            allowed[name] = _allowed(outcome.values.get("applications"), profiles)
        faults += located(document, (name,), errors)
        if "watch_dir" in outcome.values:
            rundirs[name] = outcome.values["watch_dir"]
        if outcome.made:
            sites[name] = evolve(outcome.made, applications=allowed.get(name, ()))
    faults += _shared_rundirs(document, rundirs)
    if profiles and profiles.document:
        faults += _double_claims(profiles, profiles.document, allowed)
    return sites


def _misnamed(name: str) -> list[RuleError]:
    try:
        rules.name(name)
    except RuleError as error:
        return [RuleError(error.what, error.hint, on_key=True)]
    return []


def _wrong_applications(names: Sequence[str], profiles: Profiles) -> Iterator[RuleError]:
    for error in rules.repeated(names):
        yield error.below("applications")
    for index, name in enumerate(names):
        if name != ALL and name not in profiles.names:
            yield undefined(name, profiles).below(index).below("applications")


def _allowed(names: Sequence[str] | None, profiles: Profiles) -> tuple[str, ...]:
    """Given an entry's `applications`, return the names that they stand for, sorted: their order means nothing."""
    if names is None:
        return tuple(profiles.granted)
    return profiles.names if ALL in names else tuple(sorted(names))


def _shared_rundirs(document: Document, rundirs: Mapping[str, str]) -> Iterator[Fault]:
    owners: dict[str, str] = {}
    for name, rundir in rundirs.items():
        owner = owners.setdefault(rundir, name)
        if owner != name:
            line, _ = document.position((owner, "watch_dir"))
            what = f"{rundir} is the rundir of site {owner} too, in line {line}"
            yield document.fault((name, "watch_dir"), what, "give each site a rundir of its own")
    for name, rundir in rundirs.items():
        above = rundir
        while (above := dirname(above)) != "/":
            if above in owners:
                what = f"{rundir} lies inside the rundir of site {owners[above]}"
                yield document.fault((name, "watch_dir"), what, "put it beside the other, not inside")
                break


def _double_claims(profiles: Profiles, document: Document, allowed: Mapping[str, tuple[str, ...]]) -> Iterator[Fault]:
    """Given what each site may use, return a fault for each two profiles that claim the same script at any site."""
    sites: dict[tuple[str, ...], str] = {}
    for site, names in allowed.items():
        sites.setdefault(names, site)
    reported = set()
    for names, site in sites.items():
        claims: dict[str, str] = {}
        for name in names:
            for script in profiles.applications[name].claims if name in profiles.applications else ():
                first = claims.setdefault(script, name)
                if first != name and (first, name, script) not in reported:
                    reported.add((first, name, script))
                    path, other = _later_claim(profiles, first, name, script)
                    what = f"application {other} claims {script} too, and site {site} may use both"
                    hint = "claim it once, or list only one of the two in the site's applications"
                    yield document.fault(path, what, hint)


def _later_claim(profiles: Profiles, first: str, second: str, script: str) -> tuple[Steps, str]:
    """Given two profiles with the same script, return where the later one claims it, and the earlier one's name."""
    earlier, later = sorted((first, second), key=lambda name: profiles.entries.get(name, -1))
    application = profiles.applications[later]
    part: Steps = ("command",) if application.command else ("scripts", application.scripts.index(script))
    return ("applications", profiles.entries[later], *part), earlier
