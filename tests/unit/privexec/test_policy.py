"""What the helper allows: which orders it takes, and which identity a site's jobs get from what the host says."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner import execgroups, nss
from basestation_runner.config.load import Source, load_sources
from basestation_runner.errors import RunnerError
from basestation_runner.nss import Account, Group, LookupFailedError
from basestation_runner.privexec import accounts, policy
from basestation_runner.privexec.accounts import Caller, Resolved, resolve
from basestation_runner.privexec.order import NotNowError, Order, OrderedSite, RefusedError, Sandbox, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.config.model import Config

HELPER_UID: Final = 990
HELPER_GID: Final = 991
WATCHER_UID: Final = 980
WATCHER_GID: Final = 981

CALLER: Final = Caller(
    changes=True,
    uid=HELPER_UID,
    gid=HELPER_GID,
    groups=frozenset({HELPER_GID, WATCHER_GID}),
    watcher_uid=WATCHER_UID,
    watcher_gid=WATCHER_GID,
    forbidden_gids=execgroups.forbidden((HELPER_GID, WATCHER_GID)),
)

SITES: Final = """
one:
  watch_dir: /srv/one/rundir
  runner_user: runner-one
  groups: {groups}
  jail_root: /srv/one
  applications: [base, base-login]
two:
  watch_dir: /srv/two/rundir
  runner_user: runner-two
container:
  watch_dir: /srv/three/rundir
  runner_user: runner-three
  docker_image: image
"""


Groups = tuple[str | int, ...] | None
"""What a site's entry names, None for the account's own."""


def order(known: Config, message: dict[str, Any]) -> Order:
    return policy.order(known, message, {})


def legacy_order(known: Config, message: dict[str, Any], job_id: str) -> Order:
    return policy.legacy_order(known, message, job_id, {})


def config(groups: str = "null") -> Config:
    return load_sources(Source("sites.yaml", SITES.format(groups=groups).encode()), None)


def with_default() -> Config:
    """Return a configuration whose profile `rest` runs what no other one lists."""
    applications = b"default_application: rest\napplications:\n  - name: rest\n    scripts: [Rest.py]\n"
    return load_sources(Source("sites.yaml", SITES.format(groups="null").encode()), Source("apps.yaml", applications))


SITE: Final = config().sites["one"]
TOLD: Final = ("site", "application", "home", "mission_dir", "log_file", "script", "args", "additions")


def dispatch(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    name = changes.get("site", "one")
    known = config()
    return {
        "job_id": "c0ffee00-01",
        "site": name,
        "digest": known.digest(name) if name in known.sites else "",
        "application": "base",
        "home": "/home/sg123",
        "mission_dir": "/home/sg123/mission1",
        "log_file": "/home/sg123/mission1/baselog.log",
        "script": "Base.py",
        "args": ["--mission_dir", "/home/sg123/mission1", "--daemon", "--verbose"],
        "queue_length": 3,
        "additions": {},
        **changes,
    }


def legacy(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    argv = [
        "/opt/basestation/bin/python",
        "/usr/local/basestation3/Base.py",
        "--mission_dir",
        "/srv/one/m1",
        "--daemon",
    ]
    return {"site": "one", "argv": argv, "log_file": "/srv/one/logs/log", **changes}


@dataclass
class Host:
    """What the name service says; the look-ups in `silent` are not answered."""

    accounts: dict[str, Account] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    members: dict[str, frozenset[int]] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()

    def account(self, name: str) -> Account | None:
        self._answer("account")
        return self.accounts.get(name)

    def account_by_uid(self, uid: int) -> Account | None:
        self._answer("account_by_uid")
        return next((account for account in self.accounts.values() if account.uid == uid), None)

    def group(self, name: str) -> Group | None:
        self._answer("group")
        return Group(name, self.groups[name]) if name in self.groups else None

    def groups_of(self, who: Account) -> frozenset[int]:
        self._answer("groups_of")
        return self.members.get(who.name, frozenset()) | {who.gid}

    def _answer(self, look_up: str) -> None:
        if look_up in self.silent:
            raise LookupFailedError(look_up)


def host(*, uid: int = 1001, gid: int = 2001, members: frozenset[int] = frozenset({2002, 2003}), **more: Any) -> Host:  # noqa: ANN401
    """A host with one site's account and its groups."""
    return Host(
        accounts={"runner-one": account("runner-one", uid, gid)},
        groups={"one": 2001, "data": 2002, "more": 2003, "others": 2999, "root": 0, "watcher": WATCHER_GID},
        members={"runner-one": members},
        **more,
    )


