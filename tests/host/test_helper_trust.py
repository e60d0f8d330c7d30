"""What the helper holds, what it refuses to start with, and whom it refuses to run jobs as."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner import program
from basestation_runner.sandbox.installation import HELPER, WATCHER
from basestation_runner.sandbox.program import write_launcher
from tests.host.helper_client import DEADLINE, Gate, Station, launcher, parent_of
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.process import Daemon

NONE = "0" * 16
BOTH = "00000000000000c0"  # CAP_SETGID, CAP_SETUID


@pytest.fixture
def station(installation: Installation) -> Iterator[Station]:
    with Station(installation) as station:
        yield station


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def refuses_to_start(installation: Installation, *arguments: str, **options: Any) -> str:  # noqa: ANN401 - as start_helper
    """Start a helper that must end by itself with status 1, without a socket, and return what it says."""
    daemon = installation.start_helper(*arguments, wait=False, **options)
    assert daemon.wait(DEADLINE) == 1, daemon.tail()
    assert not installation.helper_socket.exists()
    assert "READY=1" not in daemon.notifications
    return daemon.log.read_text()


# What it holds


def test_a_helper_that_serves_holds_exactly_its_two_capabilities_and_passes_none_on(station: Station) -> None:
    station.add_shell_site("one")
    status = status_of(station.start().pid)
    assert (status["CapEff"], status["CapPrm"]) == (BOTH, BOTH)
    assert (status["CapInh"], status["CapAmb"]) == (NONE, NONE)


def test_a_keeper_holds_the_helpers_two_capabilities_and_is_as_closed(station: Station) -> None:
    site = station.add_shell_site("one")
    helper = station.start()
    with Gate(station.installation.top / "gate") as gate:
        order = station.order(site, station.mission(site), "do.sh", gate.in_shell)
        job = station.start_job(order)["pid"]
        keeper = parent_of(job)
        assert keeper != helper.pid
        status = status_of(keeper)
        # The last two reach what it executes: the program that becomes each job, and nothing else.
        assert [status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")] == [BOTH] * 4
        assert Path(f"/proc/{keeper}/cmdline").read_text().rstrip("\0") == "runner-keeper:one"
        assert cannot_look_into(station.installation, keeper)
        links = {os.readlink(f"/proc/{keeper}/fd/{number}") for number in os.listdir(f"/proc/{keeper}/fd")}  # noqa: PTH115, PTH208
        assert not {link for link in links if "priv_exec" in link or "helper-1.log" in link}
        sockets = [link for link in links if link.startswith("socket:")]
        assert len(sockets) == 2, "its job's and the fork server's, and none of the helper's"
        gate.open()
        station.client.event(str(order["job_id"]), "ended")


def test_a_child_that_waits_for_its_job_has_nothing_of_the_keepers_and_is_as_closed(station: Station) -> None:
    station.add_shell_site("one")
    (server,) = children_of(station.start().pid)()

    def waiting() -> list[int]:
        found = [child for keeper in children_of(server)() for child in children_of(keeper)()]
        return [child for child in found if status_of(child)["State"].startswith("S")]

    until(waiting, "a child that waits")
    (child,) = waiting()
    assert title_of(child) == status_of(child)["Name"] == "runner-become"
    assert cannot_look_into(station.installation, child)
    numbers = {int(name) for name in os.listdir(f"/proc/{child}/fd")}  # noqa: PTH208 - names
    assert numbers == {0, 1, 2, 3, 4}
    assert Path(f"/proc/{child}/environ").read_bytes() == b""


def test_no_process_of_the_helpers_own_account_can_read_its_memory(station: Station) -> None:
    station.add_shell_site("one")
    assert cannot_look_into(station.installation, station.start().pid)


def cannot_look_into(installation: Installation, pid: int) -> bool:
    """Whether a process of the same uid, without capabilities, is kept out of that process's memory."""
    code = """
import sys
kept_out = 0
for name in ("environ", "mem", "maps", "auxv"):
    try:
        open(f"/proc/{sys.argv[1]}/{name}", "rb").read(1)
    except PermissionError:
        kept_out += 1
    except OSError as error:
        print(name, error)
print(kept_out)
"""
    said = installation.run_as(
        installation.accounts.user(HELPER), [installation.program.python, "-IS", "-c", code, str(pid)]
    )
    # The kernel shows it by the owner; a second lock besides the capabilities that the reader lacks.
    return said == "4\n" and Path(f"/proc/{pid}/environ").stat().st_uid == 0


