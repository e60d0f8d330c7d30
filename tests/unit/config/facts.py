"""Two sites on a host in good order, and ways to spoil one fact."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

from attrs import evolve

from basestation_runner.config.document import Document, Source, parse
from basestation_runner.config.host import judge
from basestation_runner.config.hostfacts import (
    Daemon,
    Entry,
    Facts,
    Names,
    Process,
    SiteFacts,
)
from basestation_runner.config.load import load_sources
from basestation_runner.config.probes import Unseen
from basestation_runner.nss import Account

if TYPE_CHECKING:
    from basestation_runner.config.findings import Finding
    from basestation_runner.config.model import Config

SITES = """\
one:
  watch_dir: /srv/one
  runner_user: runner-one
two:
  watch_dir: /srv/two
  runner_user: runner-two
  groups: [science, extra]
  jail_root: /srv
  python_version: /usr/bin/python3
  basestation_dir: /opt/scripts
"""
ONE, TWO = (Account(f"runner-{name}", uid, uid, "/", "/bin/sh") for name, uid in (("one", 10), ("two", 20)))
WATCHER, HELPER = Account("w", 1, 1, "/", "/bin/sh"), Account("h", 2, 2, "/", "/bin/sh")
HUNG = Unseen("does not answer within 10 s", is_fault=True)
FAILED = Unseen("failed: Connection refused", is_fault=True)


def directory(gid: int, inode: int, permissions: int = 0o2770) -> Entry:
    return Entry(mode=stat.S_IFDIR | permissions, gid=gid, place=(8, inode), filesystem="ext4", may=True)


FILE = Entry(mode=stat.S_IFREG | 0o755, gid=0, place=(8, 9), filesystem="ext4", may=True)
SCRIPTS = dict.fromkeys(("Base.py", "BaseLogin.py", "GliderEarlyGPS.py"), FILE)
NAMES_ONE = Names(account=ONE, has=frozenset({10}), requested=(10,), labels={10: "runner-one"})
NAMES_TWO = Names(
    account=TWO, has=frozenset({20, 30, 40}), requested=(30, 40), labels={20: "runner-two", 30: "science"}
)
GOOD = Facts(
    watcher=Daemon(name="w", account=WATCHER, groups=frozenset({1, 10, 30})),
    helper=Daemon(name="h", account=HELPER, groups=frozenset({1, 2})),
    watchers=(Process(100, frozenset({1, 10, 30})),),
    limits={"max_user_watches": 8192, "max_user_instances": 128},
    files={"/etc/sites.yaml": None},
    sites={
        "one": SiteFacts(
            names=NAMES_ONE, rundir=directory(10, 1), jail=None, interpreter=FILE, scripts=SCRIPTS, commands={}
        ),
        "two": SiteFacts(
            names=NAMES_TWO,
            rundir=directory(30, 2),
            jail=directory(0, 3),
            interpreter=FILE,
            scripts=SCRIPTS,
            commands={},
        ),
    },
)


def loaded(text: str) -> tuple[Document, Config]:
    source = Source("s.yaml", text.encode())
    return parse(source), load_sources(source, None)


def found(facts: Facts, sites: str = SITES) -> list[Finding]:
    return list(judge(*loaded(sites), facts))


def host(**changes: Any) -> Facts:  # noqa: ANN401 - any fact
    return evolve(GOOD, **changes)


def site(name: str, **changes: Any) -> Facts:  # noqa: ANN401 - any fact
    return evolve(GOOD, sites={**GOOD.sites, name: evolve(GOOD.sites[name], **changes)})


def rundir(**changes: Any) -> Facts:  # noqa: ANN401 - any fact
    return site("one", rundir=evolve(directory(10, 1), **changes))


def names(name: str, **changes: Any) -> Facts:  # noqa: ANN401 - any fact
    return site(name, names=evolve(NAMES_ONE if name == "one" else NAMES_TWO, **changes))


def scripts(**changes: Any) -> Facts:  # noqa: ANN401 - any fact
    return site("two", scripts={**SCRIPTS, **{f"{name}.py": seen for name, seen in changes.items()}})
