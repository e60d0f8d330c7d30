"""Config files in, a Config or every fault in them out. Asks nothing of the host; load_files alone reads files.

Nothing of a set of files is used when anything in it is wrong.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from posixpath import dirname
from typing import Annotated

from attrs import Factory, evolve, frozen

from basestation_runner.config import rules
from basestation_runner.config.document import MAX_BYTES, Document, Source, parse
from basestation_runner.config.document import Path as FieldPath
from basestation_runner.config.faults import ConfigErrors, Fault
from basestation_runner.config.model import Application, Config, Site, conflicts
from basestation_runner.config.rules import ALL, RuleError
from basestation_runner.config.structure import guess, structured
from basestation_runner.errors import RunnerError
from basestation_runner.text import quoted

__all__ = ["ConfigErrors", "Fault", "Profiles", "Source", "load_files", "load_profiles", "load_sites", "load_sources"]

BUILTIN = "builtin_applications.yaml"


@frozen(kw_only=True)
class ApplicationsFile:
    """The top level of an applications.yaml."""

    default_application: Annotated[str | None, rules.optional(rules.application_name)] = None
    applications: Annotated[Sequence[object], rules.entries] = ()


@frozen(kw_only=True)
class Profiles:
    """The applications that sites may use: the built-in ones, and those of a file with their places in it."""

    applications: Mapping[str, Application]
    default: str | None = None
    document: Document | None = None
    entries: Mapping[str, int] = Factory(dict)  # the file's profiles, faulty ones too, by name

    @property
    def names(self) -> list[str]:
        return sorted({*self.applications, *self.entries})

    @property
    def granted(self) -> list[str]:
        """What a site may use whose entry says nothing about it."""
        return sorted({*_builtin().applications, *([self.default] if self.default else [])})


def load_files(sites: Path, applications: Path | None) -> Config:
    """Given the files, return their Config. Raise RunnerError if one cannot be read, ConfigErrors if any is faulty."""
    return load_sources(read(sites), read(applications) if applications else None)


def read(path: Path) -> Source:
    """Given a path, return its content, but not much more than what is accepted. Raise RunnerError if that fails."""
    try:
        with path.open("rb") as file:
            return Source(str(path), file.read(MAX_BYTES + 1))
    except OSError as error:
        raise RunnerError(f"cannot be read: {error.strerror}", where=str(path)) from error


def load_sources(sites: Source, applications: Source | None) -> Config:
    """Given the files' contents, return their Config. Raise ConfigErrors with every fault of both."""
    faults: list[Fault] = []
    profiles = load_profiles(applications, faults)
    loaded = load_sites(sites, profiles, faults)
    if faults or profiles is None:
        raise ConfigErrors(in_order(faults))
    return Config(sites=loaded, applications=profiles.applications, default_application=profiles.default)


def in_order(faults: Iterable[Fault]) -> list[Fault]:
    return sorted(faults, key=lambda fault: (fault.file, fault.line, fault.column))


@cache
def _builtin() -> Profiles:
    text = package_files(__package__).joinpath(BUILTIN).read_bytes()
    faults: list[Fault] = []
    profiles = _profiles(parse(Source(BUILTIN, text)), {}, faults)
    if faults:
        raise ConfigErrors(faults)
    return profiles


def load_profiles(source: Source | None, faults: list[Fault]) -> Profiles | None:
    """Given an applications.yaml, return its profiles and the built-in ones, and add its faults to the list.
    Return None if it is not even YAML; with faults the profiles are only good for finding more of them.
    """
    if source is None:
        return _builtin()
    try:
        document = parse(source)
    except ConfigErrors as error:
        faults += error.faults
        return None
    return _profiles(document, _builtin().applications, faults)


def _profiles(document: Document, known: Mapping[str, Application], faults: list[Fault]) -> Profiles:
    faults += document.faults
    # A file of comments only is an empty one: everything in it is optional.
    top = structured(ApplicationsFile, {} if document.data is None else document.data)
    faults += _located(document, (), top.errors)
    applications = dict(known)
    entries: dict[str, int] = {}
    for index, data in enumerate(top.values.get("applications", ())):
        path = ("applications", index)
        outcome = structured(Application, data)
        faults += _located(document, path, outcome.errors)
        name = outcome.values.get("name")
        if name in entries:
            line = document.position(("applications", entries[name], "name"))[0]
            faults.append(document.fault((*path, "name"), f"{quoted(name)} is there twice", f"first in line {line}"))
        elif name is not None:
            entries[name] = index
            applications.pop(name, None)
            if outcome.made:
                applications[name] = outcome.made
    default = top.values.get("default_application")
    profiles = Profiles(applications=applications, default=default, document=document, entries=entries)
    if default is not None and default not in profiles.names:
        faults.append(document.fault(("default_application",), *_undefined(default, profiles)))
    return profiles