WAITS_IN_THE_PARSER = """
from basestation_runner.config import apart
parse = apart.parse
def wait(*texts):
    with open({path!r}) as gate:
        gate.readline()
    return parse(*texts)
apart.parse = wait
"""


@pytest.mark.parametrize("when", ["at the start", "when it is asked to read it anew"])
def test_nobody_of_the_helpers_account_can_speak_for_the_process_that_parses_its_configuration(
    station: Station, when: str
) -> None:
    """What that answers is believed by one who can become anybody."""
    station.add_shell_site("one")
    with Gate(station.installation.top / "gate") as gate:
        command = [str(launcher(station.installation, WAITS_IN_THE_PARSER.format(path=str(gate.path))))]
        station.installation.write_config()
        helper = station.installation.start_helper(command=command, wait=False)
        if when != "at the start":
            gate.open()
            helper.wait_ready()
            helper.send_signal(signal.SIGHUP)
        found = children_of(helper.pid)
        until(lambda: len(found()) == 2, "the fork server and the parser")
        (parser,) = (pid for pid in found() if title_of(pid) == "runner-privexec")
        assert cannot_look_into(station.installation, parser)
        # Its descriptors belong to root, as all of whoever is not dumpable: nobody else can open them.
        assert {path.lstat().st_uid for path in Path(f"/proc/{parser}/fd").iterdir()} == {0}
        status = status_of(parser)
        until(lambda: status_of(parser)["CapPrm"] == NONE, "it to have no capabilities")
        assert [status_of(parser)[name] for name in ("CapEff", "CapInh", "CapAmb")] == [NONE] * 3
        assert status["Uid"] == status_of(helper.pid)["Uid"]
        gate.open()
        helper.wait_ready()
        until(lambda: len(found()) == 1, "the parser to be gone")


def children_of(pid: int) -> Callable[[], list[int]]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return lambda: [int(word) for word in path.read_text().split()]


def title_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0")


def test_a_helper_is_shown_under_its_own_name(station: Station) -> None:
    station.add_shell_site("one")
    pid = station.start().pid
    assert Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0") == "runner-privexec"
    assert Path(f"/proc/{pid}/comm").read_text() == "runner-privexec\n"


def test_the_helpers_socket_is_open_to_the_watchers_group_alone(station: Station) -> None:
    station.add_shell_site("one")
    station.start()
    facts = station.installation.helper_socket.stat()
    accounts = station.installation.accounts
    assert (facts.st_uid, facts.st_gid) == (accounts.user(HELPER).uid, accounts.user(WATCHER).gid)
    assert facts.st_mode & 0o777 == 0o660


# What it refuses to start with


@pytest.mark.parametrize(
    "capabilities",
    [("setuid", "setgid", "kill"), ("setuid", "setgid", "sys_admin"), ("kill",)],
)
def test_a_helper_with_one_more_capability_refuses_to_start(station: Station, capabilities: tuple[str, ...]) -> None:
    station.add_shell_site("one")
    said = refuses_to_start(station.installation, capabilities=capabilities)
    assert "holds more than CAP_SETUID and CAP_SETGID" in said


@pytest.mark.parametrize("capability", ["setuid", "setgid"])
def test_a_helper_with_one_of_its_capabilities_refuses_to_start(station: Station, capability: str) -> None:
    station.add_shell_site("one")
    assert "holds a part of what it needs" in refuses_to_start(station.installation, capabilities=(capability,))


def test_a_helper_refuses_to_run_as_root(station: Station) -> None:
    station.add_shell_site("one")
    station.installation.accounts.add_user("another-root", uid=0, primary=HELPER)
    assert "must not run as root" in refuses_to_start(station.installation, account="another-root")


