"""`runner uninstall`: take away what `runner install` has put on the host, and nothing else.

The manifest goes last, so that what was interrupted can be repeated.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import click

from basestation_runner.errors import EXIT_OK, RunnerError
from basestation_runner.install import files, manifest
from basestation_runner.install.host import DROP_INS, JOURNALS, LINK, PACKAGE, STATE, Host

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.install.manifest import Manifest


def run(root: Path, *, purge: bool) -> int:
    """Uninstall; return the exit status. Raises RunnerError; ExceptionGroup of these for what is left in the end."""
    host = Host(root.resolve())
    left: list[RunnerError] = []
    with host.locked():
        migrated = sorted(path.stem for path in host.root.glob(JOURNALS))
        if host.has_package():
            raise RunnerError(
                f"the Debian package {PACKAGE} is installed, not this",
                hint=f"apt {'purge' if purge else 'remove'} {PACKAGE}",
            )
        before = manifest.load(host.manifest)
        if before is None:
            click.echo("nothing is installed")
        else:
            left += _remove(before, host)
        if migrated:
            hint = "" if purge else " (install again for --rollback)"
            click.echo(f"nobody serves what was migrated now: {', '.join(migrated)}{hint}")
        if purge:
            left += _purge(host)
        with contextlib.suppress(OSError):  # it is not there, or holds the administrator's configuration
            host.configuration.rmdir()
        if host.configuration.is_dir():
            click.echo(f"kept: {host.configuration}, and the accounts")
    if left:
        raise ExceptionGroup("folders are left", left)
    return EXIT_OK


def _purge(host: Host) -> list[RunnerError]:
    """Remove what the daemons and migrations have written; return what could not be."""
    for name in DROP_INS:
        (host.root / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not there, or holds the administrator's
            (host.root / name).parent.rmdir()
    if host.has_systemd:
        host.reload_units()
    left = [fault for name in STATE if (fault := files.remove_folder(host.root / name)) is not None]
    if not left:
        click.echo("removed: ledger, records, logs and caches of the daemons")
    return left


def _remove(before: Manifest, host: Host) -> list[RunnerError]:
    """Take away what was installed; return what could not be."""
    if host.has_systemd:
        host.stop()
        click.echo("the daemons have ended; jobs that run go on")
    host.disable()
    for name, digest in sorted(before.files.items()):
        path = host.root / name
        if name.startswith("etc/") and files.digest(path) not in {None, digest}:
            click.echo(f"kept: {path}, which has been changed since")
        else:
            path.unlink(missing_ok=True)
    (host.root / LINK).unlink(missing_ok=True)
    for name in sorted(before.directories, reverse=True):  # what is inside comes first
        with contextlib.suppress(OSError):  # something else has been put there, or it is gone
            (host.root / name).rmdir()
    if host.has_systemd:
        host.reload_units()
    for path in host.library.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != host.manifest:
            path.unlink()
    host.manifest.unlink()
    host.library.rmdir()
    with host.cache_locked():
        left = files.remove_folder(host.cache)
    click.echo(f"uninstalled: {host.library}, {host.root / LINK}, and all that came with it")
    return [] if left is None else [left]
