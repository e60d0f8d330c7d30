"""Rundirs and hosts in a bad state, real ones: hanging and read-only mounts, limits that are reached, huge files."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from basestation_runner import filesystems
from basestation_runner.sandbox import WATCHER
from tests.host.helper_client import launcher
from tests.patience import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon, Event

IMPATIENT: Final = """
import functools
from basestation_runner.watch import watcher
watcher.Timing = functools.partial(watcher.Timing, recheck=0.3, hung=0.5, pause=0.02, settle=0.2, first_wait=0.05)
"""
"""The look each minute comes three times a second, and what hangs is given up after half a second."""
LOOKS: Final = 8
"""At a daemon, one soon after the other, that must show the same before it counts as at rest."""


@pytest.fixture
def alpha(installation: Installation) -> Site:
    return installation.add_site("alpha", "alpha")


@pytest.fixture
def beta(installation: Installation) -> Site:
    return installation.add_site("beta", "beta")


def start(installation: Installation, prelude: str = IMPATIENT) -> Daemon:
    installation.start_helper()
    return installation.start_watcher(command=[str(launcher(installation, prelude))])


def text_for(site: Site, number: int = 1) -> str:
    """Return a request whose mission is the rundir itself, a log of its own for each number."""
    return f"{site.homes} {site.homes} {site.homes}/log{number} Base.py --n {number}\n"


def drop(installation: Installation, site: Site, name: str, number: int = 1) -> Path:
    return installation.drop(site, text_for(site, number), by=site.account, name=name).path


def event(watcher: Daemon, text: str, **fields: object) -> Event:
    return watcher.wait_event(lambda each: each["event"] == text and fields.items() <= each.items(), PATIENCE)


def ended(watcher: Daemon, site: Site, count: int) -> None:
    """Wait until so many of a site's jobs have ended, each well."""
    seen = 0
    for each in watcher.follow(PATIENCE):
        if each["event"] == "job ended" and each["site"] == site.name:
            assert each["exit_code"] == 0
            seen += 1
            if seen == count:
                return


def runs(watcher: Daemon, site: Site) -> int:
    return sum(each["event"] == "job ended" and each["site"] == site.name for each in watcher.events)


@contextlib.contextmanager
def mounted(*arguments: str, on: Path, descriptor: int | None = None) -> Iterator[None]:
    kept = () if descriptor is None else (descriptor,)
    subprocess.run(["mount", "-i", *arguments, str(on)], check=True, pass_fds=kept)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)  # whoever still waits is answered by that
        subprocess.run(["umount", "-l", str(on)], check=True)


@contextlib.contextmanager
def dead_server(on: Path) -> Iterator[None]:
    """Mount a FUSE filesystem whose server says nothing, until the end of the block."""
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other"
    with mounted("-t", "fuse", "-o", options, "nobody", on=on, descriptor=server):
        yield


# Mounts


def test_a_rundir_on_a_file_server_that_does_not_answer_stops_no_other_site(
    installation: Installation, alpha: Site, beta: Site
) -> None:
    with dead_server(alpha.watch_dir):
        watcher = start(installation)
        pending = event(watcher, "site pending", site="alpha")
        assert pending["reason"] == "the rundir does not answer"
        for number in range(5):
            drop(installation, beta, f"{number}.run", number)
        ended(watcher, beta, 5)
    drop(installation, alpha, "1.run")
    ended(watcher, alpha, 1)
    assert watcher.stop() == 0


def test_a_rundir_that_begins_to_hang_under_load_is_served_again_when_it_answers(
    installation: Installation, alpha: Site, beta: Site
) -> None:
    watcher = start(installation)
    drop(installation, alpha, "before.run", 1)
    ended(watcher, alpha, 1)
    with dead_server(alpha.watch_dir):
        event(watcher, "site pending", site="alpha")
        drop(installation, beta, "1.run")
        ended(watcher, beta, 1)
    drop(installation, alpha, "after.run", 2)
    ended(watcher, alpha, 2)


def test_a_watcher_can_be_stopped_while_a_rundir_hangs(installation: Installation, alpha: Site) -> None:
    with dead_server(alpha.watch_dir):
        watcher = start(installation)
        event(watcher, "site pending", site="alpha")
        assert watcher.stop() == 0


