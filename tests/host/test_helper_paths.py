"""Where a job's paths lead: in its jail or beneath its roots, whatever links its people make; what it finds there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.host.helper_client import Station

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Sandbox
    from basestation_runner.sandbox.installation import Site
    from tests.host.helper_client import Message

CLOCK = r"\d\d:\d\d:\d\d \d\d (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4} UTC"
SHOW_ARGUMENTS = "import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[2:]]))"


@pytest.fixture(scope="module")
def station(sandbox: Sandbox) -> Iterator[Station]:
    with sandbox.installation() as installation, Station(installation) as station:
        accounts = installation.accounts
        accounts.add_group("glider")
        for name in ("settled", "evicted", "linked"):
            accounts.add_user(f"runner-{name}", home=str(installation.top / "homes" / name))
            station.add_shell_site(name, account=accounts.user(f"runner-{name}"))
        accounts.add_user("runner-jailed", groups=["glider"])
        station.add_site("jailed", layout="jailed", account=accounts.user("runner-jailed"))
        station.add_site("wide", layout="wide")
        station.add_site("plain")
        station.add_shell_site("shell")
        station.add_shell_site("squatted")
        scripts = installation.make_directory(installation.top / "scripts")
        installation.write(scripts / "BaseLogin.py", 'echo "$@"; exit "$1"; ')
        installation.write(scripts / "Base.py", 'echo "$@"')
        station.add_shell_site("login", basestation_dir=str(scripts))
        station.start()
        yield station


def site_of(station: Station, name: str) -> Site:
    return station.installation.sites[name]


@pytest.fixture
def jailed(station: Station) -> Site:
    return site_of(station, "jailed")


@pytest.fixture
def wide(station: Station) -> Site:
    return site_of(station, "wide")


@pytest.fixture
def plain(station: Station) -> Site:
    return site_of(station, "plain")


def own(site: Site, path: Path) -> Path:
    """Make a directory of the site's, with all that are missing above it."""
    assert site.account is not None
    for directory in [*reversed(path.parents), path]:
        if not directory.exists():
            directory.mkdir()
            os.chown(directory, site.account.uid, site.account.gid)
    return path


def link(site: Site, path: Path, target: str | Path) -> Path:
    """Make a link as the site's people do."""
    assert site.account is not None
    path.symlink_to(target)
    os.chown(path, site.account.uid, site.account.gid, follow_symlinks=False)
    return path


def seen_by_job(station: Station, order: Message) -> tuple[str, list[str]]:
    """Run a job that says in which directory and with which arguments it runs."""
    record = station.run({**order, "args": [SHOW_ARGUMENTS, *order["args"]]})
    directory, arguments = json.loads(record["log_tail"])
    return directory, arguments


# In a jail


def test_a_jailed_request_names_places_in_its_jail(station: Station, jailed: Site) -> None:
    mission = station.mission(jailed)
    inside = jailed.seen(mission)
    order = station.order(jailed, mission, "do.py", "--mission_dir", inside, f"{inside}/sg001.conf", "--verbose")
    directory, arguments = seen_by_job(station, order)
    assert directory == str(mission)
    assert arguments == ["--mission_dir", str(mission), str(mission / "sg001.conf"), "--verbose"]
    assert (mission / "job.log").exists()


def test_arguments_are_translated_by_components_and_never_by_prefix(station: Station, jailed: Site) -> None:
    mission = station.mission(jailed)
    home, inside = jailed.seen(mission.parent), jailed.seen(mission)
    kept = [f"{home}1", f"{home}.old/x", f"x{home}", f"--config={inside}/x", "/home", "/", "/etc/passwd", "", "-"]
    translated = {home: str(mission.parent), f"{home}/x": str(mission.parent / "x"), f"{inside}/": str(mission)}
    order = station.order(jailed, mission, "do.py", *kept, *translated)
    _, arguments = seen_by_job(station, order)
    assert arguments[: len(kept)] == kept
    assert [word.rstrip("/") for word in arguments[len(kept) :]] == list(translated.values())


