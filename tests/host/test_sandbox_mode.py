"""Mode sandbox with real bubblewrap and real accounts: what a job sees, and what it cannot reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner import tools
from basestation_runner.privexec import support
from tests.host.helper_client import Station, launcher
from tests.needs import need
from tests.patience import until

if TYPE_CHECKING:
    from basestation_runner.sandbox.installation import Site
    from tests.host.helper_client import Message


@pytest.fixture(autouse=True)
def bubblewrap() -> None:
    need(Path(tools.BWRAP).exists(), "bubblewrap")


@pytest.fixture
def site(station: Station) -> Site:
    return station.add_shell_site("one")


@pytest.fixture
def data(station: Station) -> Path:
    """A tree of root's that everybody may read: what lies in it is seen only where a profile says so."""
    top = station.installation.make_directory(station.installation.top / "data")
    for name in ("always", "allowed", "other"):
        station.installation.make_directory(top / name)
        station.installation.write(top / name / "file", f"{name}\n")
    return top


def profile(station: Station, **fields: Any) -> None:  # noqa: ANN401 - as a file has them
    entry = {"name": "do", "scripts": ["do.py", "do.sh"], "mode": "sandbox", **fields}
    text = json.dumps({"applications": [entry]})
    station.installation.write(station.installation.applications_config, text)


def order(station: Station, site: Site, code: str, **additions: Any) -> Message:  # noqa: ANN401 - JSON
    return station.order(site, station.mission(site), "do.sh", code, additions=additions)


def output(station: Station, site: Site, code: str, **additions: Any) -> str:  # noqa: ANN401 - JSON
    record = station.run(order(station, site, code, **additions))
    assert record["exit_code"] == 0, record
    return str(record["log_tail"])


def test_a_job_sees_its_mission_directory_and_a_system_that_it_cannot_change(station: Station, site: Site) -> None:
    profile(station)
    station.start()
    job = order(
        station, site, "pwd; echo made > made; cat made; ls -d /home /root /srv /sys/fs; touch /usr/x; touch /x"
    )
    record = station.run(job)
    lines = record["log_tail"].splitlines()
    assert lines[:2] == [job["mission_dir"], "made"]
    assert sum("No such file or directory" in line for line in lines) == 4
    assert sum("Read-only file system" in line for line in lines) == 2
    made = Path(job["mission_dir"]) / "made"
    assert site.account
    assert (made.stat().st_uid, made.stat().st_gid) == (site.account.uid, Path(job["mission_dir"]).stat().st_gid)


def test_a_job_cannot_see_another_site_nor_what_its_own_has_outside_of_the_mission(
    station: Station, site: Site
) -> None:
    profile(station)
    other = station.add_site("two")
    assert other.account
    open_to_all = station.installation.make_directory(other.homes / "sg002", other.account, other.group, mode=0o777)
    station.installation.write(open_to_all / "secret", "theirs\n")
    station.start()
    sibling = station.mission(site)
    code = f"cat {open_to_all}/secret; ls {sibling}; ls {station.installation.top}; ls -a /tmp; echo done"
    shown = output(station, site, code)
    assert "theirs" not in shown
    assert shown.count("No such file or directory") == 2
    assert "data" not in shown
    assert shown.endswith(".\n..\ndone\n")


def test_a_job_reads_inputs_and_writes_outputs_and_nothing_else_of_their_prefixes(
    station: Station, site: Site, data: Path
) -> None:
    assert site.account
    out = station.installation.make_directory(station.installation.top / "out", site.account, site.group, mode=0o2770)
    own = station.installation.make_directory(out / "own", site.account, site.group, mode=0o2770)
    station.installation.make_directory(out / "not", site.account, site.group, mode=0o2770)
    options = {"inputs": [str(data / "always")], "job_inputs": [str(data / "allowed")], "job_outputs": [str(out)]}
    profile(station, sandbox=options)
    station.start()
    code = f"cat {data}/*/file; ls {out}; echo x > {own}/made; echo x > {data}/allowed/made; echo done"
    shown = output(station, site, code, inputs=[str(data / "allowed/file")], outputs=[str(own)])
    assert shown.splitlines()[:3] == ["allowed", "always", "own"]
    assert shown.splitlines()[-1] == "done"
    assert not (data / "allowed/made").exists()
    assert (own / "made").stat().st_uid == site.account.uid


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_a_link_that_leads_out_of_a_prefix_is_not_followed(station: Station, site: Site, data: Path, kind: str) -> None:
    assert site.account
    out = station.installation.make_directory(station.installation.top / "out", site.account, site.group, mode=0o2770)
    (out / "link").symlink_to(data / "other")
    profile(station, sandbox={f"job_{kind}": [str(out)]})
    station.start()
    reason = station.refusal(order(station, site, "ls", **{kind: [str(out / "link")]}))
    assert reason == f"the {kind[:-1]} {out}/link: it leads outside {out}"


