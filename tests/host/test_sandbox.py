"""The sandbox that the demo and the tests on real accounts stand on."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.errors import RunnerError
from basestation_runner.sandbox import HELPER, WATCHER, single_account
from basestation_runner.sandbox.installation import HELPER_CAPABILITIES
from basestation_runner.sandbox.process import Identity
from basestation_runner.sandbox.program import at, check_interpreter, write_launcher

if TYPE_CHECKING:
    from basestation_runner.sandbox import Installation, Sandbox
    from basestation_runner.sandbox.accounts import Accounts
    from basestation_runner.sandbox.process import Daemon

READY_DAEMON = """
import json, os, signal, socket
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.connect(os.environ["NOTIFY_SOCKET"])
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({"event": "up", "status": status, "environment": dict(os.environ)}), flush=True)
notify.send(b"READY=1\\nSTATUS=here")
signal.pause()
"""


def start_stand_in(installation: Installation, identity: Identity, code: str = READY_DAEMON) -> Daemon:
    return installation.start("stand-in", [installation.program.python, "-ISc", code], identity)


def status_of(daemon: Daemon) -> dict[str, Any]:
    daemon.wait_ready()
    return dict(daemon.wait_event(lambda event: event["event"] == "up")["status"])


def capability_sets(status: dict[str, Any]) -> dict[str, int]:
    return {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", "CapBnd")}


def test_a_helper_has_its_account_its_groups_and_exactly_two_capabilities(installation: Installation) -> None:
    helper, watcher = installation.accounts.user(HELPER), installation.accounts.user(WATCHER)
    status = status_of(start_stand_in(installation, Identity(helper, HELPER_CAPABILITIES)))
    assert status["Uid"].split() == [str(helper.uid)] * 4
    assert status["Gid"].split() == [str(helper.gid)] * 4
    assert sorted(status["Groups"].split()) == sorted([str(helper.gid), str(watcher.gid)])
    assert set(capability_sets(status).values()) == {1 << 6 | 1 << 7}  # CAP_SETGID, CAP_SETUID


def test_a_watcher_has_no_capability_and_is_in_every_sites_group(installation: Installation) -> None:
    sites = [installation.add_site(name, f"srv/{name}") for name in ("one", "two")]
    status = status_of(start_stand_in(installation, Identity(installation.accounts.user(WATCHER))))
    assert set(capability_sets(status).values()) == {0}
    assert {str(site.account.gid) for site in sites if site.account} <= set(status["Groups"].split())


def test_a_daemons_environment_is_built_from_nothing(installation: Installation) -> None:
    daemon = start_stand_in(installation, Identity())
    daemon.wait_ready()
    environment = daemon.wait_event(lambda event: event["event"] == "up")["environment"]
    assert set(environment) == {"PATH", "LANG", "NOTIFY_SOCKET"}
    assert daemon.notifications == ["READY=1", "STATUS=here"]


def test_a_daemon_that_ends_before_it_is_ready_is_reported_with_its_last_words(installation: Installation) -> None:
    daemon = start_stand_in(installation, Identity(), "import sys; sys.exit('no such luck')")
    with pytest.raises(RunnerError, match="ended with status 1") as caught:
        daemon.wait_ready()
    assert "no such luck" in caught.value.__notes__[0]


def test_a_daemon_that_is_not_ready_in_time_is_reported(installation: Installation) -> None:
    daemon = start_stand_in(installation, Identity(), "import signal; signal.pause()")
    with pytest.raises(RunnerError, match=r"within 0\.1 s"):
        daemon.wait_ready(timeout=0.1)


def test_a_daemon_that_floods_its_output_is_never_held_up(installation: Installation) -> None:
    daemon = start_stand_in(installation, Identity(), "for n in range(50_000): print('line', n)\nprint('end', end='')")
    assert daemon.wait_event(lambda event: event["event"] == "end")
    assert daemon.wait(timeout=10) == 0
    assert daemon.log.read_text().count("\n") == 50_000


def test_nothing_that_a_daemon_started_outlives_the_installation(sandbox: Sandbox) -> None:
    code = """
import os, signal
if not os.fork():
    os.setsid()
    print(os.getpid(), flush=True)