def test_an_absolute_link_in_a_jail_leads_to_a_place_in_the_jail(station: Station, jailed: Site) -> None:
    mission = station.mission(jailed)
    current = link(jailed, mission.with_name("current"), jailed.seen(mission))
    inside = jailed.seen(current)
    changes = {"mission_dir": inside, "log_file": f"{inside}/job.log"}
    order = station.order(jailed, mission, "do.py", inside, f"{inside}/sg001.conf", **changes)
    directory, arguments = seen_by_job(station, order)
    assert directory == str(mission)
    assert arguments == [str(mission), str(mission / "sg001.conf")], "for the job itself the link leads elsewhere"
    assert (mission / "job.log").exists()


def test_a_relative_link_in_a_jail_leads_to_a_place_in_the_jail(station: Station, jailed: Site) -> None:
    mission = station.mission(jailed)
    inside = jailed.seen(link(jailed, mission.with_name("relative"), "../sg001/" + mission.name))
    order = station.order(jailed, mission, "do.py", inside, mission_dir=inside)
    assert seen_by_job(station, order)[0] == str(mission)


@pytest.mark.parametrize("target", ["/etc", "../../../../../../../../etc"])
def test_no_link_leads_out_of_a_jail(station: Station, jailed: Site, target: str) -> None:
    mission = station.mission(jailed)
    inside = jailed.seen(link(jailed, mission / "out", target))
    reason = station.refusal(station.order(jailed, mission, "do.py", SHOW_ARGUMENTS, mission_dir=inside))
    assert reason == f"the mission directory {inside} inside the jail {jailed.jail}: No such file or directory"
    assert jailed.jail is not None
    etc = own(jailed, jailed.jail / "etc")
    try:
        order = station.order(jailed, mission, "do.py", f"{inside}/passwd", mission_dir=inside)
        assert seen_by_job(station, order) == (str(etc), [str(etc / "passwd")])
    finally:
        etc.rmdir()


def test_no_dots_lead_out_of_a_jail(station: Station, jailed: Site) -> None:
    mission = station.mission(jailed)
    up = "/.." * 12
    inside = f"{jailed.seen(mission)}{up}{jailed.seen(mission)}"
    order = station.order(jailed, mission, "do.py", inside, mission_dir=inside, log_file=f"{inside}/job.log")
    assert seen_by_job(station, order) == (str(mission), [str(mission)])
    order = station.order(jailed, mission, "do.py", mission_dir=f"/home{up}/etc")
    reason = station.refusal(order)
    assert reason == f"the mission directory /home{up}/etc inside the jail {jailed.jail}: No such file or directory"


def test_a_jailed_log_behind_a_link_to_the_host_is_refused(station: Station, jailed: Site) -> None:
    mission = station.mission(jailed)
    target = station.mission(site_of(station, "plain"), mode=0o777) / "job.log"
    link(jailed, mission / "job.log", target)
    reason = station.refusal(station.order(jailed, mission, "do.py", SHOW_ARGUMENTS))
    log = f"the log {jailed.seen(mission)}/job.log inside the jail {jailed.jail}"
    assert reason == f"{log}: it is a link that leads nowhere"
    assert not target.exists()


def test_a_mission_directory_named_like_the_interpreters_makes_nothing_else_run(station: Station, jailed: Site) -> None:
    """Nor one that is named like the scripts' directory."""
    python, scripts = Path(str(jailed.entry["python_version"])), station.installation.scripts
    assert jailed.jail is not None
    for place, name in ((python.parent, python.name), (scripts, "Base.py")):
        mission = own(jailed, jailed.jail / place.relative_to("/"))
        impostor = mission / name
        impostor.write_text("#!/bin/sh\ntouch impostor\n")
        impostor.chmod(0o755)
        changes = {"home": str(place.parent), "mission_dir": str(place), "log_file": str(place / "job.log")}
        order = station.order(jailed, mission, "Base.py", str(place / "x"), **changes)
        station.run(order)
        report = json.loads((mission / f"report-Base.py-{order['job_id']}.json").read_text())
        assert report["executable"] == str(python)
        assert report["argv"][:2] == [str(scripts / "Base.py"), str(mission / "x")]
        assert not (mission / "impostor").exists()


