"""`runner validate-config`: look at config files without using them, and say all that is wrong with each."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import click
from attrs import Factory, define

from basestation_runner.config.document import Document
from basestation_runner.config.faults import Fault
from basestation_runner.config.findings import Finding, as_json, as_workflow_command, found, unread
from basestation_runner.config.load import parsed, read
from basestation_runner.config.model import Config
from basestation_runner.config.profiles import Profiles, builtin_profiles, holds_profiles, profiles_of
from basestation_runner.config.sites import sites_of
from basestation_runner.errors import EXIT_FAILED, EXIT_OK, RunnerError, printable

Form: TypeAlias = Literal["text", "json", "github"]
HostCheck: TypeAlias = Callable[[Document, Config, Sequence[str]], list[Finding]]

_BESIDE: Final[Mapping[str, str]] = {
    f"{name}.{ending}": f"{other}.{ending}"
    for name, other in (("sites", "applications"), ("applications", "sites"))
    for ending in ("yaml", "yml")
}


@define
class _Checked:
    """What has come out so far: findings, and for each file that could be read what it holds."""

    faults: list[Fault] = Factory(list)
    unread: list[RunnerError] = Factory(list)
    holds: dict[Path, str] = Factory(dict)
    configs: list[tuple[Document, Config, tuple[str, ...]]] = Factory(list)

    def findings(self, paths: Sequence[Path]) -> list[Finding]:
        places = {str(path): place for place, path in enumerate(paths)}
        in_order = sorted(
            dict.fromkeys(self.faults),
            key=lambda fault: (places.get(fault.file, len(places)), fault.line, fault.column),
        )
        return [*map(unread, self.unread), *map(found, in_order)]


def run(
    files: Sequence[Path],
    *,
    applications: Path | None = None,
    default: Path | None = None,
    form: Form = "text",
    check_host: HostCheck | None = None,
) -> int:
    """Given files of sites or of profiles, print what is wrong and which files are sound; return the status.

    A sites.yaml brings along the applications.yaml beside it, and the other way round, for neither is right without the
    other. Sites are checked against the file of profiles in their own directory; else against `applications`, or the
    `default`; without these against the built-in profiles. `check_host` is called when nothing is wrong otherwise.
    """
    paths = list(_brought_along(dict.fromkeys(files), bring_applications=applications is None))
    checked = _check(paths, applications or default)
    findings = checked.findings(paths)
    if check_host and not findings:
        for document, config, used in checked.configs:
            findings += check_host(document, config, used)
    faulty = {finding.file for finding in findings if finding.level == "fault"}
    sound = {path: holds for path, holds in checked.holds.items() if not faulty & {str(path), None}}
    _show(form, paths, sound, findings)
    return EXIT_FAILED if faulty else EXIT_OK


def _brought_along(paths: Iterable[Path], *, bring_applications: bool) -> Iterator[Path]:
    given = set(paths)
    for path in paths:
        yield path
        name = _BESIDE.get(path.name)
        if name is None or (name.startswith("applications") and not bring_applications):
            continue
        other = path.with_name(name)
        if other not in given and os.path.lexists(other):
            yield other


def _check(paths: Sequence[Path], applications: Path | None) -> _Checked:
    checked = _Checked()
    documents = _documents(paths, checked)
    profiles = {
        path: profiles_of(document, checked.faults)
        for path, document in documents.items()
        if holds_profiles(document) or (not document.data and path.stem == "applications")
    }
    others = _others(applications, profiles, checked)
    for path, document in documents.items():
        if path in profiles:
            checked.holds[path] = _count(len(profiles[path].entries), "application")
            continue
        # What a file that cannot be read would define is not known: then names are not looked up.
        usable = (_beside(path, profiles) or others) if documents.keys() == set(paths) else None
        sites = sites_of(document, usable, checked.faults)
        checked.holds[path] = _count(len(sites), "site")
        if usable:
            config = Config(
                sites=sites, applications=usable.applications, default_application=usable.default, host=usable.host
            )
            used = (document.file, *([usable.document.file] if usable.document else []))
            checked.configs.append((document, config, used))
    return checked


def _documents(paths: Iterable[Path], checked: _Checked) -> dict[Path, Document]:
    documents = {}
    for path in paths:
        try:
            document = parsed(read(path), checked.faults)
        except RunnerError as error:
            checked.unread.append(error)
        else:
            if document:
                documents[path] = document
    return documents


def _others(applications: Path | None, profiles: Mapping[Path, Profiles], checked: _Checked) -> Profiles | None:
    if applications is None:
        return builtin_profiles()
    if applications in profiles:
        return profiles[applications]
    documents = _documents([applications], checked)
    return profiles_of(documents[applications], checked.faults) if documents else None


def _beside(path: Path, profiles: Mapping[Path, Profiles]) -> Profiles | None:
    found = [profiles[other] for other in profiles if other.parent == path.parent]
    return found[0] if len(found) == 1 else None


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _show(form: Form, paths: Sequence[Path], sound: Mapping[Path, str], findings: Sequence[Finding]) -> None:
    if form == "json":
        files: list[dict[str, Any]] = [{"file": str(path), "ok": path in sound} for path in paths]
        click.echo(as_json(files, findings))
        return
    if findings:
        lines = map(as_workflow_command if form == "github" else str, findings)
        click.echo("\n".join(lines), err=form == "text")
    for path in paths:
        if path in sound:
            click.echo(f"{printable(str(path))}: ok ({sound[path]})")
