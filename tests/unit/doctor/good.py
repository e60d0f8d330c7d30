"""A host in good order with two sites, and ways to spoil one fact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve

from basestation_runner.config.model import fingerprint
from basestation_runner.doctor.daemons import NEEDED
from basestation_runner.doctor.facts import (
    UNITS,
    Cgroups,
    Configuration,
    Directory,
    Facts,
    Ledger,
    Lock,
    Paths,
    Process,
    Socket,
    System,
    Systemd,
    Unit,
)
from basestation_runner.watch import lockfile, schema
from tests.unit.config import facts as config_facts

GIB = 1 << 30
SHIPPED = Path(__file__).parents[3] / "packaging" / "systemd"
DOCUMENT, CONFIG = config_facts.loaded(config_facts.SITES)
PATHS = Paths(
    sites_config=Path("/etc/sites.yaml"),
    applications_config=None,
    priv_exec_socket=Path("/run/h.sock"),
    control_socket=Path("/run/w.sock"),
    state_dir=Path("/state/w"),
    helper_state_dir=Path("/state/h"),
    cache_dir=Path("/cache"),
    cgroup_root=None,
    base_log=Path("/log/w/watch.log"),
    helper_base_log=Path("/log/h/privexec.log"),
    watcher_user="w",
    helper_user="h",
)
HELPER = Process(
    pid=200, name="runner-privexec", uid=2, groups=frozenset({1, 2}), held=NEEDED, effective=NEEDED, bounding=NEEDED,
    no_new_privs=True, has_old_program=False, cgroup="/baserunner.slice/baserunner-exec.service",
)  # fmt: skip
WATCHER = Process(
    pid=100, name="runner-watch", uid=1, groups=frozenset({1, 10, 30}), held=0, effective=0, bounding=0,
    no_new_privs=True, has_old_program=False,
)  # fmt: skip
FINGERPRINT = fingerprint({name: CONFIG.digest(name) for name in CONFIG.sites})
HELPER_SAYS = {"reply": "hello", "ok": True, "program": "1", "config": FINGERPRINT, "pid": 200, "missing": {}}
WATCHER_SAYS = {
    "ok": True,
    "watcher": {"program": "1", "pid": 100},
    "helper": {"program": "1", "config": FINGERPRINT, "same_config": True},
}
STATE: dict[str, Any] = {"site": "", "state": "watching", "reason": None, "remarks": [], "hold": None}


def directory(uid: int, mode: int = 0o700) -> Directory:
    return Directory(
        uid=uid, gid=uid, mode=mode, is_directory=True, is_read_only=False, free_bytes=GIB, free_files=10**6, may=True
    )


def unit(name: str) -> Unit:
    text = (SHIPPED / name).read_text()
    return Unit(
        name=name, load_state="loaded", active_state="active", file_state="enabled", needs_reload=False,
        fragment=f"/usr/lib/systemd/system/{name}", text=text, drop_ins={}, shipped=text,
    )  # fmt: skip


GOOD = Facts(
    paths=PATHS,
    is_root=True,
    program="1",
    trusted=None,
    system=System(
        kernel="6.1.0", has_openat2=True, libc="glibc 2.36", now=1_000_000.0, latest=999_000.0, is_synchronised=True
    ),
    systemd=Systemd(252, {name: unit(name) for name in (*UNITS.values(), "baserunner.slice")}),
    configuration=Configuration(document=DOCUMENT, config=CONFIG),
    host=config_facts.host(
        limits={"max_user_watches": 8192, "max_user_instances": 128, "max_queued_events": 16384},
    ),
    processes=(WATCHER, HELPER),
    sockets={
        "helper": Socket(uid=2, gid=1, mode=0o660, is_socket=True, listener=200, answer=HELPER_SAYS),
        "watcher": Socket(uid=1, gid=1, mode=0o666, is_socket=True, listener=100, answer=WATCHER_SAYS),
    },
    directories={
        "/state/w": directory(1),
        "/state/h": directory(2),
        "/cache": directory(2, 0o1777),
        "/log/w": directory(1, 0o750),
        "/log/h": directory(2, 0o750),
    },
    ledger=Ledger(schema.VERSION, ()),
    cgroups=Cgroups(
        has_version_2=True,
        root="/sys/fs/cgroup/baserunner.slice/jobs",
        controllers=frozenset({"cpu", "memory", "pids"}),
    ),
    locks={"one": Lock(lockfile.Seen(100, is_held=True)), "two": None},
    states={name: {**STATE, "site": name} for name in CONFIG.sites},
)


def changed(**changes: Any) -> Facts:  # noqa: ANN401 - any fact
    return evolve(GOOD, **changes)


def with_process(process: Process, **changes: Any) -> Facts:  # noqa: ANN401 - any fact
    other = HELPER if process is WATCHER else WATCHER
    return changed(processes=(other, evolve(process, **changes)))


def with_socket(which: Any, **changes: Any) -> Facts:  # noqa: ANN401 - any fact
    return changed(sockets={**GOOD.sockets, which: evolve(GOOD.sockets[which], **changes)})


def with_directory(path: str, **changes: Any) -> Facts:  # noqa: ANN401 - any fact
    found = GOOD.directories[path]
    assert isinstance(found, Directory)
    return changed(directories={**GOOD.directories, path: evolve(found, **changes)})


def with_system(**changes: Any) -> Facts:  # noqa: ANN401 - any fact
    return changed(system=evolve(GOOD.system, **changes))


def with_unit(name: str, **changes: Any) -> Facts:  # noqa: ANN401 - any fact
    assert GOOD.systemd
    assert isinstance(GOOD.systemd.units, dict)
    units = {**GOOD.systemd.units, name: evolve(GOOD.systemd.units[name], **changes)}
    return changed(systemd=Systemd(252, units))


def with_drop_in(name: str, text: str) -> Facts:
    return with_unit(name, drop_ins={f"/etc/systemd/system/{name}.d/override.conf": text})


PROBED = {
    "outcome": "probed",
    "account": "runner-one",
    "uids": [10, 10, 10],
    "gids": [10, 10, 10],
    "groups": [10],
    "capabilities": {"inheritable": 0, "permitted": 0, "effective": 0, "ambient": 0},
    "no_new_privs": True,
    "warnings": [],
    "cgroup": "/baserunner.slice/jobs/site-one/job-1",
    "cgroup_root": "/sys/fs/cgroup/baserunner.slice/jobs/site-one/job-1",
    "cgroup_limits": {"pids.max": "4096"},
}


def probed(**changes: Any) -> Facts:  # noqa: ANN401 - any fact
    return changed(probes={"one": {**PROBED, **changes}})
