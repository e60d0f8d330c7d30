"""What a probe says of a site: what a job of it is, found out by the same drop, without running anything."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from basestation_runner.privexec.probes import MOST_AT_ONCE
from basestation_runner.sandbox import WATCHER
from tests.host.helper_client import NameService, Station, launcher

MIB = 1 << 20


def ask(station: Station, site: str) -> None:
    station.client.send({"request": "probe", "site": site})


def answer(station: Station, site: str) -> dict[str, Any]:
    return station.client._take(lambda message: message.get("event") == "probed" and message["site"] == site)


def probe(station: Station, site: str) -> dict[str, Any]:
    ask(station, site)
    return answer(station, site)


def uids_of_processes() -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.add(entry.stat().st_uid)
    return found


def test_a_probe_says_the_same_as_a_job_finds_itself_to_be(station: Station) -> None:
    for group in ("extra", "withheld"):
        station.installation.accounts.add_group(group)
    site = station.add_site("one", groups=["runner-one", "extra"])
    station.installation.accounts.join("runner-one", "extra", "withheld")
    station.start()
    told, job = probe(station, "one"), station.report(site)
    assert told["outcome"] == "probed"
    assert (told["uids"], told["gids"]) == (job["uids"], job["gids"])
    assert sorted(told["groups"]) == sorted(job["groups"])
    assert set(told["capabilities"].values()) == {0}
    assert told["no_new_privs"] is bool(job["no_new_privs"])
    assert (told["umask"], told["nice"], told["account"]) == (job["umask"], job["nice"], "runner-one")
    assert told["warnings"] == []


def test_a_probe_joins_a_cgroup_with_the_limits_of_a_job(station: Station) -> None:
    station.add_site("one", memory_high_mb=100, memory_max_mb=200, cpu_quota_pct=250, cpu_weight=50, tasks_max=77)
    station.start()
    told = probe(station, "one")
    root = station.installation.cgroup_root / "site-one"
    assert os.path.dirname(told["cgroup_root"]) == str(root)  # noqa: PTH120 - a text
    assert told["cgroup_limits"] == {
        "memory.high": str(100 * MIB),
        "memory.max": str(200 * MIB),
        "cpu.max": "250000 100000",
        "cpu.weight": "50",
        "pids.max": "77",
    }
    (leaf,) = root.glob("job-*")  # a plain directory with files in it cannot be removed
    assert (leaf / "cgroup.procs").read_text() == "0"


def test_a_site_whose_jobs_would_be_refused_is_refused(station: Station) -> None:
    station.add_site("one", groups=["runner-one"])
    station.start()
    station.installation.accounts.remove_user("runner-one")
    told = probe(station, "one")
    assert (told["outcome"], told["reason"]) == ("temporary", "account runner-one is not known")
    assert probe(station, "two")["outcome"] == "refused"


def test_a_name_service_that_hangs_holds_up_that_probe_alone(station: Station) -> None:
    service = NameService(station.installation)
    names = [f"s{number}" for number in range(MOST_AT_ONCE + 1)]
    for name in names:
        station.add_site(name)
    station.start(command=service.command)
    for name in names[:-1]:
        service.hang(f"runner-{name}")
        ask(station, name)
    told = probe(station, names[-1])
    assert (told["outcome"], told["reason"]) == ("temporary", "other sites are being probed")
    for name in names[:-1]:
        service.go_on(f"runner-{name}")
    assert {answer(station, name)["outcome"] for name in names[:-1]} == {"probed"}
    assert probe(station, names[-1])["outcome"] == "probed"


def test_whoever_asks_while_a_site_is_probed_gets_the_same_answer(station: Station) -> None:
    service = NameService(station.installation)
    station.add_site("one")
    station.start(command=service.command)
    service.hang("runner-one")
    other = station.connect(station.installation.accounts.user(WATCHER))
    for client in (station.client, other):
        client.send({"request": "probe", "site": "one"})
        client.hello()
    service.go_on("runner-one")
    for client in (station.client, other):
        assert client._take(lambda message: message.get("event") == "probed")["outcome"] == "probed"
    station.daemon.wait_event(lambda line: line["event"] == "site probed")
    assert [line["event"] for line in station.daemon.events].count("site probed") == 1


def test_a_drop_that_is_not_what_it_must_be_is_told(station: Station) -> None:
    station.add_site("one")
    prelude = """
from basestation_runner.privexec.identity import Identity
words = Identity.words.fget
Identity.words = property(lambda self: (*words(self)[:3], "0"))
"""
    station.start(command=[str(launcher(station.installation, prelude))])
    told = probe(station, "one")
    assert (told["outcome"], told["reason"]) == ("refused", "its identity could not be taken on: it would be root")


def test_a_child_that_hangs_as_the_site_is_killed(station: Station) -> None:
    site = station.add_site("one")
    assert site.account
    prelude = """
import signal
from basestation_runner.privexec import ending
from basestation_runner.privexec.child import Child
ending.START_SECONDS = 0.5
opens = Child.open
def open(self, plan):
    self.ending._signal(signal.SIGSTOP)  # as whoever has the site's account can do
    return opens(self, plan)
Child.open = open
"""
    station.start(command=[str(launcher(station.installation, prelude))])
    told = probe(station, "one")
    assert (told["outcome"], told["reason"]) == (
        "temporary", "its process ended, or hung, before it had become the site",
    )  # fmt: skip
    assert site.account.uid not in uids_of_processes()