def test_the_profiles_own_arguments_follow_the_translated_ones(station: Station, jailed: Site) -> None:
    mission = station.mission(jailed)
    inside = jailed.seen(mission)
    arguments = ["--mission_dir", inside, "--daemon", "--config", f"{inside}/sg001.conf"]
    order = station.order(jailed, mission, "Base.py", *arguments, queue_length=7)
    station.run(order)
    report = json.loads((mission / f"report-Base.py-{order['job_id']}.json").read_text())
    assert report["argv"][1:] == [
        *("--mission_dir", str(mission), "--config", str(mission / "sg001.conf")),
        *("--job_id", order["job_id"], "--queue_length", "7"),
    ]


# Beneath the roots of the host


def test_an_unjailed_requests_arguments_stay_as_they_are(station: Station, plain: Site) -> None:
    mission = station.mission(plain)
    arguments = [str(mission), f"{mission}/../x", "--verbose", "/etc"]
    assert seen_by_job(station, station.order(plain, mission, "do.py", *arguments)) == (str(mission), arguments)


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_within_the_roots_is_followed(station: Station, plain: Site, *, absolute: bool) -> None:
    mission = station.mission(plain)
    current = link(plain, mission.with_name(f"current-{absolute}"), mission if absolute else mission.name)
    changes = {"mission_dir": str(current), "log_file": str(current / "job.log"), "home": str(current)}
    assert seen_by_job(station, station.order(plain, mission, "do.py", **changes))[0] == str(mission)
    assert (mission / "job.log").exists()


def test_a_link_from_one_root_to_another_is_followed(station: Station, wide: Site) -> None:
    mission = station.mission(wide)
    from_rundir = link(wide, wide.watch_dir / "elsewhere", mission)
    order = station.order(wide, mission, "do.py", mission_dir=str(from_rundir))
    assert seen_by_job(station, order)[0] == str(mission)


@pytest.mark.parametrize("kind", ["absolute", "climbing", "dots"])
def test_what_leads_out_of_the_roots_is_refused(station: Station, plain: Site, kind: str) -> None:
    outside = station.installation.make_directory(station.installation.top / "open-to-all")
    outside.chmod(0o777)
    mission = station.mission(plain)
    climbing = os.path.relpath(outside, mission)
    if kind == "dots":
        out = Path(f"{mission}/{climbing}")
    else:
        out = link(plain, mission / "out", outside if kind == "absolute" else climbing)
    for changes, name in (
        ({"mission_dir": str(out)}, f"the mission directory {out}"),
        ({"home": str(out)}, f"the home directory {out}"),
        ({"log_file": f"{out}/job.log"}, f"the log {out}/job.log"),
    ):
        order = station.order(plain, mission, "do.py", SHOW_ARGUMENTS, **changes)
        assert station.refusal(order) == f"{name}: it is outside the site's tree"
    assert not list(outside.iterdir())


def test_a_neighbour_whose_name_begins_like_a_roots_is_outside(station: Station, plain: Site) -> None:
    neighbour = own(plain, plain.watch_dir.with_name("rundir2"))
    reason = station.refusal(station.order(plain, station.mission(plain), "do.py", mission_dir=str(neighbour)))
    assert reason == f"the mission directory {neighbour}: it is outside the site's tree"


# The log


def test_a_new_log_belongs_to_the_sites_group_even_where_the_directory_says_another(
    station: Station, jailed: Site
) -> None:
    mission = station.mission(jailed)
    assert jailed.account is not None
    os.chown(mission, jailed.account.uid, station.installation.accounts.gid("glider"))
    mission.chmod(0o2770)
    station.run(station.order(jailed, mission, "do.py", "open('made', 'w')"))
    facts = (mission / "job.log").stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o7777) == (jailed.account.uid, jailed.account.gid, 0o660)
    assert (mission / "made").stat().st_gid == station.installation.accounts.gid("glider")


def test_an_existing_log_is_appended_to_and_stays_whose_it_was(station: Station, plain: Site) -> None:
    mission = station.mission(plain)
    log = mission / "job.log"
    log.write_text("before\n")
    log.chmod(0o666)
    station.run(station.order(plain, mission, "do.py", "print('job')"))
    assert log.read_text() == "before\njob\n"
    assert (log.stat().st_uid, log.stat().st_mode & 0o777) == (0, 0o666)