def test_what_could_run_other_code_stays_inside(station: Station, site: Site) -> None:
    profile(station, job_env=["LD_PRELOAD"])
    station.start()
    job = order(station, site, "env; echo; tr '\\0' '\\n' < /proc/1/environ", env={"LD_PRELOAD": "/none.so", "A": "7"})
    record = station.run(job)
    inside, outside = record["log_tail"].split("\n\n", 1)
    assert {"A=7", "LD_PRELOAD=/none.so", "HOME=/tmp"} <= set(inside.splitlines())
    assert "LD_PRELOAD=/none.so" not in outside.splitlines()


def test_nothing_of_the_jobs_environment_is_on_a_command_line(station: Station, site: Site) -> None:
    profile(station)
    station.start()
    job = order(station, site, "echo ready; sleep 1000", env={"PASSWORD": "s3cret"})
    pid = station.start_job(job)["pid"]
    until(lambda: "ready" in Path(job["log_file"]).read_text(), "the job to run")
    assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"s3cret" not in Path(f"/proc/{pid}/environ").read_bytes()
    station.client.send({"request": "cancel", "job_ids": [job["job_id"]]})
    assert station.client.event(job["job_id"], "ended")["record"]["cancelled"] is True


@pytest.mark.parametrize("network", [False, True])
def test_the_network_is_the_profiles_choice(station: Station, site: Site, *, network: bool) -> None:
    profile(station, sandbox={"network": network})
    station.start()
    inside = output(station, site, "readlink /proc/self/ns/net").strip()
    assert (inside == str(Path("/proc/self/ns/net").readlink())) is network


def test_a_job_has_no_privileges_and_no_descriptor_but_the_standard_ones(station: Station, site: Site) -> None:
    profile(station)
    station.start()
    shown = output(
        station, site, "grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status; readlink /proc/$$/fd/*; true"
    )
    words = shown.split()
    assert words[:10] == [word for name in ("Inh", "Prm", "Eff") for word in (f"Cap{name}:", "0" * 16)] + [
        "CapAmb:",
        "0" * 16,
        "NoNewPrivs:",
        "1",
    ]
    log, script = f"{site.homes}/sg001/mission1/job.log", f"{station.installation.scripts}/do.sh"
    assert {*words[10:]} == {"/dev/null", log, script}  # the shell has opened its script itself


def test_a_cancelled_job_may_tidy_up_inside_and_its_exit_code_is_its_own(station: Station, site: Site) -> None:
    profile(station)
    station.start()
    job = order(station, site, "trap 'echo tidied; exit 5' TERM; echo ready; while :; do sleep 1000; done & wait")
    station.start_job(job)
    until(lambda: "ready" in Path(job["log_file"]).read_text(), "the job to run")
    station.client.send({"request": "cancel", "job_ids": [job["job_id"]]})
    record = station.client.event(job["job_id"], "ended")["record"]
    assert (record["exit_code"], record["cancelled"]) == (5, True)
    assert Path(job["log_file"]).read_text() == "ready\ntidied\n"


def test_a_jobs_own_step_is_in_the_sandbox_and_its_profiles_is_not(station: Station, site: Site, data: Path) -> None:
    steps = station.installation.make_directory(station.installation.top / "steps")
    for name in ("outer", "inner"):
        step = steps / name
        station.installation.write(step, f"#!/bin/sh\necho {name}; cat {data}/other/file 2> /dev/null; true\n")
        step.chmod(0o755)
    allowed = {"job_pre_post_exec": "allow", "job_exec_dirs": [str(steps)]}
    profile(station, pre_exec=[str(steps / "outer")], **allowed)
    station.start()
    shown = output(station, site, "echo job", pre_exec=[str(steps / "inner")])
    assert shown.splitlines() == ["outer", "other", "inner", "job"]


def test_where_no_sandbox_can_be_made_jobs_wait_with_the_reason(station: Station, site: Site) -> None:
    profile(station)
    prelude = "from basestation_runner import tools\ntools.BWRAP = '/usr/bin/false'\n"
    station.start(command=[str(launcher(station.installation, prelude))])
    event = station.outcome(order(station, site, "true"))
    assert event["event"] == "temporary"
    assert event["reason"].startswith("mode sandbox does not work on this host: /usr/bin/false ends with")
    assert station.client.hello()["missing"].keys() >= {"mode sandbox"}


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "BWRAP", "/nowhere/bwrap")
    assert support.missing()[support.SANDBOX] == "/nowhere/bwrap is not installed"