@pytest.mark.parametrize(("file", "mode"), [("sites.yaml", 0o664), ("applications.yaml", 0o646)])
def test_a_config_file_that_others_can_write_is_refused(station: Station, file: str, mode: int) -> None:
    station.add_shell_site("one")
    path = station.installation.sites_config.with_name(file)
    path.chmod(mode)
    said = refuses_to_start(station.installation)
    assert str(path) in said
    assert "others than root can write it" in said


@pytest.mark.parametrize("file", ["sites.yaml", "applications.yaml"])
def test_a_config_file_of_the_helpers_own_account_is_refused(station: Station, file: str) -> None:
    station.add_shell_site("one")
    path = station.installation.sites_config.with_name(file)
    os.chown(path, station.installation.accounts.user(HELPER).uid, -1)
    assert f"{path}: the helper uses it, but it belongs to uid" in refuses_to_start(station.installation)


@pytest.mark.parametrize(("levels", "mode"), [(0, 0o775), (1, 0o757)])
def test_a_directory_above_the_config_that_others_can_write_is_refused(
    station: Station, levels: int, mode: int
) -> None:
    station.add_shell_site("one")
    directory = station.installation.sites_config.parents[levels]
    directory.chmod(mode)
    assert f"{directory}: the helper uses it, but others than root can write it" in refuses_to_start(
        station.installation
    )


def test_a_config_behind_a_link_in_a_directory_that_others_can_write_is_refused(station: Station) -> None:
    station.add_shell_site("one")
    shared = station.installation.make_directory(station.installation.top / "shared")
    link = shared / "sites.yaml"
    link.symlink_to(station.installation.sites_config)
    shared.chmod(0o777)
    said = refuses_to_start(station.installation, "--sites-config", str(link))
    assert f"{shared}: the helper uses it, but others than root can write it" in said


def test_a_config_behind_somebody_elses_link_is_refused(station: Station) -> None:
    site = station.add_shell_site("one")
    sticky = station.installation.make_directory(station.installation.top / "sticky")
    sticky.chmod(0o1777)
    link = sticky / "sites.yaml"
    link.symlink_to(station.installation.sites_config)
    assert site.account is not None
    os.chown(link, site.account.uid, site.account.gid, follow_symlinks=False)
    said = refuses_to_start(station.installation, "--sites-config", str(link))
    assert f"{link}: the helper uses it, but it belongs to uid {site.account.uid}" in said


def test_a_config_behind_roots_own_link_in_a_sticky_directory_is_used(station: Station) -> None:
    site = station.add_shell_site("one")
    sticky = station.installation.make_directory(station.installation.top / "sticky")
    sticky.chmod(0o1777)
    (sticky / "sites.yaml").symlink_to(station.installation.sites_config)
    station.start("--sites-config", str(sticky / "sites.yaml"))
    assert station.output(site, "echo ran") == "ran\n"


@pytest.mark.parametrize("part", [".", "lib", "lib/basestation_runner/privexec", "lib/attrs"])
def test_a_program_in_a_directory_that_others_can_write_is_refused(station: Station, part: str) -> None:
    station.add_shell_site("one")
    directory = Path(station.installation.program.command[0]).parent / part
    directory.chmod(0o777)
    try:
        said = refuses_to_start(station.installation)
    finally:
        directory.chmod(0o755)
    assert f"{directory}: the helper uses it, but others than root can write it" in said


def test_a_program_file_that_others_can_write_is_refused(station: Station) -> None:
    station.add_shell_site("one")
    file = Path(station.installation.program.command[0]).with_name("lib") / "basestation_runner/nss.py"
    file.chmod(0o666)
    try:
        said = refuses_to_start(station.installation)
    finally:
        file.chmod(0o644)
    assert f"{file}: the helper uses it, but others than root can write it" in said


