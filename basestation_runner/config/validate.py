"""`runner validate-config`: look at config files without using them, and say all that is wrong with each."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from basestation_runner.config.document import Document
from basestation_runner.config.faults import Fault
from basestation_runner.config.load import parsed, read
from basestation_runner.config.profiles import Profiles, builtin_profiles, holds_profiles, profiles_of
from basestation_runner.config.sites import sites_of
from basestation_runner.errors import EXIT_FAILED, EXIT_OK, RunnerError, printable


def run(files: Sequence[Path], applications: Path | None) -> int:
    """Given files of sites or of profiles, print each fault on stderr, each sound file on stdout; return the status.

    Sites are checked against the file of profiles that is named beside them, in the same directory; else against
    `applications`; without that against the built-in profiles.
    """
    faults: list[Fault] = []
    unread: list[RunnerError] = []
    paths = list(dict.fromkeys(files))
    documents = _documents(paths, faults, unread)
    profiles = {path: profiles_of(document, faults) for path, document in documents.items() if holds_profiles(document)}
    others = _others(applications, profiles, faults, unread)
    counts = {path: _count(len(found.entries), "application") for path, found in profiles.items()}
    for path in (path for path in documents if path not in profiles):
        # What a file that cannot be read would define is not known: then names are not looked up.
        usable = (_beside(path, profiles) or others) if documents.keys() == set(paths) else None
        counts[path] = _count(len(sites_of(documents[path], usable, faults)), "site")
    for line in [*unread, *_in_order(faults, paths)]:
        click.echo(str(line), err=True)
    faulty = {fault.file for fault in faults}
    for path in paths:
        if path in counts and str(path) not in faulty:
            click.echo(f"{printable(str(path))}: ok ({counts[path]})")
    return EXIT_FAILED if faults or unread else EXIT_OK


def _documents(paths: Iterable[Path], faults: list[Fault], unread: list[RunnerError]) -> dict[Path, Document]:
    documents = {}
    for path in paths:
        try:
            document = parsed(read(path), faults)
        except RunnerError as error:
            unread.append(error)
        else:
            if document:
                documents[path] = document
    return documents


def _others(
    applications: Path | None, profiles: Mapping[Path, Profiles], faults: list[Fault], unread: list[RunnerError]
) -> Profiles | None:
    if applications is None:
        return builtin_profiles()
    if applications in profiles:
        return profiles[applications]
    documents = _documents([applications], faults, unread)
    return profiles_of(documents[applications], faults) if documents else None


def _beside(path: Path, profiles: Mapping[Path, Profiles]) -> Profiles | None:
    found = [profiles[other] for other in profiles if other.parent == path.parent]
    return found[0] if len(found) == 1 else None


def _in_order(faults: Iterable[Fault], paths: Sequence[Path]) -> list[Fault]:
    places = {str(path): place for place, path in enumerate(paths)}
    return sorted(
        dict.fromkeys(faults), key=lambda fault: (places.get(fault.file, len(places)), fault.line, fault.column)
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
