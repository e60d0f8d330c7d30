"""What is made of the facts about a host: each rule on facts as data, and that the helper would decide the same."""

from __future__ import annotations

import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner import nss
from basestation_runner.config import hostfacts
from basestation_runner.config.document import Document, Source, parse
from basestation_runner.config.host import judge
from basestation_runner.config.hostfacts import (
    NOT_BY_THIS_USER,
    Absent,
    Daemon,
    Entry,
    Facts,
    Link,
    Names,
    Process,
    SiteFacts,
)
from basestation_runner.config.load import load_sources
from basestation_runner.config.probes import Unseen
from basestation_runner.errors import RunnerError
from basestation_runner.nss import Account, Group, LookupFailedError
from basestation_runner.privexec import policy
from basestation_runner.privexec.order import NotNowError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        "one": SiteFacts(names=NAMES_ONE, rundir=directory(10, 1), jail=None, interpreter=FILE, scripts=SCRIPTS),
        "two": SiteFacts(
            names=NAMES_TWO, rundir=directory(30, 2), jail=directory(0, 3), interpreter=FILE, scripts=SCRIPTS
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


def test_a_host_in_good_order_gives_nothing_but_what_may_be_meant_so() -> None:
    (note,) = found(GOOD)
    assert str(note) == (
        "s.yaml:7:11: note: two.groups: jobs do not get these groups of account runner-two: runner-two (GID 20)"
        " (list those that jobs need)"
    )


USERADD = "useradd --system --user-group --no-create-home --shell /usr/sbin/nologin"
ABOVE = "(look at its owner and mode, and at those of the directories above)"
MENDED = "(mend basestation_dir, or list in applications what the site runs)"
CASES: dict[str, tuple[Facts, str]] = {
    "no watcher": (
        host(watcher=Daemon(name="w", account=None)),
        f"there is no account w, the watcher's (mend --watcher-user, or create it: {USERADD} w)",
    ),
    "no helper": (
        host(helper=Daemon(name="h", account=None)),
        f"warning: there is no account h, the helper's (mend --helper-user, or create it: {USERADD} h)",
    ),
    "watcher not looked up": (
        host(watcher=Daemon(name="w", account=FAILED)),
        "the look-up of account w, the watcher's, failed: Connection refused",
    ),
    "helper outside the watcher's group": (
        host(helper=Daemon(name="h", account=HELPER, groups=frozenset({2}))),
        "the helper's account h is not in GID 1, the watcher's: it cannot share its socket (add it: usermod -aG 1 h)",
    ),
    "helper in a site's group": (
        host(helper=Daemon(name="h", account=HELPER, groups=frozenset({1, 2, 30}))),
        (
            "s.yaml:7:12: warning: two.groups[0]: the helper's account h is in the site's group science (GID 30): "
            "it needs no site's group (remove it from there)"
        ),
    ),
    "hidden processes": (
        host(watchers=NOT_BY_THIS_USER),
        "warning: which groups a running watcher has cannot be checked as this user (run it as root)",
    ),
    "few watches": (
        host(limits={"max_user_watches": 3}),
        (
            "warning: the sysctl fs.inotify.max_user_watches is 3: too low for 2 sites "
            "(raise it, and in /etc/sysctl.d for later: sysctl -w fs.inotify.max_user_watches=128)"
        ),
    ),
    "too few watches": (
        host(limits={"max_user_watches": 1}),
        (
            "the sysctl fs.inotify.max_user_watches is 1: too low for 2 sites "
            "(raise it, and in /etc/sysctl.d for later: sysctl -w fs.inotify.max_user_watches=128)"
        ),
    ),
    "no instance": (
        host(limits={"max_user_instances": 0}),
        (
            "the sysctl fs.inotify.max_user_instances is 0: too low for 2 sites "
            "(raise it, and in /etc/sysctl.d for later: sysctl -w fs.inotify.max_user_instances=128)"
        ),
    ),
    "a config file that others can write": (
        host(files={"/etc/sites.yaml": RunnerError("others can write it", where="/etc", hint="chmod go-w it")}),
        "/etc/sites.yaml:1:1: /etc: others can write it (chmod go-w it)",
    ),
    "a config file below a hidden directory": (
        host(files={"/etc/sites.yaml": NOT_BY_THIS_USER}),
        "/etc/sites.yaml:1:1: warning: who can write it cannot be checked as this user (run it as root)",
    ),
    "an ordinary user": (
        rundir(may=NOT_BY_THIS_USER),
        "warning: what the accounts can read, write and execute cannot be checked as this user (run it as root)",
    ),
    "no account": (
        site("one", names=None),
        (
            f"s.yaml:3:16: one.runner_user: there is no account runner-one (create it, or mend the name: {USERADD} "
            "runner-one)"
        ),
    ),
    "account not looked up": (
        site("one", names=FAILED),
        "s.yaml:3:16: one.runner_user: the look-up of account runner-one failed: Connection refused",
    ),
    "uid 0": (
        names("one", account=evolve(ONE, uid=0)),
        (
            "s.yaml:3:16: one.runner_user: account runner-one has uid 0, root's: the helper refuses it "
            "(give the site an account of its own)"
        ),
    ),
    "the watcher's uid": (
        names("one", account=evolve(ONE, uid=1)),
        (
            "s.yaml:3:16: one.runner_user: account runner-one has uid 1, the watcher's: the helper refuses it "
            "(give the site an account of its own)"
        ),
    ),
    "the helper's uid": (
        names("one", account=evolve(ONE, uid=2)),
        (
            "s.yaml:3:16: one.runner_user: account runner-one has uid 2, the helper's: the helper refuses it "
            "(give the site an account of its own)"
        ),
    ),
    "a uid that is none": (
        names("one", account=evolve(ONE, uid=2**32 - 1)),
        (
            "s.yaml:3:16: one.runner_user: account runner-one has uid 4294967295, which stands for none: "
            "the helper refuses it (give the site an account of its own)"
        ),
    ),
    "gid 0 of the account's own": (
        names("one", has=frozenset({0, 10}), requested=(10, 0)),
        (
            "s.yaml:3:16: one.runner_user: jobs would get GID 0, root's: the helper refuses them "
            "(name the other groups in groups, or take it from the account)"
        ),
    ),
    "the watcher's gid among the site's groups": (
        names("two", has=frozenset({20, 30, 1}), requested=(30, 1)),
        "s.yaml:7:21: two.groups[1]: jobs would get GID 1, the watcher's: the helper refuses them (remove it)",
    ),
    "more groups than a job can have": (
        names("one", has=frozenset(range(10, 310)), requested=tuple(range(10, 310))),
        "s.yaml:3:16: one.runner_user: 300 execution groups are requested, the most is 256",
    ),
    "no group for the site": (
        names("two", requested=(None, 40), has=frozenset({20, 40})),
        (
            "s.yaml:7:12: two.groups[0]: there is no group science: it is the site's group, jobs are refused "
            "(create it, or mend the name: groupadd --system science)"
        ),
    ),
    "a further group that does not exist": (
        names("two", requested=(30, None), has=frozenset({20, 30})),
        (
            "s.yaml:7:21: warning: two.groups[1]: there is no group extra: jobs run without it "
            "(create it, or mend the name: groupadd --system extra)"
        ),
    ),
    "a group not looked up": (
        names("two", requested=(30, FAILED), has=frozenset({20, 30})),
        "s.yaml:7:21: two.groups[1]: the look-up of group extra failed: Connection refused",
    ),
    "the account is not in the site's group": (
        names("two", has=frozenset({20, 40})),
        (
            "s.yaml:7:12: two.groups[0]: account runner-two is not in group science (GID 30): "
            "it is the site's group, jobs are refused (add it: usermod -aG science runner-two)"
        ),
    ),
    "the account is not in a further group": (
        names("two", has=frozenset({20, 30})),
        (
            "s.yaml:7:21: warning: two.groups[1]: account runner-two is not in group GID 40: jobs run without it "
            "(add it: usermod -aG 40 runner-two)"
        ),
    ),
    "the watcher is not in the site's group": (
        host(watcher=evolve(GOOD.watcher, groups=frozenset({1, 10}))),
        (
            "s.yaml:7:12: two.groups[0]: the watcher's account w is not in the site's group science (GID 30) "
            "(add it, then restart the watcher: usermod -aG science w)"
        ),
    ),
    "the running watcher is not in the site's group": (
        host(watchers=(Process(100, frozenset({1, 30})),)),
        (
            "s.yaml:3:16: one.runner_user: the running watcher (pid 100) is not in the site's group runner-one "
            "(GID 10) (restart it: a running process gains no group)"
        ),
    ),
    "no rundir": (
        site("one", rundir=Absent("/srv")),
        (
            "s.yaml:2:14: one.watch_dir: /srv/one does not exist: there is no /srv "
            "(create it, or mend the path: install -d -o runner-one -g runner-one -m 2770 /srv/one)"
        ),
    ),
    "a rundir that hangs": (
        site("one", rundir=HUNG),
        "s.yaml:2:14: one.watch_dir: /srv/one does not answer within 10 s",
    ),
    "a rundir that is hidden": (
        site("one", rundir=NOT_BY_THIS_USER),
        "s.yaml:2:14: warning: one.watch_dir: /srv/one cannot be checked as this user (run it as root)",
    ),
    "a rundir that is a file": (
        rundir(mode=stat.S_IFREG | 0o660),
        "s.yaml:2:14: one.watch_dir: /srv/one is not a directory",
    ),
    "a rundir that is a loose link": (
        rundir(links=(Link("/srv", "/b", is_loose=False), Link("/srv/one", "../b", is_loose=True))),
        (
            "s.yaml:2:14: one.watch_dir: /srv/one is a link where others than root can make one: it is not followed "
            "(name the directory that it leads to, ../b)"
        ),
    ),
    "a loose link on the way to a rundir": (
        rundir(links=(Link("/srv", "/b", is_loose=True),)),
        (
            "s.yaml:2:14: one.watch_dir: /srv is a link where others than root can make one: it is not followed "
            "(name the directory that it leads to, /b)"
        ),
    ),
    "a loose link on the way to a jail": (
        site("two", jail=evolve(directory(0, 3), links=(Link("/srv", "/b", is_loose=True),))),
        (
            "s.yaml:8:14: two.jail_root: /srv is a link where others than root can make one: it is not followed "
            "(name the directory that it leads to, /b)"
        ),
    ),
    "a rundir that everybody can write": (
        rundir(mode=stat.S_IFDIR | 0o2777),
        "s.yaml:2:14: one.watch_dir: everybody has access to /srv/one (mode 2777) (take it away: chmod o-rwx /srv/one)",
    ),
    "a rundir that everybody can enter": (
        rundir(mode=stat.S_IFDIR | 0o2771),
        (
            "s.yaml:2:14: warning: one.watch_dir: everybody has access to /srv/one (mode 2771) "
            "(take it away: chmod o-rwx /srv/one)"
        ),
    ),
    "a rundir that is the host's": (
        rundir(mode=stat.S_IFDIR | 0o1777, gid=0),
        "s.yaml:2:14: one.watch_dir: everybody shares /srv/one (give the site a rundir of its own)",
    ),
    "a rundir of another group": (
        rundir(gid=0),
        (
            "s.yaml:2:14: warning: one.watch_dir: /srv/one belongs to GID 0, not to the site's group runner-one "
            "(GID 10) (change it: chgrp runner-one /srv/one)"
        ),
    ),
    "a rundir that the watcher cannot use": (
        rundir(may=False),
        f"s.yaml:2:14: one.watch_dir: the watcher's account w cannot list, write and enter /srv/one {ABOVE}",
    ),
    "a rundir that nobody can write": (
        rundir(may=False, is_read_only=True),
        "s.yaml:2:14: one.watch_dir: /srv/one is on a filesystem that is mounted read-only",
    ),
    "a rundir on a file server": (
        rundir(filesystem="nfs4"),
        (
            "s.yaml:2:14: warning: one.watch_dir: /srv/one is on a filesystem of type nfs4: "
            "inotify may not tell of every request (keep rundirs on a local filesystem)"
        ),
    ),
    "two rundirs that are one": (
        site("two", rundir=directory(30, 1)),
        (
            "s.yaml:5:14: two.watch_dir: /srv/two is the same directory as the rundir of site one "
            "(give each site a rundir of its own)"
        ),
    ),
    "no jail": (
        site("two", jail=Absent("/srv")),
        "s.yaml:8:14: two.jail_root: /srv does not exist (create it, or mend the path)",
    ),
    "a jail that is a file": (site("two", jail=FILE), "s.yaml:8:14: two.jail_root: /srv is not a directory"),
    "a jail that the account cannot enter": (
        site("two", jail=evolve(directory(0, 3), may=False)),
        f"s.yaml:8:14: two.jail_root: account runner-two cannot enter /srv {ABOVE}",
    ),
    "no interpreter, by default": (
        site("one", interpreter=Absent("/opt/basestation")),
        (
            "s.yaml:1:1: one.python_version: /opt/basestation/bin/python does not exist: there is no /opt/basestation "
            "(create it, or mend the path)"
        ),
    ),
    "an interpreter without an x": (
        site("two", interpreter=evolve(FILE, mode=stat.S_IFREG | 0o644)),
        "s.yaml:9:19: two.python_version: /usr/bin/python3 is not an executable file",
    ),
    "an interpreter that the account cannot execute": (
        site("two", interpreter=evolve(FILE, may=False)),
        f"s.yaml:9:19: two.python_version: account runner-two cannot execute /usr/bin/python3 {ABOVE}",
    ),
    "no scripts' directory": (
        site("two", scripts=Absent("/opt/scripts")),
        "s.yaml:10:20: two.basestation_dir: /opt/scripts does not exist (create it, or mend the path)",
    ),
    "no script": (
        scripts(Base=Absent("/opt/scripts/Base.py")),
        f"s.yaml:10:20: two.basestation_dir: /opt/scripts/Base.py does not exist, a script of base {MENDED}",
    ),
    "a script that is a directory": (
        scripts(BaseLogin=directory(0, 8)),
        f"s.yaml:10:20: two.basestation_dir: /opt/scripts/BaseLogin.py is not a file, a script of base-login {MENDED}",
    ),
    "a script that the account cannot read": (
        scripts(GliderEarlyGPS=evolve(FILE, may=False)),
        f"s.yaml:10:20: two.basestation_dir: account runner-two cannot read /opt/scripts/GliderEarlyGPS.py {ABOVE}",
    ),
    "a script that hangs": (
        scripts(Base=HUNG),
        "s.yaml:10:20: two.basestation_dir: /opt/scripts/Base.py does not answer within 10 s",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_as_it_should_be_is_one_finding(case: str) -> None:
    facts, said = CASES[case]
    assert [str(finding) for finding in found(facts) if finding.level != "note"] == [said]


def test_a_missing_rundir_of_an_unknown_account_has_no_command() -> None:
    _, finding = found(site("one", names=None, rundir=Absent("/srv/one")))[:2]
    assert str(finding) == "s.yaml:2:14: one.watch_dir: /srv/one does not exist (create it, or mend the path)"


def test_links_that_root_alone_can_make_are_followed() -> None:
    firm = (Link("/srv", "/b", is_loose=False), Link("/b/one", "/c", is_loose=False))
    facts = site("one", rundir=evolve(directory(10, 1), links=firm), jail=evolve(directory(0, 3), links=firm))
    assert found(facts) == found(GOOD)


def test_of_many_withheld_groups_only_some_are_listed() -> None:
    many = frozenset(range(100, 120)) | NAMES_TWO.has
    (note,) = [finding for finding in found(names("two", has=many)) if finding.level == "note"]
    assert note.what.endswith("GID 105, GID 106 and 13 more")


def test_a_site_that_will_not_be_served_is_told_of() -> None:
    sites = SITES + "  docker_uid: 5\n"
    warning, _ = sorted(found(GOOD, sites), key=lambda finding: finding.level, reverse=True)
    assert str(warning) == (
        "s.yaml:11:15: warning: two.docker_uid: the site will not be served: containers are not supported yet"
    )


def test_a_site_without_groups_withholds_none() -> None:
    assert not found(names("one", has=frozenset({10, 11}), requested=(10, 11)))[1:]


# The same decisions as the helper's

IDS = st.integers(0, 5)
ODD_IDS = IDS | st.just(2**32 - 1)
GROUP_NAMES = ("root-like", "staff", "gone", "silent")


@frozen
class NameService:
    """A small name service: what is called `silent` is not answered, what is not in it is absent."""

    accounts: dict[str, Account | None]
    groups: dict[str, int]
    members: frozenset[int]

    def account(self, name: str) -> Account | None:
        found = self.accounts[name]
        if found is not None and found.name == "silent":
            raise LookupFailedError(name)
        return found

    def account_by_uid(self, _: int) -> Account | None:
        return self.accounts["h"]

    def group(self, name: str) -> Group | None:
        if name == "silent":
            raise LookupFailedError(name)
        return Group(name, self.groups[name]) if name in self.groups else None

    def group_by_gid(self, gid: int) -> Group | None:
        return next((Group(name, number) for name, number in self.groups.items() if number == gid), None)

    def groups_of(self, who: Account) -> frozenset[int]:
        return self.members | {who.gid}


def patched(service: NameService) -> ExitStack:
    stack = ExitStack()
    for name in ("account", "account_by_uid", "group", "group_by_gid", "groups_of"):
        stack.enter_context(patch.object(nss, name, getattr(service, name)))
    return stack


def account(name: str, ids: st.SearchStrategy[int] = IDS) -> st.SearchStrategy[Account]:
    return st.builds(Account, st.just(name), ids, ids, st.just("/"), st.just("/bin/sh"))


def refused_by_the_helper(config: Config) -> bool:
    who = policy.caller(changes=True, watcher_user="w")
    try:
        policy.resolve(config.sites["a"], who)
    except (RefusedError, NotNowError):
        return True
    return False


def sites_of(groups: Iterable[object] | None) -> str:
    text = "a:\n  watch_dir: /srv/a\n  runner_user: r\n"
    return text if groups is None else f"{text}  groups: [{', '.join(map(str, groups))}]\n"


SERVICES = st.builds(
    NameService,
    st.fixed_dictionaries(
        {"r": st.none() | account("r", ODD_IDS) | account("silent"), "w": account("w"), "h": account("h")},
    ),
    st.dictionaries(st.sampled_from(GROUP_NAMES[:2]), IDS),
    st.frozensets(IDS),
)


@given(SERVICES, st.none() | st.lists(st.sampled_from(GROUP_NAMES) | st.integers(1, 5), min_size=1, max_size=4))
def test_a_site_is_at_fault_exactly_if_the_helper_would_not_run_its_jobs(
    service: NameService, groups: list[object] | None
) -> None:
    document, config = loaded(sites_of(groups))
    with patched(service):
        names = hostfacts._names(config.sites["a"])
        is_refused = refused_by_the_helper(config)
    facts = host(
        watcher=Daemon(name="w", account=service.accounts["w"], groups=frozenset(range(6))),
        helper=Daemon(name="h", account=service.accounts["h"], groups=frozenset(range(6))),
        watchers=(),
        sites={"a": evolve(GOOD.sites["one"], names=names)},
    )
    findings = list(judge(document, config, facts))
    assert any(finding.level == "fault" for finding in findings) == is_refused
    assert all(finding.line is not None for finding in findings)


SEEN = st.sampled_from([Absent("/"), HUNG, NOT_BY_THIS_USER, FAILED]) | st.builds(
    Entry,
    mode=st.sampled_from([stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO]).flatmap(
        lambda kind: st.integers(0, 0o7777).map(lambda permissions: kind | permissions)
    ),
    gid=IDS,
    place=st.tuples(IDS, IDS),
    filesystem=st.sampled_from(["", "ext4", "fuse.sshfs"]),
    is_read_only=st.booleans(),
    links=st.lists(st.builds(Link, st.sampled_from(["/srv", "/srv/a"]), st.text(), st.booleans())).map(tuple),
    may=st.none() | st.booleans() | st.just(NOT_BY_THIS_USER),
)
DAEMON = st.builds(
    Daemon,
    name=st.just("d"),
    account=st.none() | account("d") | st.just(FAILED),
    groups=st.frozensets(IDS),
)


@given(
    st.none() | st.just(HUNG),
    st.fixed_dictionaries(
        {
            "rundir": SEEN,
            "jail": SEEN,
            "interpreter": SEEN,
            "scripts": st.sampled_from([Absent("/"), HUNG]) | st.fixed_dictionaries({"Base.py": SEEN}),
        }
    ),
    st.fixed_dictionaries(
        {
            "watcher": DAEMON,
            "helper": DAEMON,
            "watchers": st.just(HUNG) | st.lists(st.builds(Process, IDS, st.frozensets(IDS))).map(tuple),
            "limits": st.dictionaries(st.sampled_from(["max_user_watches", "max_user_instances"]), IDS),
        }
    ),
    IDS,
)
def test_any_facts_give_findings_that_stand_in_the_file_or_are_about_the_host(
    names: Unseen | None, of_site: dict[str, Any], of_host: dict[str, Any], uid: int
) -> None:
    given_names = names or evolve(NAMES_ONE, account=evolve(ONE, uid=uid))
    text = sites_of(None) + "  jail_root: /srv\n"
    facts = host(**of_host, sites={"a": SiteFacts(names=given_names, **of_site)})
    lines = text.splitlines()
    for finding in found(facts, text):
        assert str(finding).isprintable()
        if finding.file == "s.yaml":
            assert finding.line
            assert 1 <= finding.line <= len(lines)
            assert finding.column
        else:
            assert (finding.file, finding.line) == (None, None)