def load_sites(source: Source, profiles: Profiles | None, faults: list[Fault]) -> dict[str, Site]:
    """Given a sites.yaml, return its valid sites, and add its faults and those between it and the profiles to the list.
    Without profiles the names of applications are not looked up.
    """
    try:
        document = parse(source)
    except ConfigErrors as error:
        faults += error.faults
        return {}
    faults += document.faults
    if not document.data:
        faults.append(document.fault((), "no sites", "a mapping of at least one site's name to its fields"))
        return {}
    if not isinstance(document.data, dict):
        found = rules.expected("a mapping of sites' names to their fields", document.data)
        faults.append(document.fault((), found.what))
        return {}
    sites: dict[str, Site] = {}
    rundirs: dict[str, str] = {}
    allowed: dict[str, tuple[str, ...]] = {}
    for name, data in document.data.items():
        try:
            rules.name(name)
        except RuleError as error:
            faults.append(document.fault((name,), error.what, error.hint, on_key=True))
        outcome = structured(Site, data, name=name)
        errors = [*outcome.errors, *conflicts(outcome.values)]
        if profiles:
            errors += _misnamed_applications(outcome.values.get("applications", ()), profiles)
            allowed[name] = _allowed(outcome.values.get("applications"), profiles)
        if "watch_dir" in outcome.values:
            rundirs[name] = outcome.values["watch_dir"]
        faults += _located(document, (name,), errors)
        if outcome.made:
            sites[name] = evolve(outcome.made, applications=allowed.get(name, ()))
    faults += _shared_rundirs(document, rundirs)
    if profiles and profiles.document:
        faults += _double_claims(profiles, profiles.document, allowed)
    return sites


def _located(document: Document, path: FieldPath, errors: Iterable[RuleError]) -> Iterator[Fault]:
    for error in errors:
        yield document.fault((*path, *error.at), error.what, error.hint, on_key=error.on_key)


def _undefined(name: str, profiles: Profiles) -> tuple[str, str]:
    return f"application {name} is not defined", guess(name, profiles.names)


def _misnamed_applications(names: Sequence[str], profiles: Profiles) -> Iterator[RuleError]:
    found = list(rules.repeated(names))
    for index, name in enumerate(names):
        if name != ALL and name not in profiles.names:
            found.append(RuleError(*_undefined(name, profiles), (index,)))
    return (error.below("applications") for error in found)


def _allowed(names: Sequence[str] | None, profiles: Profiles) -> tuple[str, ...]:
    if names is None:
        return tuple(profiles.granted)
    return tuple(profiles.names if ALL in names else sorted(names))


def _shared_rundirs(document: Document, rundirs: Mapping[str, str]) -> Iterator[Fault]:
    owners: dict[str, str] = {}
    for name, rundir in rundirs.items():
        owner = owners.setdefault(rundir, name)
        if owner != name:
            line = document.position((owner, "watch_dir"))[0]
            what = f"{rundir} is the rundir of site {owner} (line {line}) too"
            yield document.fault((name, "watch_dir"), what, "give each site a rundir of its own")
    for name, rundir in rundirs.items():
        above = rundir
        while (above := dirname(above)) != "/":
            if above in owners:
                what = f"{rundir} lies inside the rundir of site {owners[above]}"
                yield document.fault((name, "watch_dir"), what, "put it beside the other, not inside")


def _double_claims(profiles: Profiles, document: Document, allowed: Mapping[str, tuple[str, ...]]) -> Iterator[Fault]:
    """Given what each site may use, return one fault for each two profiles that claim a script at the same site."""
    sites: dict[tuple[str, ...], str] = {}
    for site, names in allowed.items():
        sites.setdefault(names, site)
    reported = set()
    for names, site in sites.items():
        claims: dict[str, str] = {}
        for name in names:
            for script in profiles.applications[name].scripts if name in profiles.applications else ():
                first = claims.setdefault(script, name)
                if first != name and (first, name, script) not in reported:
                    reported.add((first, name, script))
                    path, earlier = _later_claim(profiles, first, name, script)
                    what = f"application {earlier} claims {script} too, and site {site} may use both"
                    yield document.fault(
                        path, what, "claim it once, or list only one of the two in the site's applications"
                    )


def _later_claim(profiles: Profiles, first: str, second: str, script: str) -> tuple[FieldPath, str]:
    """Given two profiles with the same script, return where the later one claims it, and the earlier one's name."""
    earlier, later = sorted((first, second), key=lambda name: profiles.entries.get(name, -1))
    index = profiles.applications[later].scripts.index(script)
    return ("applications", profiles.entries[later], "scripts", index), earlier
