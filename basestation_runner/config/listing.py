"""`runner applications`: what profiles there are, and what a site's jobs are run with. Prints; changes nothing."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
from attrs import AttrsInstance, fields_dict

from basestation_runner.config.additions import NOTHING
from basestation_runner.config.effective import effective
from basestation_runner.config.load import load_files
from basestation_runner.config.model import Application, Config
from basestation_runner.config.nested import guess
from basestation_runner.config.parts import Limits, Sandbox, TaskRange, limit_text
from basestation_runner.config.plain import effective_data
from basestation_runner.config.resreq import Requirement
from basestation_runner.errors import EXIT_OK, RunnerError, printable

_PAIRS: Final = frozenset({"env"})
_OF_SITES_TOO: Final = ("env", "limits")
_NOT_A_LINE: Final = frozenset({"name", "description", "is_default", "effective", *_OF_SITES_TOO})
_COMMANDS: Final = frozenset({"append_args", "strip_args", "pre_exec", "post_exec"})


def run(sites: Path, applications: Path | None, *, site: str | None, as_json: bool) -> int:
    """Print the profiles that a site may use, or all; return the status. Raises RunnerError."""
    config = load_files(sites, applications)
    if site is not None and site not in config.sites:
        raise RunnerError(f"site {site} is not configured", where=str(sites), hint=guess(site, list(config.sites)))
    listed = list(_listed(config, site))
    if as_json:
        default = config.default_application
        click.echo(json.dumps({"default_application": default, "applications": listed}, indent=2))
    else:
        click.echo("\n\n".join("\n".join(_lines(entry)) for entry in listed))
    return EXIT_OK


def _listed(config: Config, site_name: str | None) -> Iterator[dict[str, Any]]:
    site = None if site_name is None else config.sites[site_name]
    for name in sorted(config.applications) if site is None else site.applications:
        application = config.applications[name]
        users = sorted(other.name for other in config.sites.values() if name in other.applications)
        entry = {**profile_data(application), "is_default": name == config.default_application}
        if site is None:
            yield {**entry, "sites": users}
        else:
            yield {**entry, "effective": effective_data(effective(site, application, NOTHING))}


def profile_data(application: Application) -> dict[str, Any]:
    """Given a profile, return it as a file would say it, without what is as it would be anyway."""
    return {"name": application.name, **_said(application, Application(name=application.name))}


def _said(part: AttrsInstance, plain: AttrsInstance) -> dict[str, Any]:
    """Return what an object holds that a plain one of its class does not."""
    values = {name: getattr(part, name) for name in fields_dict(type(part))}
    return {name: _said_as(name, value) for name, value in values.items() if value != getattr(plain, name)}


def _said_as(name: str, value: object) -> Any:  # noqa: ANN401 - JSON
    match value:
        case Requirement():
            return str(value)
        case Limits():
            return {name: limit_text(name, most) for name, most in value.named.items()}
        case Sandbox() | TaskRange():
            return _said(value, type(value)())
        case tuple():
            return dict(value) if name in _PAIRS else list(value)
    return value


def _lines(entry: Mapping[str, Any]) -> Iterator[str]:
    description = printable(entry.get("description", "").strip())
    yield entry["name"] + (f": {description}" if description else "") + " (the default)" * entry["is_default"]
    made = entry.get("effective", entry)
    shown = {name: value for name, value in entry.items() if name not in _NOT_A_LINE}
    for name, value in {**shown, **{name: made[name] for name in _OF_SITES_TOO if made.get(name)}}.items():
        yield f"  {name}: {printable(_text(name, value))}"


def _text(name: str, value: object) -> str:
    match value:
        case list() if name in _COMMANDS:
            return shlex.join(value)
        case list():
            return ", ".join(value) or "none"
        case {"value": inner, "from": origin}:
            return f"{inner} (the site's)" if origin == "site" else f"{inner}"
        case dict():
            return ", ".join(f"{key}={_text('', inner)}" for key, inner in value.items())
        case bool():
            return str(value).lower()
    return str(value)