def test_a_file_server_is_known_by_its_type_without_being_asked(installation: Installation) -> None:
    on = installation.make_directory(installation.top / "mount")
    with dead_server(on):
        descriptor = os.open(on, os.O_PATH)
        assert filesystems.kind(descriptor) == "fuse"
        os.close(descriptor)
    assert filesystems.may_be_silent("fuse")
    descriptor = os.open("/proc/self", os.O_PATH)
    assert filesystems.kind(descriptor) == "proc"
    os.close(descriptor)
    assert not filesystems.may_be_silent("proc")


def test_a_rundir_that_is_mounted_read_only_is_served_once_and_that_is_said(
    installation: Installation, alpha: Site
) -> None:
    """A request in it is run once, whatever happens, and goes when the mount is writable again."""
    path = drop(installation, alpha, "1.run")
    (alpha.watch_dir / "bad.run").write_text("x\n")
    on = alpha.watch_dir
    with mounted("--bind", str(on), on=on):
        logs = installation.make_directory(on / "logs", alpha.account)
        with mounted("-t", "tmpfs", "-o", "mode=0777", "tmpfs", on=logs):
            subprocess.run(["mount", "-o", "remount,bind,ro", str(on)], check=True)
            watcher = start(installation)
            reason = event(watcher, "requests cannot be removed from the rundir: each is run once")["reason"]
            assert reason == "Read-only file system"
            lock = event(watcher, "lock cannot be written: no other daemon is kept away")
            assert lock["reason"] == "Read-only file system"
            event(watcher, "request rejected", request="bad.run", moved_to=None)
            watcher.wait_notification(lambda line: line.startswith("STATUS=1 site watching (1 with warnings)"))
            event(watcher, "job refused", site="alpha")  # the job itself cannot make its log there
            assert path.exists()
            before = len(watcher.events)
            subprocess.run(["mount", "-o", "remount,bind,rw", str(on)], check=True)
            until(lambda: not path.exists(), "the request to be removed")
    assert sum(each["event"] == "request accepted" for each in watcher.events) == 1
    assert before < 30, "it span"


# Limits of the host


IN_A_NAMESPACE_OF_ITS_OWN: Final = """
import ctypes, os, prctl
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
    raise OSError(ctypes.get_errno(), "no user namespace")
with open("/proc/sys/user/{name}", "w") as limit:
    limit.write("{value}")
with open("{gate}"):  # until whoever opens it to write has given the namespace its accounts
    pass
for kind in (prctl.cap_inheritable, prctl.cap_effective, prctl.cap_permitted):
    kind.limit()
"""
"""The kernel counts inotify's things for each user namespace: this limits the watcher's alone."""


def start_limited(installation: Installation, name: str, value: int) -> Daemon:
    """Start a watcher that has at most so many of something."""
    gate = installation.top / "gate"
    os.mkfifo(gate)
    gate.chmod(0o644)
    own = textwrap.indent(IN_A_NAMESPACE_OF_ITS_OWN.format(name=name, value=value, gate=gate), "    ")
    prelude = f"{IMPATIENT}\nimport sys\nif sys.argv[1] == 'watch':\n{own}"  # not where the config is parsed
    watcher = installation.start_watcher(command=[str(launcher(installation, prelude))], wait=False)
    with gate.open("w"):
        for table in ("uid_map", "gid_map"):
            Path(f"/proc/{watcher.pid}/{table}").write_text("0 0 4294967295")
    return watcher


def set_limit(daemon: Daemon, name: str, value: int) -> None:
    command = f"echo {value} > /proc/sys/user/{name}"
    where = f"--user=/proc/{daemon.pid}/ns/user"
    subprocess.run(["nsenter", where, "--preserve-credentials", "sh", "-c", command], check=True)


def test_sites_for_which_no_watch_is_left_wait_and_name_the_sysctl(
    installation: Installation, alpha: Site, beta: Site
) -> None:
    installation.start_helper()
    watcher = start_limited(installation, "max_inotify_watches", 1)
    pending = event(watcher, "site pending")
    assert "no inotify watch is left: raise the sysctl fs.inotify.max_user_watches" in pending["reason"]
    watching = event(watcher, "site watching")  # one of them, when the watch on the helper's socket is not needed
    waiting, served = (alpha, beta) if watching["site"] == "beta" else (beta, alpha)
    early = drop(installation, waiting, "early.run")
    drop(installation, served, "1.run")
    ended(watcher, served, 1)
    assert early.exists()
    set_limit(watcher, "max_inotify_watches", 100)
    ended(watcher, waiting, 1)


