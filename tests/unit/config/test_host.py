"""What is made of the facts about a host: each rule on facts as data."""

from __future__ import annotations

import stat

import pytest
from attrs import evolve

from basestation_runner.config.hostfacts import (
    NOT_BY_THIS_USER,
    Absent,
    Daemon,
    Facts,
    Link,
    Process,
)
from basestation_runner.errors import RunnerError
from tests.unit.config.facts import (
    FAILED,
    FILE,
    GOOD,
    HELPER,
    HUNG,
    NAMES_TWO,
    ONE,
    SITES,
    directory,
    found,
    host,
    names,
    rundir,
    scripts,
    site,
)


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
        names("one", account=ONE._replace(uid=0)),
        (
            "s.yaml:3:16: one.runner_user: account runner-one has uid 0, root's: the helper refuses it "
            "(give the site an account of its own)"
        ),
    ),
    "the watcher's uid": (
        names("one", account=ONE._replace(uid=1)),
        (
            "s.yaml:3:16: one.runner_user: account runner-one has uid 1, the watcher's: the helper refuses it "
            "(give the site an account of its own)"
        ),
    ),
    "the helper's uid": (
        names("one", account=ONE._replace(uid=2)),
        (
            "s.yaml:3:16: one.runner_user: account runner-one has uid 2, the helper's: the helper refuses it "
            "(give the site an account of its own)"
        ),
    ),
    "a uid that is none": (
        names("one", account=ONE._replace(uid=2**32 - 1)),
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
