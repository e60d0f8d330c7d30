"""The benchmarks' host and adapter, with a stand-in for another runner that serves the same sites.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from basestation_runner.errors import RunnerError
from bench.host import Host
from bench.stats import Verdict
from bench.subjects import Other, Runner, stop
from bench.traffic import drop_all

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.sandbox import Installation

HELPER = """
import signal, sys
open(sys.argv[1], "w").close()
signal.pause()
"""
# Runs each request itself, as the watcher's account; loses or repeats those whose numbers it is told.
WATCHER = """
import os, re, subprocess, sys, time
_, sites_config, socket, lost, twice = sys.argv
assert os.path.exists(socket)
text = open(sites_config).read()
rundirs = re.findall("watch_dir: (.*)", text)
python = re.search("python_version: (.*)", text)[1]
for rundir in rundirs:
    with open(rundir + "/.base_runner_lockfile", "w") as file:
        file.write(str(os.getpid()))
while True:
    for rundir in rundirs:
        for name in sorted(os.listdir(rundir)):
            if name.endswith(".run"):
                _, mission, _, script, *arguments = open(f"{rundir}/{name}").read().split()
                os.unlink(f"{rundir}/{name}")
                for _ in range({lost: 0, twice: 2}.get(arguments[0], 1)):
                    subprocess.run([python, script, *arguments], cwd=mission, check=True)
    time.sleep(0.01)
"""
ADAPTER = """
[[daemon]]
name = "helper"
account = "baserunner-exec"
capabilities = ["setuid", "setgid"]
command = ["{python}", "-ISc", '''{helper}''', "{{socket}}"]
ready = ["{{socket}}"]

[[daemon]]
name = "watcher"
account = "baserunner"
command = ["{python}", "-ISc", '''{watcher}''', "{{sites_config}}", "{{socket}}", "{lost}", "{twice}"]
ready = ["{{watch_dir}}/.base_runner_lockfile"]
"""


def adapter(path: Path, python: str, *, lost: int = 0, twice: int = 0) -> Other:
    code = WATCHER.replace("{", "{{").replace("}", "}}")  # the adapter's own braces stand for what is filled in
    path.write_text(ADAPTER.format(python=python, helper=HELPER, watcher=code, lost=lost, twice=twice))
    return Other.load("peer", path)


def test_another_runner_is_driven_by_its_adapter_and_its_losses_and_repeats_are_seen(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.traffic.PATIENCE", 2.0)
    host = Host.make(installation, count=2, missions=2)
    requests = host.requests(host.queues(8))
    peer = adapter(
        tmp_path / "peer.toml", installation.program.python, lost=requests[3].number, twice=requests[5].number
    )
    daemons = peer.start(installation)
    assert list(daemons) == ["helper", "watcher"]
    run = drop_all(host, requests)
    assert (run.verdict.lost, run.verdict.twice) == (1, 1)
    stop(daemons)


def test_another_runner_that_is_started_again_after_a_kill_is_waited_for_again(
    installation: Installation, tmp_path: Path
) -> None:
    host = Host.make(installation, count=1)
    peer = adapter(tmp_path / "peer.toml", installation.program.python)
    for started in peer.start(installation).values():
        started.daemon.kill()
    lock = host.sites[0].watch_dir / ".base_runner_lockfile"
    daemons = peer.start(installation)
    assert lock.read_text() in {"", str(daemons["watcher"].daemon.pid)}


def test_another_runner_that_ends_instead_of_getting_ready_is_a_fault_that_shows_what_it_said(
    installation: Installation, tmp_path: Path
) -> None:
    Host.make(installation, count=1)
    path = tmp_path / "peer.toml"
    path.write_text(
        '[[daemon]]\nname = "only"\naccount = "baserunner"\ncommand = ["sh", "-c", "echo no idea; exit 3"]\n'
        'ready = ["{socket}"]\n'
    )
    with pytest.raises(RunnerError, match="ended with status 3") as caught:
        Other.load("peer", path).start(installation)
    assert "no idea" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "",
        "[[daemon]]\nname = 'x'\n",
        "[[daemon]]\nname = 'x'\naccount = 'root'\ncommand = ['x']\nready = ['x']\n",
        "[[daemon]]\nname = 'x'\naccount = 'baserunner'\ncommand = ['x']\nready = ['x']\nshell = true\n",
    ],
)
def test_what_is_no_adapter_is_a_fault_that_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "peer.toml"
    path.write_text(text)
    with pytest.raises(RunnerError, match="not an adapter") as caught:
        Other.load("peer", path)
    assert caught.value.where == str(path)


def test_our_own_runner_runs_the_stamping_job_once_for_each_request_and_in_order(installation: Installation) -> None:
    host = Host.make(installation, count=2)
    daemons = Runner().start(installation)
    run = drop_all(host, host.requests([next(host.queues(1))] * 5))
    assert run.verdict == Verdict(lost=0, twice=0, out_of_order=0)
    assert len(run.gaps_ms) == 4
    assert run.seconds > sum(run.gaps_ms) / 1000
    stop(daemons)
