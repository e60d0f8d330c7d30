"""What the demo shows: its sites, the requests that are dropped there, and what must become of each."""

import os
import pwd
from pathlib import Path
from typing import Final

from attrs import frozen

from basestation_runner.sandbox import Installation
from basestation_runner.sandbox.installation import Site


@frozen
class _Form:
    """A request file as glider_login or glider_logout writes it, for whatever home and mission directory."""

    file: str
    text: str


_EARLY_GPS: Final = _Form(
    "261130113946.run",
    "{home} {mission} {mission}/glider_early_gps.log GliderEarlyGPS.py --daemon --mission_dir {mission} --verbose "
    "--base_log {mission}/glider_early_gps_261130113946 --config {mission}/{glider}.conf --csh_pid 28588 "
    "--path_to_logout nologout\n",
)
_LOGOUT: Final = _Form(
    "261130113955123.run",
    "{home} {mission} {mission}/baselog.log Base.py --mission_dir {mission} --verbose --daemon --nice 10 "
    "--base_log {mission}/baselog_261130113955 --config {mission}/{glider}.conf\n",
)
_LOGIN: Final = _Form(
    "unjailed-login.run",
    "{home} {mission} {mission}/baselog.log BaseLogin.py --mission_dir {mission} --verbose\n",
)


@frozen
class Identity:
    """Who a job must be; its real, effective and saved ids are the same."""

    uid: int
    gid: int
    groups: frozenset[int]


@frozen
class Request:
    """One request to drop, which its glider's account does."""

    site: Site
    glider: str
    file: str
    text: str
    script: str
    mission: Path  # where its job works, as the host sees it
    expected: Identity | None  # None: it must be refused

    @property
    def account(self) -> str:
        return str(self.site.entry["runner_user"])


def with_accounts(installation: Installation) -> list[Request]:
    """Make three sites: one in a jail, one with a wide root, one with execution groups of its own."""
    accounts = installation.accounts
    seaglider, test, ioptest = (accounts.add_user(f"runner-{name}") for name in ("seaglider", "test", "ioptest"))
    # The effective group is not the account's primary one, and operators, which the account is in, is not asked for.
    effective, supplementary, _ = (accounts.add_group(group) for group in ("ioptest", "instruments", "operators"))
    accounts.join(ioptest.name, "ioptest", "instruments", "operators")
    sites = [
        installation.add_site("seaglider", "home/seaglider", layout="jailed", account=seaglider),
        installation.add_site("test", "home", layout="wide", account=test),
        installation.add_site(
            "ioptest",
            "srv/ioptest",
            account=ioptest,
            group="ioptest",
            groups=["ioptest", "instruments"],
            archive=True,
        ),
    ]
    return _requests(
        installation,
        sites,
        [
            Identity(seaglider.uid, seaglider.gid, frozenset([seaglider.gid])),
            Identity(test.uid, test.gid, frozenset([test.gid])),
            Identity(ioptest.uid, effective, frozenset([effective, supplementary])),
        ],
    )


def single_account(installation: Installation) -> list[Request]:
    """Make the same sites, all of the caller's own account and groups, and one of somebody else's account."""
    sites = [
        installation.add_site("seaglider", "home/seaglider", layout="jailed"),
        installation.add_site("test", "home", layout="wide"),
        installation.add_site("ioptest", "srv/ioptest", archive=True),
    ]
    caller = Identity(os.getuid(), os.getgid(), frozenset([os.getgid(), *os.getgroups()]))
    stranger = next(entry.pw_name for entry in pwd.getpwall() if entry.pw_uid not in {0, os.getuid()})
    other = installation.add_site("other", "srv/other", runner_user=stranger)
    return [*_requests(installation, sites, [caller] * 3), *_requests_of(installation, other, None, "sg555", _LOGIN)]


def _requests(installation: Installation, sites: list[Site], identities: list[Identity]) -> list[Request]:
    seaglider, test, ioptest = zip(sites, identities, strict=True)
    return [
        *_requests_of(installation, *seaglider, "sg123/mission1", _EARLY_GPS, _LOGOUT),
        *_requests_of(installation, *test, "sg090", _LOGIN),
        *_requests_of(installation, *ioptest, "sg236/mission4", _LOGOUT),
    ]


def _requests_of(
    installation: Installation, site: Site, expected: Identity | None, folder: str, *forms: _Form
) -> list[Request]:
    glider, *missions = folder.split("/")
    home = installation.add_glider(site, glider, *missions)
    mission = site.homes / folder
    requests = []
    for form in forms:
        text = form.text.format(home=site.seen(home), mission=site.seen(mission), glider=glider)
        requests.append(Request(site, glider, form.file, text, text.split()[3], mission, expected))
    return requests
