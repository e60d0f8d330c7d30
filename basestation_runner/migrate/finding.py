"""Which units of a host are legacy daemons, and which one is a site's."""

import re
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from basestation_runner.errors import RunnerError
from basestation_runner.migrate import unit as units
from basestation_runner.migrate.legacy import is_daemon, is_multi, site_of
from basestation_runner.migrate.systemctl import Systemctl
from basestation_runner.migrate.unit import Unit

_WORD = "baserunner"
_OURS = frozenset({"baserunner-watch.service", "baserunner-exec.service"})

_UNITS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")


@frozen
class Candidate:
    """A unit that may be a legacy daemon's; `fault` says why it cannot be read."""

    name: str
    site: str
    unit: Unit | None
    fault: str = ""

    @property
    def is_multi(self) -> bool:
        """Whether it is one of a BaseRunnerMulti's two."""
        return self.unit is not None and is_multi(self.unit.argv)


def read(systemctl: Systemctl, name: str) -> Unit:
    """Return a unit. Raises RunnerError when there is none, or it is not understood."""
    if not name.endswith(".service"):
        name += ".service"
    shown = systemctl.show(name, units.PROPERTIES)
    if "LoadState=not-found" in shown.splitlines():
        raise RunnerError("there is no such unit", where=name, hint="runner migrate-site --list")
    unit = units.parse(shown, systemctl.cat(name))
    if not unit.is_loaded:
        raise RunnerError("systemd cannot load it", where=name, hint=f"systemctl status {name}")
    if unit.needs_reload:
        raise RunnerError("its files were changed and not read again", where=name, hint="systemctl daemon-reload")
    return unit


def refuse_link(directory: Path, unit: Unit) -> None:
    """Refuse a unit that is enabled by a link to a file elsewhere: to disable it takes the link, and so the unit, away.

    `directory` is where the administrator's units are. Raises RunnerError.
    """
    places = (directory, *_UNITS)
    template = re.sub(r"@.*(?=\.service$)", "@", unit.name)
    for link in (directory / unit.name, directory / template, Path(unit.file)):
        target = link.resolve()
        if unit.is_enabled and link.is_symlink() and not any(target.is_relative_to(place) for place in places):
            what = f"it is a link to {target}, which `systemctl disable` would remove"
            raise RunnerError(
                what, where=str(link), hint=f"cp --remove-destination {target} {link}, then daemon-reload"
            )


def candidates(systemctl: Systemctl) -> Iterator[Candidate]:
    """Yield what may be a legacy daemon's: services that are called like one and run its program."""
    for name in systemctl.services():
        if _WORD not in name.lower() or name in _OURS:
            continue
        if name.endswith("@.service"):
            instances = "which instances it has is not known: name one with --unit"
            yield Candidate(name, site_of(name), None, instances)
            continue
        try:
            unit = read(systemctl, name)
        except RunnerError as error:
            yield Candidate(name, site_of(name), None, error.what)
            continue
        if is_daemon(unit.argv) or is_multi(unit.argv):
            yield Candidate(name, site_of(name), unit)


def without_idle_templates(found: list[Candidate]) -> list[Candidate]:
    """Leave out a template of which an instance is there."""
    prefixes = {each.name.partition("@")[0] for each in found if each.unit is not None and "@" in each.name}
    return [each for each in found if each.unit is not None or each.name.partition("@")[0] not in prefixes]


def legacy_unit(systemctl: Systemctl, site: str, name: str | None) -> Unit:
    """Return the legacy unit of a site: the one that is named, or the only one that seems to be the site's.

    Raises RunnerError.
    """
    if name is not None:
        unit = read(systemctl, name)
        if not is_daemon(unit.argv):
            raise RunnerError("it does not run BaseRunner.py", where=unit.name)
        return unit
    accounts = {site, f"runner-{site}"}
    found = [each for each in candidates(systemctl) if not each.is_multi]
    meant = [each for each in found if each.site == site]
    meant = meant or [each for each in found if each.unit is not None and each.unit.user in accounts]
    meant = without_idle_templates(meant)
    running = [each for each in meant if each.unit is not None and each.unit.is_active]
    if len(meant) > 1 and len(running) == 1:
        meant = running
    if len(meant) != 1 or meant[0].unit is None:
        names = ", ".join(each.name for each in meant or found) or "none"
        what = "no legacy unit" if not meant else f"no single legacy unit that can be read ({names})"
        hint = "name it with --unit" + (f"; there are {names}" if not meant else "")
        raise RunnerError(f"{what} is found for site {site}", hint=hint)
    return meant[0].unit