def test_what_others_append_meanwhile_is_not_overwritten(station: Station, plain: Site) -> None:
    mission = station.mission(plain)
    code = "print('one', flush=True); open('job.log', 'a').write('glider\\n'); print('two')"
    station.run(station.order(plain, mission, "do.py", code))
    assert (mission / "job.log").read_text() == "one\nglider\ntwo\n"


@pytest.mark.parametrize("code", [0, 3])
def test_a_timing_line_has_the_legacy_form(station: Station, code: int) -> None:
    site = site_of(station, "login")
    mission = station.mission(site)
    order = station.order(site, mission, "BaseLogin.py", str(code), "--daemon")
    record = station.run(order)
    said, timing = (mission / "job.log").read_text().splitlines()
    assert said == str(code)
    assert re.fullmatch(
        rf"{CLOCK}: INFO: BaseRunner: BaseLogin\.py \(job_id={order['job_id']}\) started {CLOCK}, "
        rf"completed in \d+\.\d\ds, returncode={code}",
        timing,
    )
    assert record["log_tail"] == f"{said}\n{timing}\n"


def test_a_script_whose_profile_asks_for_none_gets_no_timing_line(station: Station) -> None:
    site = site_of(station, "login")
    mission = station.mission(site)
    station.run(station.order(site, mission, "Base.py", "said"))
    assert (mission / "job.log").read_text().startswith("said --job_id ")
    assert "BaseRunner" not in (mission / "job.log").read_text()


# Home and cache


def homes(station: Station) -> Path:
    return station.installation.make_directory(station.installation.top / "homes")


def test_home_is_the_accounts_own_where_that_exists(station: Station) -> None:
    site = site_of(station, "settled")
    home = own(site, homes(station) / "settled")
    assert station.output(site, 'echo "$HOME"') == f"{home}\n"


@pytest.mark.parametrize("kind", ["missing", "somebody else's", "writable by others", "a link", "a file"])
def test_home_is_never_a_directory_that_others_can_write(station: Station, kind: str) -> None:
    """Programs run code from their home: a mission directory, where clients write, would be a way into the account."""
    site = site_of(station, "evicted" if kind != "a link" else "linked")
    home = homes(station) / ("evicted" if kind != "a link" else "linked")
    assert site.account is not None
    match kind:
        case "somebody else's":
            home.mkdir()
        case "writable by others":
            own(site, home).chmod(0o770)
        case "a link":
            link(site, home, own(site, home.with_name("real")))
        case "a file":
            home.touch()
            os.chown(home, site.account.uid, site.account.gid)
    mission = station.mission(site)
    record = station.run(station.order(site, mission, "do.sh", 'echo "$HOME"'))
    assert record["log_tail"] == f"{station.installation.helper_cache / site.account.name}\n"
    if home.is_dir() and not home.is_symlink():
        home.rmdir()
    else:
        home.unlink(missing_ok=True)


def test_each_account_has_a_cache_of_its_own_that_no_other_can_enter(station: Station) -> None:
    site = site_of(station, "shell")
    cache = station.installation.helper_cache / "runner-shell"
    assert station.output(site, 'mkdir "$MPLCONFIGDIR" && echo "$MPLCONFIGDIR"') == f"{cache}/matplotlib\n"
    assert site.account is not None
    assert (cache.stat().st_uid, cache.stat().st_mode & 0o777) == (site.account.uid, 0o700)


@pytest.mark.parametrize("kind", ["directory", "link", "file"])
def test_a_cache_that_is_somebody_elses_is_not_used_and_one_warning_says_so(station: Station, kind: str) -> None:
    site, intruder = site_of(station, "squatted"), site_of(station, "plain").account
    cache = station.installation.helper_cache / "runner-squatted"
    assert intruder is not None
    match kind:
        case "directory":
            cache.mkdir()
        case "file":
            cache.touch()
        case _:
            cache.symlink_to("runner-plain")
    os.chown(cache, intruder.uid, intruder.gid, follow_symlinks=False)
    try:
        for _ in range(2):
            assert station.output(site, 'echo "${MPLCONFIGDIR-unset} $HOME"') == "unset /nonexistent\n"
    finally:
        if kind == "directory":
            cache.rmdir()
        else:
            cache.unlink()
    (warning,) = station.warnings(site="squatted")
    assert warning["event"] == f"{cache} is not runner-squatted's own: MPLCONFIGDIR stays unset"