def account(name: str, uid: int, gid: int) -> Account:
    return Account(name, uid, gid, f"/home/{name}", "/bin/sh")


@contextmanager
def on(host: Host) -> Iterator[None]:
    """Let the host's answers stand for the name service's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("account", "account_by_uid", "group", "groups_of"):
            patch.setattr(nss, name, getattr(host, name))
        yield


def resolved(host: Host, groups: Groups = None, caller: Caller = CALLER) -> Resolved:
    with on(host):
        return resolve(evolve(SITE, groups=groups), caller)


def refused(host: Host, groups: Groups = None, caller: Caller = CALLER) -> str:
    with on(host), pytest.raises(RefusedError) as error:
        resolve(evolve(SITE, groups=groups), caller)
    return str(error.value)


def not_now(host: Host, groups: Groups = None, caller: Caller = CALLER) -> NotNowError:
    with on(host), pytest.raises(NotNowError) as error:
        resolve(evolve(SITE, groups=groups), caller)
    return error.value


# Orders


def test_an_order_is_the_helpers_own_site_and_profile_and_the_requests_words() -> None:
    known = config()
    message = dispatch()
    assert order(known, message) == Order(
        job_id="c0ffee00-01",
        site=OrderedSite(
            name="one",
            runner_user="runner-one",
            groups=None,
            roots=("/srv/one/rundir", "/srv/one"),
            jail_root="/srv/one",
            memory_high_mb=None,
            memory_max_mb=None,
        ),
        application="base",
        timing_line=False,
        home="/home/sg123",
        mission_dir="/home/sg123/mission1",
        log_file="/home/sg123/mission1/baselog.log",
        jailed=True,
        script="Base.py",
        program=("/opt/basestation/bin/python", "/usr/local/basestation3/Base.py"),
        own_args=["--mission_dir", "/home/sg123/mission1", "--verbose"],
        appended_args=["--job_id", "c0ffee00-01", "--queue_length", "3"],
        env={},
        request={name: message[name] for name in TOLD},
        limit_texts={},
        facts={
            "revision": known.revision("base"),
            "effective": {
                "mode": {"value": "direct", "from": "profile"},
                "launch_type": {"value": "serial", "from": "profile"},
                "tasks": {"value": 1, "from": "profile"},
            },
        },
    )


def with_profile(profile: str) -> Config:
    """Return a configuration whose profile for Base.py has these fields."""
    applications = f"host: {{attributes: {{ssd: true}}}}\napplications: [{{name: base, scripts: [Base.py], {profile}}}]"
    return load_sources(
        Source("sites.yaml", SITES.format(groups="[one, data]").encode()), Source("apps.yaml", applications.encode())
    )


def ordered(profile: str = "timing_line: true", **additions: Any) -> Order:  # noqa: ANN401 - JSON
    known = with_profile(profile)
    return order(known, dispatch(digest=known.digest("one"), additions=additions))


def test_what_the_request_adds_is_worked_out_by_the_helper_itself() -> None:
    order = ordered("env: {LEVEL: '3'}", env={"CASE": "7"}, groups=["one"])
    assert order.env == {"CASE": "7", "LEVEL": "3"}
    assert (order.groups, ordered().groups) == (("one",), None)
    assert order.request is not None
    assert order.request["additions"] == {"env": {"CASE": "7"}, "groups": ["one"]}


def test_a_job_has_the_lower_of_its_own_and_its_profiles_limits() -> None:
    order = ordered("limits: {runtime: 2h, memory: 4G}, leftovers: kill", limits={"runtime": "1h", "tasks": 9})
    assert order.limits == {"memory": 4 << 30, "runtime": 3600, "tasks": 9}
    assert order.limit_texts == {"memory": "4G", "runtime": "1h", "tasks": "9"}
    assert (order.clears, ordered().clears, ordered().limits) == (True, False, {})


@pytest.mark.parametrize("additions", [{"env": {"LD_PRELOAD": "/x"}}, {"env": {"LEVEL": "4"}}, {"groups": ["data"]}])
def test_what_the_profile_does_not_allow_does_not_run_whatever_the_watcher_says(additions: dict[str, Any]) -> None:
    with pytest.raises(NotNowError, match=r"env|groups"):
        ordered("env: {LEVEL: '3'}", **additions)


@pytest.mark.parametrize("additions", [{"mode": "direct"}, {"env": {"A": 5}}, {"env": {"RUNNER_SITE": "two"}}])
def test_additions_that_no_request_can_have_are_refused(additions: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="its additions make no sense: "):
        ordered(**additions)


def test_a_job_waits_while_the_host_cannot_do_what_it_must_have() -> None:
    known = with_profile("mode: sandbox")
    message = dispatch(digest=known.digest("one"))
    missing = {"mode sandbox": "it is gone"}
    with pytest.raises(NotNowError, match="mode sandbox does not work on this host: it is gone"):
        policy.order(known, message, missing)
    with pytest.raises(RefusedError, match="mode sandbox"):
        policy.legacy_order(known, legacy(), "a", missing)


def test_steps_launcher_and_what_a_job_adds_are_in_its_order() -> None:
    fields = "launch_type: mpich, tasks: {max: 4}, pre_exec: [/a, b], env: {LEVEL: '3'}"
    allowed = f"{fields}, job_pre_post_exec: allow, job_exec_dirs: [/steps]"
    order = ordered(allowed, tasks=3, env={"CASE": "7"}, pre_exec=["/steps/x"], post_exec=["/steps/y"])
    assert order.before == (Step("profile", ("/a", "b")), Step("job", ("/steps/x",)))
    assert order.after == (Step("job", ("/steps/y",)),)
    assert [order.step_title(number) for number in range(3)] == [
        "the application's pre_exec /a",
        "the job's pre_exec /steps/x",
        "the job's post_exec /steps/y",
    ]
    assert (order.launcher, order.tasks, order.added_env, order.sandbox) == ("mpich", 3, ("CASE",), None)


def test_each_place_that_a_sandboxed_job_sees_comes_with_what_it_must_not_lead_out_of() -> None:
    options = "network: true, inputs: [/data], job_inputs: [/srv/one/in, /srv/one/in/deep], job_outputs: [/srv/one/out]"
    order = ordered(f"mode: sandbox, sandbox: {{{options}}}", inputs=["/in/deep/a", "/in/b"], outputs=["/out/a"])
    assert order.sandbox == Sandbox(
        network=True,
        inputs=(
            ("/data", "/data"),
            ("/srv/one/in/b", "/srv/one/in"),
            ("/srv/one/in/deep/a", "/srv/one/in/deep"),
        ),
        outputs=(("/srv/one/out/a", "/srv/one/out"),),
    )


def test_a_job_waits_while_the_host_is_not_what_it_needs() -> None:
    assert ordered("resreq: 'select[ssd]'", resreq="select[!tape]").script == "Base.py"
    with pytest.raises(NotNowError, match=r"this host does not meet select\[tape\]"):
        ordered("resreq: 'select[ssd]'", resreq="select[tape]")
    with pytest.raises(NotNowError, match=r"this host does not meet select\[tape\]"):
        ordered("resreq: 'select[ssd && tape]'")


def test_a_job_waits_while_the_host_does_not_offer_what_it_needs() -> None:
    with pytest.raises(NotNowError, match="it needs 2 foam, of which this host offers 0"):
        ordered("resreq: 'rusage[foam=2]'")
    with pytest.raises(NotNowError, match="it needs 1 tape, of which this host offers 0"):
        ordered(resreq="rusage[tape=1]")


def test_a_job_may_have_fewer_groups_than_its_site_with_the_same_effective_one() -> None:
    with on(host()):
        site = evolve(SITE, groups=("one", "data", "more"))
        assert resolve(site, CALLER, ("one", "more")).groups == (2001, 2003)
        assert resolve(SITE, CALLER, ("one", "data")).groups == (2001, 2002)
        with pytest.raises(RefusedError, match="the first group that it names is not the primary one of account"):
            resolve(SITE, CALLER, ("data", "one"))


def test_the_program_is_the_sites_and_the_profile_strips_and_appends_arguments() -> None:
    made = order(config(), dispatch())
    assert made.program == ("/opt/basestation/bin/python", "/usr/local/basestation3/Base.py")
    assert made.own_args == ["--mission_dir", "/home/sg123/mission1", "--verbose"]
    assert made.appended_args == ["--job_id", "c0ffee00-01", "--queue_length", "3"]
    assert made.jailed


def test_an_order_can_be_told_as_the_request_that_it_was() -> None:
    message = dispatch()
    assert order(config(), message).request == {name: message[name] for name in TOLD}
    assert legacy_order(config(), legacy(), "ab").request is None


ORDERS: Final = st.builds(
    Order,
    job_id=st.text(),
    site=st.builds(
        OrderedSite,
        name=st.text(),
        runner_user=st.text(),
        groups=st.none() | st.lists(st.integers() | st.text()),
        roots=st.lists(st.text()),
        jail_root=st.none() | st.text(),
        memory_high_mb=st.none() | st.integers(),
        memory_max_mb=st.none() | st.integers(),
    ),
    application=st.text(),
    timing_line=st.booleans(),
    home=st.text(),
    mission_dir=st.text(),
    log_file=st.text(),
    jailed=st.booleans(),
    script=st.text(),
    program=st.lists(st.text(), min_size=1, max_size=2),
    own_args=st.lists(st.text()),
    appended_args=st.lists(st.text()),
    env=st.dictionaries(st.text(), st.text()),
    request=st.none() | st.dictionaries(st.text(), st.text() | st.lists(st.text())),
    groups=st.none() | st.lists(st.integers() | st.text()),
    limits=st.dictionaries(st.text(), st.integers()),
    limit_texts=st.dictionaries(st.text(), st.text()),
    clears=st.booleans(),
    cgroup=st.none() | st.text(),
    before=st.lists(st.builds(Step, origin=st.text(), argv=st.lists(st.text()))),
    after=st.lists(st.builds(Step, origin=st.text(), argv=st.lists(st.text()))),
    added_env=st.lists(st.text()),
    launcher=st.none() | st.text(),
    tasks=st.integers(),
    sandbox=st.none()
    | st.builds(
        Sandbox,
        network=st.booleans(),
        inputs=st.lists(st.lists(st.text(), min_size=2, max_size=2)),
        outputs=st.lists(st.lists(st.text(), min_size=2, max_size=2)),
    ),
    facts=st.dictionaries(st.text(), st.text()),
)


@given(ORDERS)
def test_an_order_is_the_same_in_another_process(order: Order) -> None:
    assert Order.from_bytes(order.to_bytes()) == order


@pytest.mark.parametrize("changes", [{"site": "none"}, {"site": ""}, {"digest": "ab" * 32}, {"digest": ""}])
def test_an_order_from_another_configuration_waits(changes: dict[str, str]) -> None:
    with pytest.raises(NotNowError, match="different configurations") as error:
        order(config(), dispatch(**changes))
    assert not error.value.absent


def test_an_order_with_the_digest_of_another_site_waits() -> None:
    with pytest.raises(NotNowError):
        order(config(), dispatch(digest=config().digest("two")))


def test_an_order_from_before_the_sites_entry_changed_waits() -> None:
    with pytest.raises(NotNowError):
        order(config(groups="[data]"), dispatch())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"application": "early-gps", "script": "GliderEarlyGPS.py"}, "early-gps is not one that the site may use"),
        ({"application": "none"}, "none is not one that the site may use"),
        ({"application": ""}, "not one that the site may use"),
        ({"script": "BaseLogin.py"}, "BaseLogin.py is not listed in application base"),
        ({"script": "../Base.py"}, "not listed"),
        ({"script": "/bin/sh"}, "not listed"),
        ({"script": "sub/Base.py"}, "not listed"),
        ({"script": "base.py"}, "not listed"),
        ({"script": ""}, "not listed"),
        ({"site": "container"}, "not supported"),
    ],
)
def test_an_order_for_what_the_site_may_not_run_is_refused(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        order(config(), dispatch(**changes))


def test_a_default_application_runs_what_no_other_one_lists_but_nothing_outside_the_sites_directory() -> None:
    known = with_default()
    digest = known.digest("two")
    made = order(known, dispatch(site="two", digest=digest, application="rest", script="Other.py"))
    assert made.program == ("/opt/basestation/bin/python", "/usr/local/basestation3/Other.py")
    assert not made.jailed
    for script in ("", ".", "..", "../Other.py", "sub/Other.py", "/bin/sh", "Base.py"):
        with pytest.raises(RefusedError, match="not listed"):
            order(known, dispatch(site="two", digest=digest, application="rest", script=script))
    with pytest.raises(RefusedError, match="not listed"):
        order(known, dispatch(site="two", digest=digest, application="base", script="Other.py"))


# Orders of an existing watcher


def test_an_existing_watchers_order_runs_the_arguments_as_they_are_and_its_paths_are_the_hosts() -> None:
    order = legacy_order(config(), legacy(), "ab-01")
    assert order.program == ("/opt/basestation/bin/python", "/usr/local/basestation3/Base.py")
    assert order.own_args == ["--mission_dir", "/srv/one/m1", "--daemon"]
    assert order.appended_args == ()
    assert not order.jailed
    assert (order.mission_dir, order.home, order.log_file) == ("/srv/one/m1", "/srv/one/m1", "/srv/one/logs/log")
    assert order.job_id == "ab-01"
    assert not order.timing_line


@pytest.mark.parametrize("more", [[], ["--mission_dir"], ["--verbose", "--mission_dir"], ["mission_dir", "/srv/x"]])
def test_an_existing_watchers_order_without_a_mission_directory_works_where_the_log_is(more: list[str]) -> None:
    argv = [*legacy()["argv"][:2], *more]
    assert legacy_order(config(), legacy(argv=argv), "ab").mission_dir == "/srv/one/logs"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["/opt/basestation/bin/python"],
        ["/bin/sh", "/usr/local/basestation3/Base.py"],
        ["python", "/usr/local/basestation3/Base.py"],
        ["/opt/basestation/bin/python", "Base.py"],
        ["/opt/basestation/bin/python", "/usr/local/basestation3/../Base.py"],
        ["/opt/basestation/bin/python", "/usr/local/basestation3//Base.py"],
        ["/opt/basestation/bin/python", "/usr/local/basestation3/sub/Base.py"],
        ["/opt/basestation/bin/python", "/tmp/Base.py"],  # noqa: S108 - what must be refused
        ["/opt/basestation/bin/python", "-c", "/usr/local/basestation3/Base.py"],
        ["/opt/basestation/bin/python", "/usr/local/basestation3/Other.py"],
        ["/opt/basestation/bin/python", "/usr/local/basestation3/GliderEarlyGPS.py"],
        ["/opt/basestation/bin/python", "/usr/local/basestation3/"],
        ["", ""],
    ],
)
def test_an_existing_watchers_order_for_another_program_is_refused(argv: list[str]) -> None:
    with pytest.raises(RefusedError):
        legacy_order(config(), legacy(argv=argv), "ab")


def test_an_existing_watchers_order_for_what_the_default_application_runs_is_taken() -> None:
    argv = ["/opt/basestation/bin/python", "/usr/local/basestation3/Other.py"]
    assert legacy_order(with_default(), legacy(site="two", argv=argv), "ab").application == "rest"
    for path in ("/usr/local/basestation3/", "/usr/local/basestation3/..", "/usr/local/basestation3/sub/Other.py"):
        with pytest.raises(RefusedError):
            legacy_order(with_default(), legacy(site="two", argv=[argv[0], path]), "ab")


@pytest.mark.parametrize("name", ["none", "", "container"])
def test_an_existing_watchers_order_for_a_site_that_cannot_be_served_is_refused(name: str) -> None:
    with pytest.raises(RefusedError):
        legacy_order(config(), legacy(site=name), "ab")


# Identity


def test_a_site_without_named_groups_gets_all_of_its_accounts_primary_first() -> None:
    assert resolved(host(gid=2002, members=frozenset({2001, 2003}))) == Resolved(
        account("runner-one", 1001, 2002), (2002, 2001, 2003), some_removed=False
    )


def test_named_groups_narrow_in_their_order_by_name_and_by_number() -> None:
    assert resolved(host(), ("data", 2001)).groups == (2002, 2001)
    assert not resolved(host(), ("data", 2001)).some_removed


def test_an_effective_group_may_be_another_than_the_primary_which_is_then_not_added() -> None:
    assert resolved(host(), ("more",)).groups == (2003,)


def test_a_supplementary_group_that_the_account_lacks_is_removed() -> None:
    found = resolved(host(), ("one", "others", "data"))
    assert (found.groups, found.some_removed) == ((2001, 2002), True)


def test_a_supplementary_group_that_does_not_exist_is_removed() -> None:
    found = resolved(host(), ("one", "unheard-of", "data"))
    assert (found.groups, found.some_removed) == ((2001, 2002), True)


def test_an_effective_group_that_the_account_lacks_waits_as_absent_and_is_named() -> None:
    error = not_now(host(), ("others", "one"))
    assert error.absent
    assert "2999" in str(error)


def test_an_effective_group_that_does_not_exist_waits_as_absent_and_is_named() -> None:
    error = not_now(host(), ("unheard-of", "one"))
    assert error.absent
    assert "unheard-of" in str(error)


def test_an_account_that_does_not_exist_waits_as_absent_and_is_named() -> None:
    error = not_now(Host())
    assert error.absent
    assert "runner-one" in str(error)


@pytest.mark.parametrize("silent", ["account", "groups_of", "group"])
def test_a_name_service_that_does_not_answer_is_waited_for_and_says_nothing_about_absence(silent: str) -> None:
    error = not_now(host(silent=frozenset({silent})), (2001, "data"))
    assert not error.absent
    assert silent in str(error)


@pytest.mark.parametrize("uid", [0, HELPER_UID, WATCHER_UID, 4_294_967_295])
def test_an_account_that_no_job_may_have_is_refused_whatever_its_groups_are(uid: int) -> None:
    assert str(uid) in refused(host(uid=uid))
    assert str(uid) in refused(host(uid=uid), ("unheard-of",))
    assert str(uid) in refused(host(uid=uid, silent=frozenset({"groups_of"})))


@pytest.mark.parametrize("gid", [0, HELPER_GID, WATCHER_GID])
def test_a_group_that_no_job_may_have_is_refused_as_primary_supplementary_and_named(gid: int) -> None:
    assert str(gid) in refused(host(gid=gid))
    assert str(gid) in refused(host(members=frozenset({gid})))
    assert str(gid) in refused(host(members=frozenset({gid})), ("one", gid))
    assert str(gid) in refused(host(members=frozenset({gid})), (gid, "one"))


def test_a_group_that_no_job_may_have_is_no_hindrance_when_the_job_does_not_get_it() -> None:
    assert resolved(host(members=frozenset({0})), ("one",)).groups == (2001,)
    found = resolved(host(), ("one", "root", "watcher"))
    assert (found.groups, found.some_removed) == ((2001,), True)


def test_more_groups_than_a_job_can_have_are_refused_for_good() -> None:
    assert "257" in refused(host(members=frozenset(range(3000, 3256))))


def test_numbers_above_2_to_the_31_are_an_identity_like_any_other() -> None:
    found = resolved(host(uid=4_294_967_294, gid=4_294_967_293, members=frozenset({2**31})))
    assert (found.account.uid, found.groups) == (4_294_967_294, (4_294_967_293, 2**31))


GIDS: Final = st.sampled_from([0, 5, 6, 7, HELPER_GID, WATCHER_GID, 2**31, 4_294_967_294, 4_294_967_295])


@given(
    uid=st.sampled_from([0, 7, HELPER_UID, WATCHER_UID, 2**31, 4_294_967_295]),
    gid=GIDS,
    members=st.frozensets(GIDS),
    names=st.dictionaries(st.sampled_from(["a", "b", "c"]), GIDS),
    wanted=st.none() | st.lists(st.sampled_from(["a", "b", "c", 5, 6, HELPER_GID, 2**31]), min_size=1),
)
def test_no_host_and_no_site_give_a_job_what_no_job_may_have(
    uid: int, gid: int, members: frozenset[int], names: dict[str, int], wanted: list[str | int] | None
) -> None:
    answers = Host({"runner-one": account("runner-one", uid, gid)}, names, {"runner-one": members})
    with on(answers):
        try:
            found = resolve(evolve(SITE, groups=None if wanted is None else tuple(wanted)), CALLER)
        except (RefusedError, NotNowError):
            return
    assert found.account.uid not in {0, HELPER_UID, WATCHER_UID, 4_294_967_295}
    assert not set(found.groups) & {0, HELPER_GID, WATCHER_GID, 4_294_967_295}
    assert set(found.groups) <= members | {gid}
    if wanted is not None:
        numbers = [names.get(name, -1) if isinstance(name, str) else name for name in wanted]
        assert found.groups[0] == numbers[0]
        assert set(found.groups) <= set(numbers)


# Without capabilities


OWN: Final = CALLER._replace(changes=False, uid=1001, gid=2001, groups=frozenset({2001, 2002, 2003}))


def test_a_helper_without_capabilities_runs_its_own_accounts_site() -> None:
    assert resolved(host(), caller=OWN).groups == (2001, 2002, 2003)


def test_a_helper_without_capabilities_refuses_another_account_and_names_it() -> None:
    assert "runner-one" in refused(host(uid=1002), caller=OWN)


@pytest.mark.parametrize(
    ("groups", "changes"),
    [
        (None, {"gid": 2002}),
        (None, {"groups": frozenset({2001, 2002})}),
        (None, {"groups": frozenset({2001, 2002, 2003, 2004})}),
        (("one",), {}),
        (("data", "one", "more"), {}),
    ],
)
def test_a_helper_without_capabilities_refuses_groups_that_are_not_exactly_its_own(
    groups: Groups, changes: dict[str, Any]
) -> None:
    assert "groups" in refused(host(), groups, OWN._replace(**changes))


# Who the helper is


def daemons() -> Host:
    own = account("helper", os.getuid(), 991)
    return Host({"helper": own, "watcher": account("watcher", WATCHER_UID, WATCHER_GID)})


def test_the_ids_of_both_daemons_accounts_and_of_root_are_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getgroups", lambda: [WATCHER_GID, 4321])
    with on(daemons()):
        found = accounts.caller(changes=True, watcher_user="watcher")
    assert found.forbidden_uids == {0, execgroups.UNCHANGED, os.getuid(), WATCHER_UID}
    assert found.forbidden_gids == {0, execgroups.UNCHANGED, 991, WATCHER_GID}
    assert found.watcher_uid == WATCHER_UID
    assert found.gid == os.getegid()
    assert found.groups == {os.getegid(), WATCHER_GID, 4321}


def test_without_another_name_the_watcher_has_the_helpers_account() -> None:
    with on(daemons()):
        found = accounts.caller(changes=True, watcher_user=None)
    assert (found.watcher_uid, found.watcher_gid) == (os.getuid(), 991)


def test_a_daemons_account_that_is_not_known_is_an_error() -> None:
    with on(daemons()), pytest.raises(RunnerError, match="unheard-of"):
        accounts.caller(changes=True, watcher_user="unheard-of")
    with on(Host({"watcher": account("watcher", 4_294_967_290, WATCHER_GID)})):
        for watcher_user in ("watcher", None):
            with pytest.raises(RunnerError, match=str(os.getuid())):
                accounts.caller(changes=True, watcher_user=watcher_user)
