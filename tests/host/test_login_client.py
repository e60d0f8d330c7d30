"""A glider that logs in is not kept waiting, whatever other sites have piled up.

The client does what glider_login does: it writes its request in place with one echo, looks every 0.2 s whether the file
is gone, and complains when it still is there after 2 s. Its complaint is what these tests look for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from basestation_runner.sandbox.process import Identity
from tests.host.helper_client import DEADLINE, Gate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon

QUEUED: Final = 5000
LOGIN: Final = """\
umask 002
echo "$1" > "$2"
looked=0
while [ -e "$2" ]; do
    if [ $looked -eq 10 ]; then
        echo "the runner has not taken the request within 2 s"
        exit 1
    fi
    sleep 0.2
    looked=$((looked + 1))
done
"""
PILE_UP: Final = """\
import os, sys
folder, text, first, last = sys.argv[1:]
os.umask(0o002)
for number in range(int(first), int(last)):
    with open(f"{folder}/{number:06}.run", "w") as request:
        request.write(text)
"""
HOLD_SH: Final = """\
echo $$
read -r _ < "$1"
"""
PROFILES: Final = """\
applications:
  - name: hold
    scripts: [hold.sh]
"""


@pytest.fixture
def gate(installation: Installation) -> Iterator[Gate]:
    with Gate(installation.top / "gate") as gate:
        yield gate


@pytest.fixture
def busy(installation: Installation) -> Site:
    """A site whose jobs wait at the gate."""
    installation.write(installation.scripts / "hold.sh", HOLD_SH)
    installation.write(installation.applications_config, PROFILES)
    site = installation.add_site("busy", "srv/busy", python_version="/bin/sh", applications=["hold"])
    installation.add_glider(site, "sg001", "mission")
    return site


@pytest.fixture
def site(installation: Installation) -> Site:
    """The site where a glider logs in."""
    site = installation.add_site("seaglider", "home/seaglider", layout="jailed")
    installation.add_glider(site, "sg123", "mission1")
    return site


@pytest.fixture
def watcher(installation: Installation, busy: Site, site: Site) -> Daemon:  # noqa: ARG001 - the sites come first
    installation.start_helper()
    return installation.start_watcher()


def pile_up_command(installation: Installation, busy: Site, gate: Gate, *span: int) -> list[str]:
    """Return the command that drops requests of one queue into the busy site's rundir."""
    mission = busy.homes / "sg001/mission"
    text = f"{mission.parent} {mission} {mission}/job.log hold.sh {gate.path}\n"
    return [installation.program.python, "-IS", "-c", PILE_UP, str(busy.watch_dir), text, *map(str, span)]


def log_in(installation: Installation, site: Site, number: int) -> None:
    """Log in as the glider does. Raises CalledProcessError if the client complains."""
    mission = "/home/sg123/mission1"
    text = (
        f"/home/sg123 {mission} {mission}/glider_early_gps.log GliderEarlyGPS.py --daemon --mission_dir {mission}"
        f" --verbose --csh_pid {number} --path_to_logout nologout"
    )
    request = site.watch_dir / f"2611301139{number:04}.run"
    installation.run_as(installation.account("sg123"), ["sh", "-c", LOGIN, "glider_login", text, str(request)])


def wait_until_taken(watcher: Daemon, count: int) -> None:
    """Wait until so many requests of the busy site have been accepted."""
    seen = 0
    for event in watcher.follow(timeout=6 * DEADLINE):
        seen += event["event"] == "request accepted" and event["site"] == "busy"
        if seen == count:
            return


def ended(watcher: Daemon, site: Site, count: int) -> None:
    """Wait until so many jobs of a site have ended well."""
    codes = []
    for event in watcher.follow(timeout=DEADLINE):
        if event["event"] == "job ended" and event["site"] == site.name:
            codes.append(event["exit_code"])
            if len(codes) == count:
                break
    assert codes == [0] * count


def requests_in(site: Site) -> list[Path]:
    return list(site.watch_dir.glob("*.run"))


def test_a_login_is_acknowledged_and_run_while_another_site_has_thousands_queued(
    installation: Installation, busy: Site, site: Site, watcher: Daemon, gate: Gate
) -> None:
    installation.run_as(busy.account, pile_up_command(installation, busy, gate, 0, QUEUED))
    wait_until_taken(watcher, QUEUED)
    for number in range(5):
        log_in(installation, site, number)
    ended(watcher, site, 5)
    assert not [event for event in watcher.events if event["event"] == "job ended" and event["site"] == "busy"]
    assert not requests_in(busy)


def test_a_login_is_acknowledged_while_thousands_of_requests_of_another_site_come_in(
    installation: Installation, busy: Site, site: Site, watcher: Daemon, gate: Gate
) -> None:
    command = pile_up_command(installation, busy, gate, 0, QUEUED)
    clients = installation.start("clients", command, Identity(busy.account))
    number = 0
    while clients.returncode is None or requests_in(busy):
        log_in(installation, site, number)
        number += 1
    assert number
    wait_until_taken(watcher, QUEUED)
    ended(watcher, site, number)
