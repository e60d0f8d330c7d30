"""What the package brings, and what is left of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.vm.host import HELPER, HELPER_LOG, WATCHER

if TYPE_CHECKING:
    from tests.vm.host import Host

FOLDER = "/usr/lib/basestation-runner"


def test_the_host_has_no_python(host: Host) -> None:
    assert host.run("type python3 || type python || ls -d /usr/lib/python3*").status != 0


def test_installing_enables_and_starts_nothing(host: Host) -> None:
    assert set(host.check("cat /var/tmp/enabled").split()) == {"disabled"}
    assert set(host.check("cat /var/tmp/active").split()) == {"inactive"}


def test_the_version_says_what_the_program_was_made_of(host: Host) -> None:
    pattern = r"runner \S+ \(commit [0-9a-f]{12}(-dirty)?, Python 3\.\d+\.\d+, Nuitka \d+\.\d+\.\d+\)"
    assert re.fullmatch(pattern, host.check("runner --version"))


def test_every_command_has_a_manual_page(host: Host) -> None:
    commands = re.findall(r"^  ([a-z-]+)  ", host.check("runner --help").split("Commands:")[1], re.MULTILINE)
    assert {"status", "validate-config", "privexec"} <= set(commands)
    for name in ("runner", *(f"runner-{command}" for command in commands)):
        title = host.check(f"zcat /usr/share/man/man1/{name}.1.gz | grep -m 1 ^.TH")
        assert name.upper() in title.upper().replace("\\", "")


def test_bash_completes_commands_and_options(host: Host) -> None:
    complete = """
        . /usr/share/bash-completion/completions/runner
        COMP_WORDS=({0}) COMP_CWORD={1}; _runner_completion runner; echo "${{COMPREPLY[@]}}"
    """
    assert host.check(complete.format("runner val", 1)) == "validate-config"
    assert host.check(complete.format("runner status --ch", 2)) == "--check"


@pytest.mark.parametrize(
    ("file", "first"),
    [("zsh/vendor-completions/_runner", "#compdef runner"), ("fish/vendor_completions.d/runner.fish", "function ")],
)
def test_other_shells_have_completions_too(host: Host, file: str, first: str) -> None:
    text = host.check(f"cat /usr/share/{file}")
    assert text.startswith(first)
    assert "_RUNNER_COMPLETE=" in text


@pytest.mark.parametrize("unit", [HELPER, WATCHER])
def test_the_units_exposure_is_what_the_documentation_says(host: Host, unit: str) -> None:
    version = host.check("systemctl --version | awk 'NR == 1 { print $2 }'")
    found = host.check(f"systemd-analyze security --no-pager {unit}.service | grep -o 'exposure level.*: [0-9.]*'")
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in host.check("cat /usr/share/doc/basestation-runner/docs/hardening.md").splitlines()
        if line.startswith("|")
    ]
    versions = next(row for row in table if row[0] == "unit")
    told = next(row for row in table if row[0] == f"{unit}.service")
    assert told[versions.index(f"systemd {version}")] == found.split()[-1]


def test_systemd_finds_no_fault_in_the_units(host: Host) -> None:
    done = host.run(
        f"cd /usr/lib/systemd/system && systemd-analyze verify --man=no {HELPER}.service {WATCHER}.service *.slice"
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "baserunner" in line]
    assert (done.status, ours) == (0, []), done


def test_both_units_are_active_at_the_first_start_and_nothing_has_failed(host: Host) -> None:
    for unit in (HELPER, WATCHER):
        host.wait_active(unit)
    assert host.check("systemctl --failed --no-legend --plain") == ""
    assert "starting" not in host.check(
        f"journalctl -b -u {HELPER} -u {WATCHER} -o cat --grep 'main process exited' || :"
    )


@pytest.mark.parametrize("unit", [HELPER, WATCHER])
def test_a_daemon_is_one_process_of_the_installed_file_that_tells_systemd_itself(host: Host, unit: str) -> None:
    pid = host.main_pid(unit)
    assert host.check(f"readlink /proc/{pid}/exe") == f"{FOLDER}/runner"
    assert host.check(f"stat -c %u /proc/{pid}") != "0"
    # systemd takes READY from this process alone.
    shown = host.check(f"systemctl show -p Type,NotifyAccess,WatchdogUSec {unit}").splitlines()
    assert sorted(shown) == ["NotifyAccess=main", "Type=notify", "WatchdogUSec=30s"]
    assert "sites" in host.check(f"systemctl show -P StatusText {unit}")


def test_the_configuration_is_found_good_by_the_installed_program(host: Host) -> None:
    done = host.run("runner validate-config --host")
    assert done.status == 0, done


def test_a_helper_whose_files_its_account_could_change_does_not_start_and_recovers(host: Host) -> None:
    before = host.main_pid(HELPER)
    library = host.check(f"ls {FOLDER}/*.so* | head -n 1")
    host.check(f"chown {HELPER} {library}; systemctl --no-block restart {HELPER}")
    host.wait(f"journalctl -b -u {HELPER} -o cat | grep -qF '{library}: the helper uses it, but it belongs to uid'")
    host.check(f"chown root:root {library}")
    host.wait_active(HELPER, before)


@pytest.mark.parametrize("unit", [HELPER, WATCHER])
def test_a_reload_keeps_the_process(host: Host, unit: str) -> None:
    before = host.main_pid(unit)
    host.check(f"systemctl reload {unit}")
    host.wait_active(unit)
    assert host.main_pid(unit) == before


def test_an_upgrade_restarts_both_daemons_and_no_job_notices(host: Host) -> None:
    job = host.start("alpha", "wait")
    before = {unit: host.main_pid(unit) for unit in (HELPER, WATCHER)}
    host.check("""
        dpkg-deb -R /in/package.deb /var/tmp/newer
        sed -i 's/^Version: .*/&+1/' /var/tmp/newer/DEBIAN/control
        dpkg-deb --root-owner-group -Zgzip -z1 --build /var/tmp/newer /var/tmp/newer.deb && dpkg -i /var/tmp/newer.deb
        rm -r /var/tmp/newer /var/tmp/newer.deb
    """)
    assert host.check("dpkg-query -W -f '${Version}' basestation-runner").endswith("+1")
    for unit, pid in before.items():
        host.wait_active(unit, pid)
    assert host.is_alive(job.pid)
    host.finish(job, 6)
    assert host.end(job)["exit_code"] == 6


def test_removed_and_purged_nothing_is_left_but_the_configuration_and_the_accounts(host: Host) -> None:
    job = host.start("beta", "wait")
    host.check("dpkg -r basestation-runner")
    assert host.run("ls /usr/bin/runner /usr/lib/basestation-runner /usr/lib/systemd/system/baserunner*").stdout == ""
    assert host.check(f"systemctl is-active {HELPER} {WATCHER} || :").split() == ["inactive"] * 2
    assert host.is_alive(job.pid)
    host.finish(job, 0)
    host.check("dpkg -P basestation-runner")
    left = host.check("find / -xdev -path /root -prune -o -path /in -prune -o -iname '*baserunner*' -print")
    host.check(f"dpkg -i /in/package.deb && systemctl enable --now {HELPER} {WATCHER}")
    assert set(left.splitlines()) <= {
        "/etc/baserunner",
        "/etc/systemd/system/baserunner-watch.service.d",  # the tests' own
        "/srv/alpha/rundir/.base_runner_lockfile",
        "/home/beta/rundir/.base_runner_lockfile",
    }
    for unit in (HELPER, WATCHER):
        host.wait_active(unit)
    assert "helper ready" in host.check(f"cat {HELPER_LOG}")
