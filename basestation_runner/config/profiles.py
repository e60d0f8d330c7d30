"""An applications.yaml's document in, profiles and faults out. Knows nothing of sites."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from attrs import Factory, field, fields_dict, frozen

from basestation_runner.config import rules
from basestation_runner.config.document import Document, Source, parse
from basestation_runner.config.faults import ConfigErrors, Fault
from basestation_runner.config.model import Application
from basestation_runner.config.nested import fields_of, guess
from basestation_runner.config.parts import Host, conflicts
from basestation_runner.config.places import Steps
from basestation_runner.config.rules import RuleError
from basestation_runner.config.structure import structured

BUILTIN = "builtin_applications.yaml"


@frozen(kw_only=True)
class ApplicationsFile:
    """The top level of an applications.yaml."""

    default_application: Annotated[str | None, rules.optional(rules.application_name)] = None
    host: Annotated[Host, fields_of(Host)] = Factory(Host)
    applications: Annotated[Sequence[object], rules.entries] = ()


@frozen(kw_only=True)
class Profiles:
    """The applications that sites may use: the built-in ones, and those of a file with their places in it."""

    applications: Mapping[str, Application]
    default: str | None = None
    host: Host = Factory(Host)
    document: Document | None = None
    entries: Mapping[str, int] = Factory(dict)  # by name: where the file's profiles are in its list, faulty ones too
    names: tuple[str, ...] = field(init=False)

    @names.default
    def _all_names(self) -> tuple[str, ...]:
        return tuple(sorted({*self.applications, *self.entries}))

    @property
    def granted(self) -> list[str]:
        """What a site may use whose entry does not say: the built-in profiles and the default one."""
        return sorted({*builtin_profiles().applications, *([self.default] if self.default else [])})


@cache
def builtin_profiles() -> Profiles:
    faults: list[Fault] = []
    text = Path(__file__).with_name(BUILTIN).read_bytes()  # importlib.resources would load much for this one file
    profiles = _profiles(parse(Source(BUILTIN, text)), {}, faults)
    if faults:
        raise ConfigErrors(faults)
    return Profiles(applications=profiles.applications)


def profiles_of(document: Document, faults: list[Fault]) -> Profiles:
    """Given a document, return its profiles beside the built-in ones, and add its faults to the list.

    With faults the profiles are only good for finding more of them.
    """
    return _profiles(document, builtin_profiles().applications, faults)


def holds_profiles(document: Document) -> bool:
    """Tell an applications.yaml by its top-level keys, unless these are names of sites."""
    data = document.data if isinstance(document.data, dict) else {}
    found = [data[key] for key in fields_dict(ApplicationsFile) if key in data]
    return any(not (isinstance(value, dict) and "watch_dir" in value) for value in found)


def located(document: Document, path: Steps, errors: Iterable[RuleError]) -> Iterator[Fault]:
    """Given what is wrong with the value at a path, return the faults."""
    for error in errors:
        yield document.fault((*path, *error.at), error.what, error.hint, on_key=error.on_key)


def undefined(name: str, profiles: Profiles) -> RuleError:
    return RuleError(f"application {name} is not defined", guess(name, profiles.names))


def _profiles(document: Document, known: Mapping[str, Application], faults: list[Fault]) -> Profiles:
    # A file of comments only is an empty one: everything in it is optional.
    top = structured(ApplicationsFile, {} if document.data is None else document.data)
    faults += located(document, (), top.errors)
    applications = dict(known)
    entries: dict[str, int] = {}
    for index, data in enumerate(top.values.get("applications", ())):
        outcome = structured(Application, data)
        errors = [*outcome.errors, *conflicts(outcome.values)]
        name = outcome.values.get("name")
        if name in entries:
            line, _ = document.position(("applications", entries[name], "name"))
            errors.append(RuleError(f"{name} is there twice", f"first in line {line}", ("name",)))
        elif name is not None:
            entries[name] = index
            applications.pop(name, None)
            if outcome.made:  # a conflict within it makes the file faulty, and nothing else that is found untrue
                applications[name] = outcome.made
        faults += located(document, ("applications", index), errors)
    default = top.values.get("default_application")
    host = top.values.get("host", Host())
    profiles = Profiles(applications=applications, default=default, host=host, document=document, entries=entries)
    if default is not None and default not in profiles.names:
        faults += located(document, ("default_application",), [undefined(default, profiles)])
    return profiles
