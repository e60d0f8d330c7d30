"""Sandboxes in which both daemons run for real, on any host, and leave nothing behind: for the demo and the tests.

As root, the daemons, sites and clients have accounts of their own, which exist only in a private mount namespace.
"""

import contextlib
import itertools
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import define, field

from basestation_runner.errors import RunnerError
from basestation_runner.sandbox import namespace, program
from basestation_runner.sandbox.accounts import Accounts
from basestation_runner.sandbox.installation import HELPER, WATCHER, Installation
from basestation_runner.sandbox.program import Program

__all__ = ["HELPER", "WATCHER", "Installation", "Program", "Sandbox", "single_account", "with_accounts"]

_NSSWITCH: Final = Path("/etc/nsswitch.conf")
_NSCD: Final = Path("/run/nscd")


@define
class Sandbox:
    """A place for installations, with the program that they run and, as root, its accounts."""

    root: Path
    program: Program
    accounts: Accounts | None
    _installations: int = field(default=0, init=False)

    def installation(self) -> Installation:
        """Return a new installation, to be used as a context manager."""
        self._installations += 1
        return Installation(self.root / f"host{self._installations}", self.program, self.accounts)


@contextlib.contextmanager
def with_accounts(*, runner: Path | None = None, disk: Path | None = None) -> Iterator[Sandbox]:
    """Open a sandbox with accounts of its own; needs root, and moves the calling thread to its own mount namespace.

    Its daemons are those of the program `runner`; without one, of a copy of this program. It lies in memory, or in a
    new directory in `disk`. Raises RunnerError when root may not do that, or when other accounts cannot run this Python
    or that program.
    """
    with contextlib.ExitStack() as cleanup:
        # Not in $TMPDIR: every account must reach it, and none but root may be able to change it.
        root = Path(tempfile.mkdtemp(prefix="runner-", dir="/run"))
        cleanup.callback(root.rmdir)
        namespace.enter()
        if disk is None:
            namespace.mount_tmpfs(root)
        else:
            namespace.bind(_new_directory(disk, cleanup), root)
        cleanup.callback(namespace.unmount, root)
        accounts = _private_accounts(root / "etc", cleanup)
        helper = accounts.user(HELPER).uid
        program.check_interpreter(helper)
        found = program.install(root / "program") if runner is None else program.at(runner, helper)
        yield Sandbox(root, found, accounts)


@contextlib.contextmanager
def single_account() -> Iterator[Sandbox]:
    """Open a sandbox in which everything runs as the caller. Raises RunnerError for a caller without a name."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise RunnerError(f"uid {os.getuid()} has no account", hint="run this as an account that has a name") from error
    with tempfile.TemporaryDirectory(prefix="runner-") as root:
        yield Sandbox(Path(root), program.in_place(), None)


def _new_directory(disk: Path, cleanup: contextlib.ExitStack) -> Path:
    """Return a new directory that all can reach and root alone can write, until `cleanup`."""
    directory = Path(tempfile.mkdtemp(prefix="runner-", dir=disk))
    cleanup.callback(shutil.rmtree, directory)
    directory.chmod(0o755)
    return directory


def _private_accounts(directory: Path, cleanup: contextlib.ExitStack) -> Accounts:
    """Return accounts whose files are shown in /etc until `cleanup`."""
    directory.mkdir()
    numbers = itertools.count()

    def show(text: str, target: Path) -> None:
        # A new mount each time, on top of the last: a name look-up meanwhile reads the old file or the new one, whole.
        source = directory / f"{target.name}.{next(numbers)}"
        source.write_text(text, errors="surrogateescape")
        source.chmod(0o644)
        namespace.bind(source, target)
        cleanup.callback(namespace.unmount, target)

    accounts = Accounts(lambda name, text: show(text, Path("/etc", name)))
    if _NSSWITCH.exists():  # without one, glibc asks the files alone
        show("passwd: files\ngroup: files\n", _NSSWITCH)
    if _NSCD.exists():  # it would answer from the host's accounts
        namespace.mount_tmpfs(_NSCD)
        cleanup.callback(namespace.unmount, _NSCD)
    accounts.add_user(WATCHER)
    accounts.add_user(HELPER, groups=[WATCHER])
    return accounts