@pytest.mark.usefixtures("alpha")
def test_a_watcher_that_gets_no_inotify_instance_ends_and_names_the_sysctl(installation: Installation) -> None:
    watcher = start_limited(installation, "max_inotify_instances", 0)
    assert watcher.wait(PATIENCE) == 1
    assert "fs.inotify.max_user_instances" in watcher.tail()


def test_at_the_descriptor_limit_nothing_is_lost_and_nothing_spins(
    installation: Installation, alpha: Site, beta: Site
) -> None:
    watcher = start(installation)
    drop(installation, alpha, "0.run", 0)
    ended(watcher, alpha, 1)
    descriptors = descriptors_at_rest(watcher)
    lowest_free = min(set(range(max(descriptors) + 2)) - descriptors)
    limit_descriptors(installation, watcher, lowest_free)
    paths = [drop(installation, site, f"{number}.run", number) for site in (alpha, beta) for number in range(1, 4)]
    pending = event(watcher, "site pending", site="alpha")
    assert "Too many open files" in pending["reason"]
    event(watcher, "site pending", site="beta")
    assert all(path.exists() for path in paths)
    used, lines, before = cpu_seconds(watcher), len(watcher.events), wake_ups(watcher)
    until(lambda: wake_ups(watcher) > before + 20, "it to look again some times")
    assert cpu_seconds(watcher) - used < 1
    assert len(watcher.events) - lines < 10
    limit_descriptors(installation, watcher, 1024)
    ended(watcher, alpha, 4)
    ended(watcher, beta, 3)
    assert (runs(watcher, alpha), runs(watcher, beta)) == (4, 3)


def descriptors_at_rest(daemon: Daemon) -> set[int]:
    """Return which descriptors a daemon has open when it does nothing, some looks long."""
    looks: list[tuple[int, set[int]]] = []

    def is_at_rest() -> bool:
        looks.append((wake_ups(daemon), {int(path.name) for path in Path(f"/proc/{daemon.pid}/fd").iterdir()}))
        return len(looks) > LOOKS and all(look == looks[-1] for look in looks[-LOOKS:])

    until(is_at_rest, "it to rest")
    return looks[-1][1]


def limit_descriptors(installation: Installation, daemon: Daemon, most: int) -> None:
    command = ["prlimit", f"--pid={daemon.pid}", f"--nofile={most}:"]
    installation.run_as(installation.accounts.user(WATCHER), command)


def cpu_seconds(daemon: Daemon) -> float:
    fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wake_ups(daemon: Daemon) -> int:
    """Return how often a daemon has gone to sleep: one that spins does not."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


# Huge and hostile files


def resident(daemon: Daemon) -> int:
    """Return the most memory that a daemon has ever had, in KiB."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def test_files_of_ten_megabytes_cost_neither_memory_nor_log(installation: Installation, alpha: Site) -> None:
    watcher = start(installation)
    drop(installation, alpha, "0.run")
    ended(watcher, alpha, 1)
    memory, log = resident(watcher), watcher.log.stat().st_size
    for number in range(20):
        installation.drop(alpha, "x" * 10_000_000, by=alpha.account, name=f"big{number}.run")
    drop(installation, alpha, "1.run", 2)
    ended(watcher, alpha, 2)
    assert resident(watcher) - memory < 4096
    assert watcher.log.stat().st_size - log < 10_000
    assert sum("larger than 64 KiB" in str(each.get("reason")) for each in watcher.events) == 10, (
        "then they are counted"
    )
    assert not list(alpha.watch_dir.glob("*.run"))


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def write(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def closed(path: Path) -> None:
    path.write_text("secret\n")
    path.chmod(0)


def foreign(path: Path) -> None:
    path.write_text("/a /b /c Base.py\n")
    os.chown(path, 65534, 65534)


def two_names(path: Path) -> None:
    path.write_text("/a /b /c Base.py\n")
    path.with_name("second name").hardlink_to(path)


GOOD: Final = b"/a /b /c Base.py\n"
BAD: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "three fields": (write(b"/a /b /c\n"), "3 of the 4 fields"),
    "empty": (write(b""), "its first line is empty"),
    "NUL": (write(b"/a /b /c\0 Base.py\n"), "NUL"),
    "not UTF-8": (write(b"/a /b /\xff Base.py\n"), "not UTF-8"),
    "64 KiB and one": (write(GOOD + b" " * 65536), "larger than 64 KiB"),
    "link": (lambda path: path.symlink_to("/etc/passwd"), "a symbolic link"),
    "dangling": (lambda path: path.symlink_to("nothing"), "a symbolic link"),
    "FIFO": (os.mkfifo, "a FIFO"),
    "socket": (unix_socket, "a socket"),
    "directory": (lambda path: path.mkdir(), "a directory"),
    "two names": (two_names, "a second name"),
    "closed": (closed, "cannot be opened: Permission denied"),
    "foreign": (foreign, "no member of the site's group"),
    "loader": (write(GOOD + b"env: {LD_PRELOAD: b}\n"), "it can make other code run"),
    "broken YAML": (write(GOOD + b"env: [\n"), "not valid YAML"),
    "unknown addition": (write(GOOD + b"user: root\n"), "unknown field"),
    "no application": (write(GOOD + b"application: none\n"), "application none is not defined"),
    "other application": (write(GOOD + b"application: early-gps\n"), "does not run Base.py"),
    "nested": (write(GOOD + b"[" * 4000 + b"\n"), "nested too deep"),
    "relative": (write(b"a /b /c Base.py\n"), "not an absolute path"),
    "unlisted": (write(b"/a /b /c Rm.py\n"), "no application"),
    "escape": (write(b"/a /b /c\x1b[2J Base.py\n"), "cannot be printed"),
    "path as script": (write(b"/a /b /c ../Base.py\n"), "SCRIPT"),
}
NAMES: Final = ("{} with spaces", "{}\nnew line", "{}\x1b[2J", "{}-ä", os.fsdecode(b"{}-\xff\xfe"), '{}"], [beta] x=')


