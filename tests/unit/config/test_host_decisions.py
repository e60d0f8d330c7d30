"""Any facts about a host: the helper would decide the same, and every finding has its place."""

from __future__ import annotations

import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner import nss
from basestation_runner.config import hostfacts
from basestation_runner.config.host import judge
from basestation_runner.config.hostfacts import (
    NOT_BY_THIS_USER,
    Absent,
    Daemon,
    Entry,
    Link,
    Process,
    SiteFacts,
)
from basestation_runner.nss import Account, Group, LookupFailedError
from basestation_runner.privexec import accounts
from basestation_runner.privexec.order import NotNowError, RefusedError
from tests.unit.config.facts import (
    FAILED,
    GOOD,
    HUNG,
    NAMES_ONE,
    ONE,
    found,
    host,
    loaded,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from basestation_runner.config.model import Config
    from basestation_runner.config.probes import Unseen

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
    who = accounts.caller(changes=True, watcher_user="w")
    try:
        accounts.resolve(config.sites["a"], who)
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
            "commands": st.just({}) | st.just(HUNG),
        }
    ),
    st.fixed_dictionaries(
        {
            "watcher": DAEMON,
            "helper": DAEMON,
            "watchers": st.just(HUNG) | st.lists(st.builds(Process, IDS, st.frozensets(IDS))).map(tuple),
            "limits": st.dictionaries(
                st.sampled_from(["max_user_watches", "max_user_instances", "max_queued_events"]), IDS
            ),
        }
    ),
    IDS,
)
def test_any_facts_give_findings_that_stand_in_the_file_or_are_about_the_host(
    names: Unseen | None, of_site: dict[str, Any], of_host: dict[str, Any], uid: int
) -> None:
    given_names = names or evolve(NAMES_ONE, account=ONE._replace(uid=uid))
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