@pytest.mark.parametrize("exists", [True, False])
def test_a_place_to_import_from_that_others_can_write_or_make_is_refused(station: Station, *, exists: bool) -> None:
    station.add_shell_site("one")
    installation = station.installation
    shared = installation.make_directory(installation.top / "shared")
    shared.chmod(0o777)
    place = shared if exists else shared / "modules"
    launcher = write_launcher(
        installation.top / "launcher",
        installation.program.python,
        Path(installation.program.command[0]).with_name("lib"),
        f"sys.path.append({str(place)!r})",
    )
    assert f"{shared}: the helper uses it" in refuses_to_start(installation, command=[str(launcher)])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.chmod(program.BECOME, 0o644)", "Permission denied"),
        ("os.unlink(program.BECOME)", "No such file or directory"),
        ("shutil.copy('/bin/true', program.BECOME)", "wait status 0"),
    ],
)
def test_a_helper_whose_jobs_could_not_become_anything_does_not_start(station: Station, code: str, reason: str) -> None:
    station.add_shell_site("one")
    installation = station.installation
    copy = installation.top / "runner-become"
    shutil.copy(program.BECOME, copy)
    copy.chmod(0o755)
    prelude = f"import os, shutil\nfrom basestation_runner import program\nprogram.BECOME = {str(copy)!r}\n"
    subprocess.run([sys.executable, "-c", prelude + code], check=True)
    said = refuses_to_start(installation, command=[str(launcher(installation, prelude))])
    assert f"{copy}: the program that becomes each job cannot be executed: {reason}" in said


def test_a_helper_whose_capabilities_reach_nothing_that_it_executes_does_not_start(station: Station) -> None:
    station.add_shell_site("one")
    drops = "import ctypes\nif 'fork-server' in sys.argv: ctypes.CDLL(None).prctl(47, 4, 0, 0, 0)  # the ambient set\n"
    said = refuses_to_start(station.installation, command=[str(launcher(station.installation, drops))])
    assert "AmbientCapabilities=CAP_SETUID CAP_SETGID" in said


def test_a_library_that_others_can_write_is_refused(station: Station) -> None:
    station.add_shell_site("one")
    installation = station.installation
    lib = Path(installation.program.command[0]).with_name("lib")
    own = installation.make_directory(installation.top / "own")
    library = own / "_prctl.so"
    shutil.copy(next(lib.glob("_prctl*.so")), library)
    library.chmod(0o666)
    # Loaded without being a module that Python knows: only the kernel's map of the process shows it.
    launcher = write_launcher(
        installation.top / "launcher", installation.program.python, lib, f"import ctypes; ctypes.CDLL({str(library)!r})"
    )
    said = refuses_to_start(installation, command=[str(launcher)])
    assert f"{library}: the helper uses it, but others than root can write it" in said


def test_one_bad_entry_and_nothing_of_the_config_is_used(station: Station) -> None:
    station.add_shell_site("one")
    station.add_shell_site("two", cpu_quota_pct="much")
    said = refuses_to_start(station.installation)
    assert "sites.yaml:" in said
    assert "cpu_quota_pct" in said


def test_a_helper_without_its_watchers_account_refuses_to_start(station: Station) -> None:
    station.add_shell_site("one")
    said = refuses_to_start(station.installation, "--watcher-user", "nobody-knows-it")
    assert "the watcher's account nobody-knows-it is not known" in said


def test_another_account_can_not_even_become_the_helper_by_itself(station: Station) -> None:
    site = station.add_shell_site("one")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        station.installation.run_as(
            site.account,
            [
                *station.installation.program.command,
                *("privexec", "--sites-config", str(station.installation.sites_config)),
                *("--priv-exec-socket", str(station.installation.helper_socket)),
                *("--state-dir", str(station.installation.helper_state)),
            ],
        )
    assert caught.value.returncode == 1


# Whom it refuses to run jobs as


def refuses_account(station: Station, name: str) -> str:
    station.add_shell_site("one", account=station.installation.accounts.user(name), group=WATCHER)
    return refuses_to_start(station.installation)


def test_an_account_with_uid_0_under_another_name_is_refused(station: Station) -> None:
    accounts = station.installation.accounts
    accounts.add_group("plain")
    accounts.add_user("another-root", uid=0, primary="plain")
    assert "account another-root has uid 0, which no job may have" in refuses_account(station, "another-root")


@pytest.mark.parametrize("name", [HELPER, WATCHER])
def test_the_daemons_own_accounts_are_refused(station: Station, name: str) -> None:
    uid = station.installation.accounts.user(name).uid
    assert f"account {name} has uid {uid}, which no job may have" in refuses_account(station, name)