@pytest.mark.parametrize("when", ["before the start", "while it runs"])
def test_whatever_lies_in_a_rundir_good_requests_run_once_and_bad_ones_are_set_aside_with_a_reason(
    installation: Installation, alpha: Site, beta: Site, when: str
) -> None:
    assert alpha.account
    installation.start_helper()
    watcher = None

    def begin() -> Daemon:
        return installation.start_watcher(command=[str(launcher(installation, IMPATIENT))])

    if when == "while it runs":
        watcher = begin()
    made = {}
    for number, (kind, (make, reason)) in enumerate(BAD.items()):
        name = NAMES[number % len(NAMES)].format(kind) + ".run"
        made[name] = reason
        path = alpha.watch_dir / f"{number}.tmp"
        make(path)
        if kind not in {"foreign", "link", "dangling"}:
            os.chown(path, alpha.account.uid, alpha.account.gid)
        path.rename(alpha.watch_dir / name)
    good = [name.format("good") + ".run" for name in NAMES]
    for number, name in enumerate(good):
        path = alpha.watch_dir / f"{number}.tmp"
        path.write_text(text_for(alpha, number))
        os.chown(path, alpha.account.uid, alpha.account.gid)
        path.rename(alpha.watch_dir / name)
    watcher = watcher or begin()
    drop(installation, beta, "beta.run")
    ended(watcher, beta, 1)
    ended(watcher, alpha, len(good))
    rejected = alpha.watch_dir / "rejected"
    # A directory of somebody else's cannot be moved into another: it stays in the rundir under its new name.
    until(lambda: len(list(rejected.iterdir())) == 2 * len(BAD) - 2, "all bad ones to be set aside")
    for name, reason in made.items():
        kind = name.removesuffix(".run")
        where = alpha.watch_dir if kind.startswith("directory") else rejected
        (found,) = (path for path in where.iterdir() if path.name.startswith(kind) and path.suffix == ".reason")
        assert reason in found.read_text(), name
    assert not [path for path in alpha.watch_dir.iterdir() if path.name.endswith(".run")]
    assert runs(watcher, alpha) == len(good)
    reports = [json.loads(path.read_text()) for path in alpha.watch_dir.glob("report-*.json")]
    assert {report["uids"][0] for report in reports} == {alpha.account.uid}
    lines: list[dict[str, Any]] = [json.loads(line) for line in watcher.log.read_text().splitlines()]
    assert {line["program"] for line in lines} == {"runner-watch"}
    assert {line.get("site") for line in lines if line["event"] == "job ended"} == {"alpha", "beta"}