signal.pause()
"""
    with sandbox.installation() as installation:
        site = installation.add_site("one", "srv/one")
        daemon = start_stand_in(installation, Identity(site.account), code)
        orphan = os.pidfd_open(int(daemon.wait_event(lambda event: event["event"].isdigit())["event"]))
        daemon.kill()
        assert not select.select([orphan], [], [], 0)[0]
    assert select.select([orphan], [], [], 0)[0]
    os.close(orphan)


def test_account_changes_are_seen_at_once_by_running_processes(accounts: Accounts) -> None:
    first = accounts.add_user("first")
    accounts.add_group("extra", gid=3_000_000_000)
    assert pwd.getpwnam("first").pw_uid == first.uid
    accounts.join("first", "extra")
    assert set(os.getgrouplist("first", first.gid)) == {first.gid, 3_000_000_000}
    accounts.leave("first", "extra")
    assert os.getgrouplist("first", first.gid) == [first.gid]
    accounts.remove_user("first")
    with pytest.raises(KeyError):
        pwd.getpwnam("first")
    assert grp.getgrnam("extra").gr_mem == []


def test_a_reader_never_sees_half_a_change(accounts: Accounts) -> None:
    steady = accounts.add_user("steady")
    wanted = {steady.gid, *(accounts.add_group(f"g{number}") for number in range(20))}
    accounts.join("steady", *(f"g{number}" for number in range(20)))
    code = f"""
import os, select, sys
print("reading", flush=True)
while not select.select([0], [], [], 0)[0]:
    if set(os.getgrouplist("steady", {steady.gid})) != {wanted!r}:
        sys.exit("half a change")
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        for number in range(100):
            accounts.add_user(f"passing{number % 2}", groups=["g0", "g19"])
            accounts.remove_user(f"passing{number % 2}")
            accounts.remove_group(f"passing{number % 2}")
        reader.stdin.close()
        assert reader.wait() == 0


def test_accounts_are_gone_with_their_installation(sandbox: Sandbox) -> None:
    with sandbox.installation() as installation:
        installation.add_site("one", "srv/one")
        assert pwd.getpwnam("runner-one")
    with pytest.raises(KeyError):
        pwd.getpwnam("runner-one")


def test_root_and_the_system_accounts_keep_their_names(accounts: Accounts) -> None:
    accounts.add_user("first")
    assert pwd.getpwuid(0).pw_name == "root"
    assert grp.getgrgid(0).gr_name == "root"


