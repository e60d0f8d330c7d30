"""What `runner install` and `runner uninstall` make of a host's files: all that belongs there, and nothing else."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from basestation_runner.commands import common
from basestation_runner.errors import RunnerError, report
from basestation_runner.install import host as hosts
from basestation_runner.install import manifest, uninstall
from basestation_runner.install.host import JOURNALS, Host
from basestation_runner.install.install import install, run
from basestation_runner.migrate import multi, setting
from tests.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable

TOP: Final = Path(__file__).parents[3]
ROTATION: Final = "etc/logrotate.d/basestation-runner"
UNIT: Final = "usr/lib/systemd/system/baserunner-watch.service"
OTHER_GROUP: Final = 65534
PAGE: Final = "usr/share/man/man1/runner.1.gz"

pytestmark = pytest.mark.usefixtures("privileged")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """The root of a host that has next to nothing."""
    need(shutil.which("systemd-sysusers") is not None, "systemd-sysusers")
    root = tmp_path / "root"
    for name in ("etc", "usr/bin", "usr/lib/systemd/system"):
        (root / name).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    return Host(root)


def program(tmp_path: Path, name: str, **content: str) -> Path:
    """Make the folder of a one-file program; `content` replaces what is in some of its files."""
    folder = tmp_path / "unpacked" / name
    texts = {
        "runner": "#!/bin/true\n",
        "library.so": name,
        f"files/{ROTATION}": content.get("rotation", "rotate\n"),
        f"files/{UNIT}": content.get("unit", "[Unit]\n"),
        f"files/{PAGE}": "page",
        "files/usr/lib/sysusers.d/basestation-runner.conf": (TOP / "packaging/systemd/sysusers.conf").read_text(),
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        (folder / path).chmod(0o600)
    (folder / "runner").chmod(0o700)
    return folder


def listing(root: Path) -> dict[str, str]:
    """Return everything below a directory: what it holds, or where it leads to."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "directory" if path.is_dir() else path.read_text(errors="replace")
    return found


def refusal(act: Callable[[], object]) -> list[str]:
    """Return the lines that say why something was refused."""
    with pytest.raises((RunnerError, ExceptionGroup)) as error:
        act()
    lines, status = report(error.value)
    assert status == 1
    return lines


def test_everything_is_roots_and_everybody_can_read_it_whatever_the_umask(tmp_path: Path, host: Host) -> None:
    for name in ("usr", "usr/lib", "usr/lib/systemd/system"):  # what is made there gets group and bit
        os.chown(host.root / name, 0, OTHER_GROUP)
        (host.root / name).chmod(0o2755)
    before = os.umask(0o077)
    try:
        install(program(tmp_path, "1"), host)
    finally:
        os.umask(before)
    folder = host.library / "1"
    assert {str(path.relative_to(folder)) for path in folder.iterdir()} == {"runner", "library.so", "files"}
    assert (host.root / "usr/bin/runner").readlink() == Path("../lib/basestation-runner/1/runner")
    assert (host.root / "usr/bin/runner").resolve() == folder / "runner"
    for path in (host.library, *host.library.rglob("*"), host.root / ROTATION, host.root / UNIT, host.configuration):
        facts = path.stat()
        executable = path.is_dir() or path.name == "runner"
        assert (path, facts.st_uid, facts.st_gid) == (path, 0, 0)
        assert (path, facts.st_mode & 0o7777) == (path, 0o755 if executable else 0o644)


def test_the_accounts_are_made(tmp_path: Path, host: Host) -> None:
    install(program(tmp_path, "1"), host)
    assert {"baserunner", "baserunner-exec"} <= {
        line.split(":")[0] for line in (host.root / "etc/passwd").read_text().splitlines()
    }


