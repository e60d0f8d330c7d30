"""A site of a legacy unit under Restart=always: taken over, given back, and killed on the way."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import pytest

from tests.vm.host import HELPER, WATCHER

if TYPE_CHECKING:
    from tests.vm.host import Host

UNIT: Final = "baserunner-gamma@runner-gamma.service"
FILE: Final = "/etc/systemd/system/baserunner-gamma@.service"
TOP: Final = "/srv/gamma"
JOURNAL: Final = "/var/lib/basestation-runner-migrate/gamma.jsonl"
LOCK: Final = f"{TOP}/rundir/.base_runner_lockfile"
SETUP: Final = f"""
    groupadd --system gamma
    useradd --system --no-create-home -g gamma --groups extra runner-gamma
    mkdir -p {TOP}/rundir {TOP}/missions /opt/legacy {FILE}.d
    chown -R runner-gamma:gamma {TOP}; chmod 2770 {TOP} {TOP}/rundir {TOP}/missions
    cp /in/legacy.pl /opt/legacy/BaseRunner.py
    for script in Base.py BaseLogin.py GliderEarlyGPS.py; do cp /in/job.sh /opt/legacy/$script; done
    cp /in/legacy.service {FILE}
    cp /in/legacy.conf {FILE}.d/no-jail.conf
    systemctl daemon-reload
    systemctl enable --now {UNIT}
"""


@pytest.fixture(scope="module")
def legacy(host: Host) -> Host:
    """The machine, with a third site that a legacy daemon serves."""
    host.check(SETUP)
    return host


def drop(host: Host, number: int) -> str:
    """Drop a request as the site's account; return its mission, whose log has a line for each time that it is run."""
    mission = f"{TOP}/missions/m{number}"
    line = f"{TOP}/missions {mission} {mission}/log Base.py --act=none"
    host.check(f"""
        mkdir -m 2770 {mission}; chown runner-gamma:gamma {mission}
        setpriv --reuid runner-gamma --regid gamma --init-groups \
            bash -c 'umask 002; echo {line} >{TOP}/rundir/r{number}.run'
    """)
    return mission


def ran(host: Host, mission: str) -> list[str]:
    """Wait until a request has run; return by whom, once for each time."""
    host.wait(f"grep -qs '^job ' {mission}/log && ! compgen -G '{TOP}/rundir/*.run'")
    lines = host.check(f"grep '^job ' {mission}/log").splitlines()
    return ["legacy" if line.startswith("job legacy ") else "ours" for line in lines]


def has_legacy(host: Host) -> bool:
    """Tell whether the legacy daemon has the site and starts with the host, and nothing of ours is left."""
    group = host.check("getent group gamma").split(":")
    groups = host.check(f"grep ^Groups: /proc/{host.main_pid(WATCHER)}/status").split()
    return (
        host.run(f"systemctl is-active {UNIT}; systemctl is-enabled {UNIT}").stdout.split() == ["active", "enabled"]
        and host.check(f"cat {LOCK}") == host.check(f"systemctl show -P MainPID {UNIT}")
        and "baserunner" not in group[3].split(",")
        and group[2] not in groups
        and "gamma" not in host.check("cat /etc/baserunner/sites.yaml")
    )


def has_runner(host: Host) -> bool:
    """Tell whether the watcher has the site, and the legacy unit stays away."""
    state = host.run(f"systemctl is-active {UNIT}; systemctl is-enabled {UNIT}").stdout.split()
    return state == ["inactive", "disabled"] and host.check(f"cat {LOCK}") == str(host.main_pid(WATCHER))


def test_a_site_is_taken_over_with_its_drop_in_and_given_back(legacy: Host) -> None:
    before = legacy.check("cat /etc/baserunner/sites.yaml")
    assert ran(legacy, drop(legacy, 1)) == ["legacy"]
    shown = legacy.check("runner migrate-site gamma --dry-run")
    assert "+  jailed: false" in shown
    assert "+  cpu_quota_pct: 40" in shown
    assert "+    CASE: '7'" in shown
    assert has_legacy(legacy)
    legacy.check("runner migrate-site gamma --yes")
    assert has_runner(legacy)
    assert ran(legacy, drop(legacy, 2)) == ["ours"]
    legacy.check("runner validate-config --host")
    legacy.check("runner migrate-site gamma --rollback --yes")
    assert has_legacy(legacy)
    assert legacy.check("cat /etc/baserunner/sites.yaml") == before
    assert ran(legacy, drop(legacy, 3)) == ["legacy"]


@pytest.mark.parametrize(
    ("number", "mark", "call"),
    [
        (11, '"stop", "what": "begun"', "--yes"),
        (12, '"stop", "what": "done"', "--yes"),
        (13, '"join", "what": "begun"', "--rollback --yes"),
        (14, '"write", "what": "done"', "--yes"),
        (15, '"reload", "what": "done"', "--rollback --yes"),
    ],
)
def test_killed_on_the_way_it_is_finished_or_undone_and_the_request_runs_once(
    legacy: Host, number: int, mark: str, call: str
) -> None:
    is_marked = shlex.quote(f"grep -qs {shlex.quote(mark)} {JOURNAL}")
    legacy.check(f"""
        runner migrate-site gamma --yes >/dev/null 2>&1 & pid=$!
        wait_for {is_marked}
        kill -KILL $pid || :
        wait $pid || :
    """)
    mission = drop(legacy, number)
    legacy.check(f"runner migrate-site gamma {call} || grep -q migrated {JOURNAL}")
    assert has_runner(legacy) if call == "--yes" else has_legacy(legacy)
    assert len(ran(legacy, mission)) == 1
    if call == "--yes":
        legacy.check("runner migrate-site gamma --rollback --yes")
    assert has_legacy(legacy)


def test_a_failure_on_the_way_undoes_everything(legacy: Host) -> None:
    legacy.check(f"systemctl mask --runtime --now {HELPER}")
    try:
        done = legacy.run("runner migrate-site gamma --yes 2>&1")
        assert done.status == 1, done
        assert "everything is as it was before" in done.stdout
        assert has_legacy(legacy)
    finally:
        legacy.check(f"systemctl unmask --runtime {HELPER}; systemctl start {HELPER}")


def test_the_list_knows_the_unit_and_nothing_is_left_when_it_is_gone(legacy: Host) -> None:
    assert UNIT in legacy.check("runner migrate-site --list")
    legacy.check(f"systemctl disable --now {UNIT}; rm -r {FILE} {FILE}.d {TOP} /opt/legacy; systemctl daemon-reload")
    assert UNIT not in legacy.check("runner migrate-site --list")