@pytest.mark.usefixtures("privileged")
def test_two_sandboxes_side_by_side_share_no_number_and_change_nothing_outside() -> None:
    code = """
from basestation_runner.sandbox import with_accounts
with with_accounts() as sandbox, sandbox.installation() as installation:
    print(installation.add_site("one", "srv/one").account.uid, sandbox.root, flush=True)
    input()
"""
    before = outside()
    with contextlib.ExitStack() as cleanup:
        others = [
            cleanup.enter_context(
                subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(2)
        ]
        uids, roots = zip(*(other.stdout.readline().split() for other in others if other.stdout), strict=True)
        assert len(set(uids)) == 2
        assert outside() == before
        assert [list(Path(root).iterdir()) for root in roots] == [[], []]
        for other in others:
            other.communicate("\n")
            assert other.returncode == 0
    assert not any(Path(root).exists() for root in roots)


@pytest.mark.usefixtures("privileged")
def test_a_sandbox_can_lie_on_a_disk_and_run_a_program_that_is_given() -> None:
    disk = Path(tempfile.mkdtemp(dir="/var/tmp"))
    code = f"""
import os
from pathlib import Path
from basestation_runner.sandbox import with_accounts
with with_accounts(runner=Path("/bin/echo"), disk=Path({str(disk)!r})) as sandbox:
    (sandbox.root / "here").touch()
    assert [path.name for path in Path({str(disk)!r}).glob("*/here")] == ["here"]
    print(sandbox.program.command[0], sandbox.root.stat().st_dev == os.stat({str(disk)!r}).st_dev)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["/bin/echo", "True"]
    disk.rmdir()  # nothing is left in it


@pytest.mark.usefixtures("privileged")
@pytest.mark.parametrize(("folder_mode", "mode"), [(0o700, 0o755), (0o755, 0o757)])
def test_a_program_that_other_accounts_cannot_run_or_can_change_is_refused(folder_mode: int, mode: int) -> None:
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(folder_mode)
    program = directory / "runner"
    program.write_text("#!/bin/sh\n")
    program.chmod(mode)
    with pytest.raises(RunnerError, match="cannot run this program, or can change it") as caught:
        at(program, uid=65534)
    assert caught.value.where == str(program)
    shutil.rmtree(directory)


def outside() -> tuple[str, str]:
    """Return the mounts and accounts that this process sees."""
    return Path("/proc/self/mountinfo").read_text(), Path("/etc/passwd").read_text()


def test_the_program_is_a_copy_that_every_account_can_run_and_only_root_can_write(installation: Installation) -> None:
    program = Path(installation.program.command[0])
    for path in (program, *program.parent.rglob("*")):
        facts = path.lstat()
        assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o022) == (0, 0, 0), path
    version = installation.run_as(installation.accounts.user(WATCHER), [str(program), "--version"])
    assert version.startswith("runner ")


def test_the_program_loads_only_its_copy_and_the_standard_library(installation: Installation) -> None:
    copy = Path(installation.program.command[0])
    prelude = "import sys; print(*sys.path, sep=chr(10)); sys.exit()"
    launcher = write_launcher(
        installation.top / "launcher", installation.program.python, copy.with_name("lib"), prelude
    )
    first, *others = installation.run_as(installation.accounts.user(HELPER), [str(launcher)]).splitlines()
    assert first == str(copy.with_name("lib"))
    assert not [path for path in others if "site-packages" in path or "dist-packages" in path]


def test_an_interpreter_that_other_accounts_cannot_run_is_refused(
    accounts: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    tmp_path.chmod(0o700)
    monkeypatch.setattr(sys, "_base_executable", str(python))
    with pytest.raises(RunnerError, match=r"other accounts cannot run this Python.*use Debian's"):
        check_interpreter(accounts.user(HELPER).uid)


def test_a_request_is_written_in_place_by_the_clients_account(installation: Installation) -> None:
    site = installation.add_site("jailed", "home/jailed", layout="jailed")
    home = installation.add_glider(site, "sg123", "mission1")
    assert site.seen(home / "mission1") == "/home/sg123/mission1"
    drop = installation.drop(site, "a request\n", by=installation.accounts.user("sg123"))
    facts = drop.path.stat()
    assert drop.path.read_text() == "a request\n"
    assert (facts.st_uid, facts.st_gid) == (
        installation.accounts.user("sg123").uid,
        installation.accounts.gid("runner-jailed"),
    )
    assert abs(facts.st_mtime_ns - drop.closed_ns) < 1_000_000_000


def test_a_client_cannot_drop_into_another_sites_rundir(installation: Installation) -> None:
    one, two = (installation.add_site(name, f"srv/{name}") for name in ("one", "two"))
    with pytest.raises(subprocess.CalledProcessError):
        installation.drop(one, "a request\n", by=two.account)


def test_what_is_saved_can_be_read_and_says_whose_it_was(installation: Installation, tmp_path: Path) -> None:
    installation.add_site("one", "srv/one")
    (installation.watcher_state / "ledger.db").touch(mode=0o600)
    (installation.top / "dangling").symlink_to("/nowhere")
    os.lchown(installation.top / "dangling", 4_000_000_000, 4_000_000_001)
    installation.save(tmp_path / "kept")
    assert (tmp_path / "kept/state/watcher/ledger.db").stat().st_mode & 0o777 == 0o644
    owners = (tmp_path / "kept/owners.txt").read_text().splitlines()
    assert "drwxrwsr-x runner-one:runner-one srv/one/rundir" in owners
    assert "lrwxrwxrwx 4000000000:4000000001 dangling" in owners


def test_a_single_account_sandbox_runs_everything_as_the_caller() -> None:
    with single_account() as sandbox, sandbox.installation() as installation:
        site = installation.add_site("own", "srv/own")
        installation.add_glider(site, "sg123")
        assert installation.drop(site, "a request\n", by=None).path.stat().st_uid == os.getuid()
        status = status_of(start_stand_in(installation, Identity()))
        assert status["Uid"].split() == [str(os.getuid())] * 4
        assert installation.run_as(None, [*installation.program.command, "--version"]).startswith("runner ")
    assert not sandbox.root.exists()


def test_a_caller_without_a_name_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with pytest.raises(RunnerError, match="uid 4000000000 has no account"), single_account():
        pass


def test_the_stand_in_script_reports_what_it_was_run_as(installation: Installation) -> None:
    site = installation.add_site("one", "srv/one")
    script, python = installation.scripts / "Base.py", installation.program.python
    shell = f"umask 0027; cd {site.watch_dir} && RUNNER_JOB_ID=7 exec {python} {script} --verbose"
    said = installation.run_as(site.account, ["sh", "-c", shell])
    report = json.loads((site.watch_dir / "report-Base.py-7.json").read_text())
    assert site.account
    assert said.startswith(f"Base.py: uid {site.account.uid}")
    assert report["uids"] == [site.account.uid] * 3
    assert report["argv"] == [str(script), "--verbose"]
    assert report["umask"] == 0o027
    assert report["capabilities"]["CapEff"] == "0" * 16
    assert set(report["descriptors"]) == {"0", "1", "2"}
