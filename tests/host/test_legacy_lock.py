"""The lock, passed to and fro between this watcher and a legacy daemon that runs as the site's own account."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from basestation_runner.sandbox.process import Identity
from basestation_runner.watch.lockfile import NAME
from tests.patience import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon

LEGACY = """
import os, signal, sys
path = sys.argv[1]
def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
try:
    pid = int(open(path).read())
except (OSError, ValueError):
    pid = None
if pid is not None and is_alive(pid):
    print("held by", pid, flush=True)
    sys.exit(1)
with open(path, "w") as lock:
    lock.write(str(os.getpid()))
print("taken", flush=True)
signal.sigwait([signal.SIGTERM])
os.remove(path)
"""
"""What the legacy daemon does with the lock."""


@pytest.fixture
def alpha(installation: Installation) -> Site:
    return installation.add_site("alpha", "alpha")


def legacy(installation: Installation, site: Site) -> Daemon:
    command = [installation.program.python, "-IS", "-c", LEGACY, str(site.watch_dir / NAME)]
    code = "import signal, os, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]);"
    code += "os.execv(sys.argv[1], sys.argv[1:])"
    return installation.start(
        "legacy", [installation.program.python, "-IS", "-c", code, *command], Identity(site.account)
    )


def says(daemon: Daemon, text: str) -> None:
    daemon.wait_event(lambda event: event["event"] == text, PATIENCE)


def drop(installation: Installation, site: Site, name: str) -> Path:
    text = f"{site.homes} {site.homes} {site.homes}/job.log Base.py\n"
    return installation.drop(site, text, by=site.account, name=name).path


def test_each_waits_for_the_other_and_takes_over_from_its_end(installation: Installation, alpha: Site) -> None:
    """None of this waits for the look each minute."""
    lock = alpha.watch_dir / NAME
    installation.start_helper()
    watcher = installation.start_watcher()
    assert lock.read_text() == str(watcher.pid)
    refused = legacy(installation, alpha)
    says(refused, f"held by {watcher.pid}")
    watcher.kill()
    assert lock.read_text() == str(watcher.pid), "nobody could remove it"

    old = legacy(installation, alpha)
    says(old, "taken")
    assert lock.read_text() == str(old.pid)
    watcher = installation.start_watcher()
    pending = watcher.wait_event(lambda event: event["event"] == "site pending", PATIENCE)
    assert pending["reason"] == f"the lock {lock} is held by process {old.pid}"
    path = drop(installation, alpha, "1.run")
    assert old.stop() == 0
    until(lambda: not path.exists(), "the request to be taken when the legacy daemon has ended")
    assert lock.read_text() == str(watcher.pid)

    assert watcher.stop() == 0
    assert not lock.exists()
    again = legacy(installation, alpha)
    says(again, "taken")


def test_the_legacy_daemon_can_write_over_our_lock_and_has_the_site_then(
    installation: Installation, alpha: Site
) -> None:
    """A pid of nobody that is written there is replaced at once."""
    lock = alpha.watch_dir / NAME
    installation.start_helper()
    watcher = installation.start_watcher()
    with open("/proc/sys/kernel/pid_max") as limit:  # noqa: PTH123
        nobody = int(limit.read()) - 1
    installation.run_as(alpha.account, ["sh", "-c", f"printf %d {nobody} >{lock}"])
    until(lambda: lock.read_text() == str(watcher.pid), "a stale pid to be replaced")
    assert os.getpid() != watcher.pid
    installation.run_as(alpha.account, ["sh", "-c", f"printf %d {os.getpid()} >{lock}"])
    pending = watcher.wait_event(lambda event: event["event"] == "site pending", PATIENCE)
    assert pending["reason"].endswith(f"held by process {os.getpid()}")
    path = drop(installation, alpha, "1.run")
    assert watcher.stop() == 0
    assert path.exists()
    assert lock.read_text() == str(os.getpid()), "it was not ours any more"
