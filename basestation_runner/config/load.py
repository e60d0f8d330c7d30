"""Config files in, a Config or every fault in them out. Asks nothing of the host; only `read` opens files.

Nothing of a set of files is used when anything in it is wrong.
"""

from pathlib import Path

from basestation_runner.config.document import MAX_BYTES, Document, Source, parse
from basestation_runner.config.faults import ConfigErrors, Fault
from basestation_runner.config.model import Config
from basestation_runner.config.profiles import Profiles, builtin_profiles, profiles_of
from basestation_runner.config.sites import sites_of
from basestation_runner.errors import RunnerError

__all__ = ["ConfigErrors", "Fault", "Source", "load_files", "load_sources", "parsed", "read"]


def load_files(sites: Path, applications: Path | None) -> Config:
    """Given the files, return their Config. Raise RunnerError if one cannot be read, ConfigErrors if any is faulty."""
    return load_sources(read(sites), read(applications) if applications else None)


def read(path: Path) -> Source:
    """Given a path, return its content, but not much more than is accepted. Raise RunnerError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return Source(str(path), file.read(MAX_BYTES + 1))
    except OSError as error:
        raise RunnerError(f"cannot be read: {error.strerror}", where=str(path)) from error


def load_sources(sites: Source, applications: Source | None) -> Config:
    """Given the files' contents, return their Config. Raise ConfigErrors with every fault of both."""
    faults: list[Fault] = []
    profiles: Profiles | None = builtin_profiles()
    if applications:
        document = parsed(applications, faults)
        profiles = profiles_of(document, faults) if document else None
    document = parsed(sites, faults)
    found = sites_of(document, profiles, faults) if document else {}
    if faults or profiles is None:
        raise ConfigErrors(sorted(faults, key=lambda fault: (fault.file, fault.line, fault.column)))
    return Config(
        sites=found,
        applications=profiles.applications,
        default_application=profiles.default,
        host=profiles.host,
    )


def parsed(source: Source, faults: list[Fault]) -> Document | None:
    """Given a file's content, return its document, and add its faults to the list; None if it is not even YAML."""
    try:
        document = parse(source)
    except ConfigErrors as error:
        faults += error.faults
        return None
    faults += document.faults
    return document