def test_a_second_time_it_changes_nothing_and_says_so(
    tmp_path: Path, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = program(tmp_path, "1")
    install(folder, host)
    said = capsys.readouterr().out
    assert said.startswith(f"installed: {host.library / '1'}, as {host.root}/usr/bin/runner\n")
    assert "systemd does not run there" in said
    assert "next: write" in said
    before = listing(host.root)
    inode = (host.root / UNIT).stat().st_ino
    install(folder, host)
    assert listing(host.root) == before
    assert (host.root / UNIT).stat().st_ino == inode
    said = capsys.readouterr().out
    assert said.startswith("nothing to do: it is already installed")
    assert "next: write" not in said


def test_what_has_been_damaged_is_mended(tmp_path: Path, host: Host) -> None:
    folder = program(tmp_path, "1")
    install(folder, host)
    before = listing(host.root)
    (host.library / "1/library.so").write_text("harm")
    (host.root / UNIT).write_text("harm")
    (host.root / "usr/bin/runner").unlink()
    install(folder, host)
    assert listing(host.root) == before


def test_an_upgrade_leaves_what_a_new_installation_would(tmp_path: Path, host: Host) -> None:
    older = program(tmp_path, "1", unit="[Unit]\nolder\n")
    (older / "files/usr/share/man/man1/older.1.gz").write_text("what the newer one does not have")
    install(older, host)
    install(program(tmp_path, "2"), host)
    upgraded = listing(host.root)
    uninstall.run(host.root, purge=False)
    install(program(tmp_path, "2"), host)
    assert listing(host.root) == upgraded
    assert not (host.library / "1").exists()


def test_an_older_version_stays_as_long_as_its_keepers_run(
    tmp_path: Path, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    older = program(tmp_path, "1")
    shutil.copy("/bin/sleep", older / "runner")
    install(older, host)
    keeper = subprocess.Popen([host.library / "1/runner", "infinity"])
    install(program(tmp_path, "2"), host)
    assert f"still in use, and removed by a later install: {host.library}/1\n" in capsys.readouterr().out
    assert (host.library / "1/library.so").exists()
    assert keeper.poll() is None
    keeper.kill()
    keeper.wait()
    install(program(tmp_path, "2"), host)
    assert sorted(path.name for path in host.library.iterdir()) == ["2", "manifest"]


def test_what_was_unpacked_to_install_it_goes_when_it_is_installed(tmp_path: Path, host: Host) -> None:
    shutil.copytree(program(tmp_path, "1"), host.cache / "1")
    install(host.cache / "1", host)
    assert [path.name for path in host.cache.iterdir()] == [hosts.CACHE_LOCK]
    uninstall.run(host.root, purge=False)
    assert not host.cache.exists()


def test_what_is_being_unpacked_is_let_alone(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version's one file unpacks itself, and ends while `install` waits for it."""
    folder, unfinished = program(tmp_path, "1"), host.cache / ".unfinished"
    unfinished.mkdir(parents=True)
    lock = os.open(host.cache / hosts.CACHE_LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    flock = fcntl.flock
    waited = []

    def wait(descriptor: int, operation: int) -> None:
        if os.fstat(descriptor).st_ino == (host.cache / hosts.CACHE_LOCK).stat().st_ino:
            with pytest.raises(BlockingIOError):
                flock(descriptor, operation | fcntl.LOCK_NB)
            waited.append(unfinished.is_dir())
            flock(lock, fcntl.LOCK_UN)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", wait)
    install(folder, host)
    assert waited == [True]
    assert not unfinished.exists()
    flock(lock, fcntl.LOCK_EX)
    uninstall.run(host.root, purge=False)
    assert len(waited) == 2
    os.close(lock)


def test_the_lock_is_the_one_that_the_one_file_takes() -> None:
    assert f'#define LOCK "{hosts.CACHE_LOCK}"\n' in (TOP / "packaging/onefile/runner.c").read_text()


def test_uninstalling_leaves_the_host_as_it_was_but_for_accounts(tmp_path: Path, host: Host) -> None:
    (host.root / "usr/share/man").mkdir(parents=True)
    (host.root / "etc/baserunner").mkdir()
    (host.root / "etc/baserunner/sites.yaml").write_text("{}\n")
    (host.root / "var/lib/baserunner").mkdir(parents=True)
    (host.root / "var/lib/baserunner/ledger.db").write_text("jobs")
    before = listing(host.root)
    install(program(tmp_path, "1"), host)
    uninstall.run(host.root, purge=False)
    accounts = {"etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/passwd-", "etc/group-", "etc/.pwd.lock"}
    after = listing(host.root)
    assert {name: text for name, text in after.items() if name not in accounts} == {
        name: text for name, text in before.items() if name not in accounts
    }


def test_uninstalling_twice_is_no_fault(tmp_path: Path, host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    install(program(tmp_path, "1"), host)
    assert uninstall.run(host.root, purge=False) == 0
    assert uninstall.run(host.root, purge=False) == 0
    assert capsys.readouterr().out.endswith("nothing is installed\n")


def test_a_purge_removes_what_the_daemons_have_written_and_nothing_else(tmp_path: Path, host: Host) -> None:
    install(program(tmp_path, "1"), host)
    (host.configuration / "sites.yaml").write_text("{}\n")
    for name in hosts.STATE:
        (host.root / name / "folder").mkdir(parents=True)
        (host.root / name / "folder" / "file").write_text("written")
    (host.root / "var/lib/other").mkdir()
    assert uninstall.run(host.root, purge=True) == 0
    assert not [name for name in hosts.STATE if (host.root / name).exists()]
    assert (host.root / "var/lib/other").is_dir()
    assert (host.configuration / "sites.yaml").exists()


def test_what_a_purge_cannot_remove_is_told_when_all_else_is_gone(
    tmp_path: Path, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    install(program(tmp_path, "1"), host)
    first, *others = hosts.STATE
    for name in others:
        (host.root / name / "folder").mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    (host.root / first).symlink_to(tmp_path / "disk")
    (line,) = refusal(lambda: uninstall.run(host.root, purge=True))
    assert line.startswith(f"runner: {host.root / first}: not all of it can be removed: ")
    assert "removed: ledger" not in capsys.readouterr().out
    assert not [name for name in others if (host.root / name).exists()]
    assert not host.library.exists()
    assert uninstall.run(host.root, purge=False) == 0


def test_what_a_migration_left_goes_with_a_purge_and_sites_that_nobody_serves_are_named(
    tmp_path: Path, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    install(program(tmp_path, "1"), host)
    journal = host.root / JOURNALS.replace("*", "alpha")
    drop_ins = [host.root / name for name in hosts.DROP_INS]
    own = drop_ins[0].with_name("mine.conf")
    for path in (journal, journal.with_name("beta.undone"), *drop_ins, own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert uninstall.run(host.root, purge=False) == 0
    assert "what was migrated now: alpha (install again for --rollback)\n" in capsys.readouterr().out
    assert all(path.exists() for path in (journal, *drop_ins))
    assert uninstall.run(host.root, purge=True) == 0
    assert "what was migrated now: alpha\n" in capsys.readouterr().out
    assert not any(path.exists() for path in (journal.parent, *drop_ins, drop_ins[1].parent))
    assert own.exists()


def test_installing_knows_what_a_migration_writes() -> None:
    assert Path("/", JOURNALS).parent == setting.JOURNALS
    assert {Path("/", name).name for name in hosts.DROP_INS} == {multi.DROP_IN}


def test_both_ways_of_installing_purge_the_same() -> None:
    script = (TOP / "packaging/deb/postrm").read_text()
    assert {f"/{name}" for name in hosts.STATE} == set(re.findall(r"/var/[a-z/-]+", script))
    assert {common.WATCH_STATE_DIR, common.HELPER_STATE_DIR, common.HELPER_CACHE_DIR} <= {
        Path("/", name) for name in hosts.STATE
    }


def test_what_the_administrator_has_changed_in_etc_stays(
    tmp_path: Path, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    install(program(tmp_path, "1"), host)
    (host.root / ROTATION).write_text("mine\n")
    install(program(tmp_path, "2", rotation="newer\n"), host)
    assert (host.root / ROTATION).read_text() == "mine\n"
    assert f"kept as it is: {host.root / ROTATION}" in capsys.readouterr().out
    uninstall.run(host.root, purge=False)
    assert (host.root / ROTATION).read_text() == "mine\n"


def test_what_nobody_has_changed_in_etc_is_upgraded(tmp_path: Path, host: Host) -> None:
    install(program(tmp_path, "1"), host)
    install(program(tmp_path, "2", rotation="newer\n"), host)
    assert (host.root / ROTATION).read_text() == "newer\n"
    uninstall.run(host.root, purge=False)
    assert not (host.root / ROTATION).exists()


def test_files_of_somebody_else_are_in_the_way_and_all_are_named_before_anything_is_changed(
    tmp_path: Path, host: Host
) -> None:
    (host.root / "usr/bin/runner").symlink_to("/opt/other/runner")
    (host.root / UNIT).write_text("other")
    before = listing(host.root)
    lines = refusal(lambda: install(program(tmp_path, "1"), host))
    assert lines == [
        f"runner: {host.root / name}: there is something else already (move it away)"
        for name in (UNIT, "usr/bin/runner")
    ]
    assert listing(host.root) == before


@pytest.mark.parametrize(("status", "refused"), [("install ok installed", True), ("deinstall ok config-files", False)])
def test_beside_the_debian_package_it_is_refused(tmp_path: Path, host: Host, status: str, refused: bool) -> None:  # noqa: FBT001 - a parameter
    need(shutil.which("dpkg-query") is not None, "dpkg-query")
    database = host.root / "var/lib/dpkg"
    database.mkdir(parents=True)
    (database / "status").write_text(
        f"Package: basestation-runner\nStatus: {status}\nVersion: 1\nArchitecture: all\n"
        "Maintainer: somebody <somebody@localhost>\nDescription: this\n"
    )
    if not refused:
        install(program(tmp_path, "1"), host)
        return
    before = listing(host.root)
    (line,) = refusal(lambda: install(program(tmp_path, "1"), host))
    assert "the Debian package basestation-runner is installed" in line
    (line,) = refusal(lambda: uninstall.run(host.root, purge=False))
    assert "apt remove basestation-runner" in line
    assert listing(host.root) == before


def test_another_installation_at_the_same_time_is_refused(tmp_path: Path, host: Host) -> None:
    with host.locked():
        (line,) = refusal(lambda: install(program(tmp_path, "1"), host))
    assert "another installation is going on" in line


def test_what_the_file_system_does_not_allow_is_one_line_and_can_be_tried_again(tmp_path: Path, host: Host) -> None:
    (host.root / "usr/share").write_text("in the way")
    (line,) = refusal(lambda: install(program(tmp_path, "1"), host))
    assert line.endswith("(mend that, and try again)")
    (host.root / "usr/share").unlink()
    install(program(tmp_path, "1"), host)
    assert (host.root / PAGE).read_text() == "page"


def test_an_installation_that_was_interrupted_can_be_taken_away(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Host) -> None:
        raise KeyboardInterrupt

    before = listing(host.root)
    monkeypatch.setattr(Host, "make_accounts", fail)
    with pytest.raises(KeyboardInterrupt):
        install(program(tmp_path, "1"), host)
    assert (host.root / UNIT).exists()
    assert uninstall.run(host.root, purge=False) == 0
    assert listing(host.root) == before


def test_the_manifest_names_each_file_that_is_not_the_program(tmp_path: Path, host: Host) -> None:
    install(program(tmp_path, "1"), host)
    found = manifest.load(host.manifest)
    assert found is not None
    assert found.files.keys() == {ROTATION, UNIT, PAGE, "usr/lib/sysusers.d/basestation-runner.conf"}
    subprocess.run(["sha256sum", "--check", "--quiet", host.manifest], cwd=host.root, check=True)


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path, host: Host) -> None:
    install(program(tmp_path, "1"), host)
    other = tmp_path / "other"
    other.write_text("other")
    (host.root / UNIT).unlink()
    (host.root / UNIT).symlink_to(other)
    install(program(tmp_path, "1"), host)
    assert other.read_text() == "other"
    assert not (host.root / UNIT).is_symlink()


def test_only_the_one_file_program_installs_itself() -> None:
    (line,) = refusal(lambda: run(Path("/")))
    assert line == "runner: only the one-file program installs itself (make binary, then sudo dist/runner install)"
