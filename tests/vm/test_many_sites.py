"""A host with many sites, from its boot on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.vm.host import HELPER, WATCHER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.vm.host import Host

SITES = 50
FILES = "passwd group shadow gshadow"


@pytest.fixture
def many(host: Host, config: str) -> Iterator[str]:  # noqa: ARG001 - the other sites only
    """The directory of the further sites, with a request in the rundir of each; the daemons do not know them yet."""
    host.check(f"mkdir /var/tmp/accounts; cd /etc; cp -a {FILES} /var/tmp/accounts; systemctl stop {WATCHER} {HELPER}")
    host.check(f"bash /in/sites.sh {SITES} /srv/many")
    yield "/srv/many"
    host.check(f"systemctl stop {WATCHER} {HELPER}; cp -a /var/tmp/accounts/* /etc; rm -r /var/tmp/accounts /srv/many")
    host.check(f"cp /var/tmp/sites.yaml /etc/baserunner/sites.yaml; systemctl start {HELPER} {WATCHER}")


def test_fifty_more_sites_are_served_from_a_boot_on(host: Host, many: str, measured: list[str]) -> None:
    host.reboot()
    for unit in (HELPER, WATCHER):
        host.wait_active(unit)
    host.wait(f'(($(runner status --json | grep -o \'"state": "watching"\' | wc -l) == {SITES + 2}))')
    host.wait(f"(($(cat {many}/*/log 2>/dev/null | grep -c '^job ') == {SITES}))")
    assert host.check(f"find {many} -name '*.run'") == ""
    assert host.check("systemctl --failed --no-legend --plain") == ""
    for unit in (HELPER, WATCHER):
        shown = host.check(f"systemctl show -P ExecMainStartTimestampMonotonic -P ActiveEnterTimestampMonotonic {unit}")
        begun, ready = sorted(int(number) / 1e6 for number in shown.split())
        assert host.check(f"systemctl show -P NRestarts {unit}") == "0"
        measured.append(f"{unit} with {SITES + 2} sites at a boot: ready {ready - begun:.2f} s after its start")
