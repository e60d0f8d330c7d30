"""Sites of one installation in any number, and requests that are made ready aside and dropped all at once."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

from basestation_runner.nss import Account
from basestation_runner.sandbox import WATCHER, Installation
from basestation_runner.sandbox.installation import Site
from bench.stamps import Stamps, compile_job

ACCOUNTS: Final = 80
"""Sites beyond as many share accounts: a sandbox has numbers for that many."""
SCRIPT: Final = "Base.py"


@frozen
class Request:
    """A request file that waits aside; `drop` makes it visible to the runner."""

    number: int
    aside: Path
    target: Path

    def drop(self) -> int:
        """Move it into its rundir and return the wall clock's nanoseconds just before."""
        now = time.time_ns()
        self.aside.rename(self.target)
        return now


@define
class Host:
    """An installation with `count` sites, each with `missions` mission directories, that run the stamping job."""

    installation: Installation
    job: Path
    stamps: Stamps
    sites: list[Site]
    missions: int
    _number: int = field(default=0, init=False)

    @classmethod
    def make(cls, installation: Installation, count: int, missions: int = 1) -> "Host":
        """Make the sites and the configuration. No daemon runs yet."""
        job = installation.top / "stamp"
        job.write_bytes(compile_job())
        job.chmod(0o755)
        host = cls(installation, job, Stamps(installation.top / "stamps"), [], missions)
        for name in ("helper", "watcher"):
            installation.make_directory(installation.logs / name, installation.account(_DAEMONS[name]))
        users = installation.accounts
        with users.together():
            owners = [users.add_user(f"runner-{n:03}") for n in range(min(count, ACCOUNTS))]
            users.join(WATCHER, *(owner.name for owner in owners))
        for number in range(count):
            host._add_site(f"s{number:04}", owners[number % len(owners)])
        installation.write(installation.sites_config, "".join(map(_entry, host.sites)))
        return host

    def _add_site(self, name: str, account: Account) -> None:
        make, top = self.installation.make_directory, self.installation.top / name
        make(top)
        make(top / "aside")
        watch_dir = make(top / "rundir", account, mode=0o2775)
        for mission in range(self.missions):
            make(top / f"m{mission:02}", account, mode=0o2770)
        entry = {
            "watch_dir": watch_dir,
            "jail_root": top,
            "jailed": "false",
            "runner_user": account.name,
            "python_version": self.job,
            "basestation_dir": self.installation.scripts,
        }
        site = Site(name, account, account.name, watch_dir, homes=top, jail=None, entry=entry)
        self.sites.append(site)
        self.installation.sites[name] = site

    def requests(self, queues: Iterable[tuple[Site, int]], *, life_ms: int = 0) -> list[Request]:
        """Write one request aside for each queue that is named, a site and the number of a mission of it."""
        return [self._request(site, mission, life_ms) for site, mission in queues]

    def _request(self, site: Site, mission: int, life_ms: int) -> Request:
        self._number += 1
        directory = site.homes / f"m{mission:02}"
        arguments = f"{self._number} {life_ms} {self.stamps.path}"
        aside = site.homes / "aside" / f"{self._number:07}"
        aside.write_text(f"{site.homes} {directory} {directory}/job.log {SCRIPT} {arguments}\n")
        return Request(self._number, aside, site.watch_dir / f"{self._number:07}.run")

    def queues(self, count: int) -> Iterator[tuple[Site, int]]:
        """Yield `count` queues: every site's first mission, then every site's second one, and so on, over again."""
        for number in range(count):
            turn, site = divmod(number, len(self.sites))
            yield self.sites[site], turn % self.missions


_DAEMONS: Final = {"helper": "baserunner-exec", "watcher": "baserunner"}


def _entry(site: Site) -> str:
    fields = "".join(f"  {name}: {value}\n" for name, value in site.entry.items())
    return f"{site.name}:\n{fields}"