@pytest.mark.parametrize("name", [HELPER, WATCHER])
def test_an_account_with_a_daemons_uid_under_another_name_is_refused(station: Station, name: str) -> None:
    accounts = station.installation.accounts
    accounts.add_group("plain")
    accounts.add_user("another", uid=accounts.user(name).uid, primary="plain")
    assert f"account another has uid {accounts.user(name).uid}" in refuses_account(station, "another")


@pytest.fixture(params=["gid 0", "primary group", "watcher's group", "helper's group"])
def forbidden_group(request: pytest.FixtureRequest, station: Station) -> tuple[str, int]:
    accounts = station.installation.accounts
    accounts.add_group("another-root", gid=0)
    name = {"watcher's group": WATCHER, "helper's group": HELPER}.get(request.param, "another-root")
    accounts.add_group("one")
    accounts.add_user("one", primary="another-root" if request.param == "primary group" else "one")
    accounts.join("one", name)
    return name, accounts.gid(name)


def test_an_account_that_would_get_a_forbidden_group_is_refused(
    station: Station, forbidden_group: tuple[str, int]
) -> None:
    said = refuses_account(station, "one")
    assert f"account one would get GID {forbidden_group[1]}, which no job may have" in said


def test_a_site_that_names_a_forbidden_group_is_refused(station: Station, forbidden_group: tuple[str, int]) -> None:
    accounts = station.installation.accounts
    accounts.add_group("plain")
    accounts.join("one", "plain")
    site = {"group": "plain", "groups": ["plain", forbidden_group[0]]}
    station.add_shell_site("one", account=accounts.user("one"), **site)
    assert f"would get GID {forbidden_group[1]}" in refuses_to_start(station.installation)


def test_a_site_that_narrows_a_forbidden_group_away_is_served(
    station: Station, forbidden_group: tuple[str, int]
) -> None:
    del forbidden_group
    accounts = station.installation.accounts
    accounts.add_group("plain")
    accounts.join("one", "plain")
    site = station.add_shell_site("one", account=accounts.user("one"), group="plain", groups=["plain"])
    station.start()
    assert station.output(site, "id -G") == f"{accounts.gid('plain')}\n"


def test_an_account_that_became_root_is_refused_at_the_next_job(station: Station) -> None:
    accounts = station.installation.accounts
    site = station.add_shell_site("one")
    station.start()
    assert station.output(site, "echo ran") == "ran\n"
    mission = station.mission(site)
    accounts.remove_user("runner-one")
    accounts.add_user("runner-one", uid=0, primary="runner-one")
    order = station.order(site, mission, "do.sh", "echo ran")
    assert station.refusal(order) == "account runner-one has uid 0, which no job may have"
    assert not (mission / "job.log").exists()


def test_an_account_that_gained_a_forbidden_group_is_refused_at_the_next_job(station: Station) -> None:
    accounts = station.installation.accounts
    site = station.add_shell_site("one")
    station.start()
    mission = station.mission(site)
    accounts.join("runner-one", HELPER)
    order = station.order(site, mission, "do.sh", "echo ran")
    assert station.refusal(order) == (f"account runner-one would get GID {accounts.gid(HELPER)}, which no job may have")
    assert not (mission / "job.log").exists()


def test_an_account_that_appears_late_is_waited_for(station: Station) -> None:
    accounts = station.installation.accounts
    site = station.add_shell_site("one")
    account = accounts.user("runner-one")
    accounts.remove_user("runner-one")
    daemon = station.installation.start_helper(wait=False)
    wait_until_it_looks_names_up(daemon)
    accounts.add_user("runner-one", uid=account.uid, primary="runner-one")
    daemon.wait_ready()
    station.daemon, station.client = daemon, station.connect(accounts.user(WATCHER))
    assert station.output(site, "echo ran") == "ran\n"


def wait_until_it_looks_names_up(daemon: Daemon) -> None:
    """Wait until a helper has read its config: it has then dropped what may be inherited."""
    deadline = time.monotonic() + DEADLINE
    while status_of(daemon.pid)["CapAmb"] != NONE or status_of(daemon.pid)["CapEff"] != BOTH:
        assert daemon.returncode is None
        assert time.monotonic() < deadline
