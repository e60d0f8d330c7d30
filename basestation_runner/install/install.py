"""`runner install`: program, units, accounts and what belongs to them, of this version instead of any older one.

Until the last step the manifest names whatever may be there, so that an installation that was interrupted can be
repeated or taken away. Running jobs and their keepers stay as they are.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from basestation_runner import program, trust
from basestation_runner.errors import EXIT_OK, RunnerError
from basestation_runner.install import files, manifest
from basestation_runner.install.host import LINK, PACKAGE, Host, programs_in_use
from basestation_runner.install.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES: Final = "files"
"""In the program's folder: what belongs elsewhere on a host, by its path there."""


@dataclass(frozen=True)
class _Plan:
    """What belongs on the host, by its path there, and which of the files there are somebody's and stay."""

    sources: Mapping[str, Path]
    kept: frozenset[str]
    before: Manifest

    def after(self, *, directories: frozenset[str]) -> Manifest:
        """Return the manifest of when all has been done."""
        digests = {name: files.digest(path) or "" for name, path in self.sources.items() if name not in self.kept}
        kept = {name: digest for name, digest in self.before.files.items() if name in self.kept}
        return Manifest({**digests, **kept}, self.before.directories | directories)


def run(root: Path) -> int:
    """Install the one-file program that this process is; return the exit status. Raises RunnerError."""
    folder = Path(program.EXECUTABLE).parent
    if not program.COMPILED or not (folder / FILES).is_dir():
        raise RunnerError(
            "only the one-file program installs itself", hint="make binary, then sudo dist/runner install"
        )
    install(folder, Host(root.resolve()))
    return EXIT_OK


def install(folder: Path, host: Host) -> None:
    """Install the program in a folder whose name says which it is. Raises RunnerError; ExceptionGroup of these."""
    with host.locked():
        if host.has_package():
            raise RunnerError(
                f"the Debian package {PACKAGE} is installed, which has its files in the same places",
                hint=f"upgrade that, or first apt remove {PACKAGE}",
            )
        before = manifest.load(host.manifest)
        plan = _plan(folder / FILES, host, before or Manifest())
        missing = _missing_directories(plan, host)
        after = plan.after(directories=missing)

        for directory in (host.library.parent, host.library):
            if not directory.is_dir():
                files.make_directory(directory)
        manifest.save(host.manifest, plan.before.with_planned(after.files, missing))
        changed = _place(plan, folder, host)
        for name in plan.before.files.keys() - after.files.keys():
            (host.root / name).unlink(missing_ok=True)
        host.make_accounts()
        manifest.save(host.manifest, after)

        _say(plan, folder, host, changed=changed)
        _tell_systemd(host, restart=before is not None and changed)
        _tidy(host, folder.name)
        if before is None:
            click.echo(
                f"next: write {host.configuration}/sites.yaml (examples: /usr/share/doc/{PACKAGE}/examples), then"
            )
            click.echo("      systemctl enable --now baserunner-exec baserunner-watch")


def _plan(sources: Path, host: Host, before: Manifest) -> _Plan:
    """Given what belongs on the host, find what is in its way. Raises ExceptionGroup of RunnerError for all of it."""
    wanted = {str(path.relative_to(sources)): path for path in sources.rglob("*") if path.is_file()}
    kept, faults = set(), []
    for name, source in sorted(wanted.items()):
        path = host.root / name
        there = files.digest(path)
        if there == files.digest(source) or not (path.exists() or path.is_symlink()):
            continue
        if name.startswith("etc/"):  # the administrator's to change
            if there != before.files.get(name):
                kept.add(name)
        elif name not in before.files:
            faults.append(_in_the_way(path))
    link = host.root / LINK
    ours = link.is_symlink() and f"../lib/{PACKAGE}/" in str(link.readlink())
    if not ours and (link.exists() or link.is_symlink()):
        faults.append(_in_the_way(link))
    if faults:
        raise ExceptionGroup("files are in the way", faults)
    return _Plan(wanted, frozenset(kept), before)


def _in_the_way(path: Path) -> RunnerError:
    return RunnerError("there is something else already", where=str(path), hint="move it away")


def _missing_directories(plan: _Plan, host: Host) -> frozenset[str]:
    parents = {parent for name in (*plan.sources, LINK) for parent in Path(name).parents}
    return frozenset(str(parent) for parent in parents if not (host.root / parent).is_dir())


def _place(plan: _Plan, folder: Path, host: Host) -> bool:
    """Put everything in its place; return whether anything was not as it is now."""
    target = host.library / folder.name
    changed = not files.same_folder(folder, target)
    if changed:
        files.place_folder(folder, target)
    if host.is_this_one:
        trust.check_chain(str(target))  # the helper would refuse to start from there
    for name in sorted(plan.sources.keys() - plan.kept):
        path = host.root / name
        content = plan.sources[name].read_bytes()
        if files.digest(path) != files.digest(plan.sources[name]):
            _make_parents(path, host.root)
            files.place(content, path, 0o644)
            changed = True
    link, leads_to = host.root / LINK, f"../lib/{PACKAGE}/{folder.name}/runner"
    if not link.is_symlink() or str(link.readlink()) != leads_to:
        _make_parents(link, host.root)
        files.place_link(leads_to, link)
        changed = True
    if not host.configuration.is_dir():
        _make_parents(host.configuration / "sites.yaml", host.root)
    return changed


def _make_parents(path: Path, root: Path) -> None:
    for parent in reversed(path.relative_to(root).parents):
        if not (root / parent).is_dir():
            files.make_directory(root / parent)


def _say(plan: _Plan, folder: Path, host: Host, *, changed: bool) -> None:
    where = f"{host.library / folder.name}, as {host.root / LINK}"
    click.echo(f"{'installed' if changed else 'nothing to do: it is already installed'}: {where}")
    for name in sorted(plan.kept):
        click.echo(f"kept as it is: {host.root / name}, which differs from this version's")


def _tell_systemd(host: Host, *, restart: bool) -> None:
    if not host.has_systemd:
        click.echo("systemd does not run there: it was not told of the units")
        return
    host.reload_units()
    if restart:
        host.restart()
        click.echo("the daemons that ran were started anew; jobs go on")


def _tidy(host: Host, name: str) -> None:
    """Remove older versions, but for those whose keepers still have jobs, and what was unpacked to install this one."""
    places = [place for place in (host.library, host.cache) if place.is_dir()]
    with host.cache_locked():
        in_use = programs_in_use()
        for folder in sorted(path for place in places for path in place.iterdir() if path.is_dir()):
            if folder == host.library / name:
                continue
            if any(path.startswith(f"{folder}/") for path in in_use):
                click.echo(f"still in use, and removed by a later install: {folder}")
            else:
                shutil.rmtree(folder)
