"""A watcher that has been taken over asks the helper for everything that it should not get, round after round."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner import protocol
from basestation_runner.sandbox import HELPER, WATCHER
from tests.attacks.attack import attempts, fingerprint, rounds
from tests.host.helper_client import Client, Station, acting_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Sandbox
    from basestation_runner.sandbox.installation import Site
    from tests.host.helper_client import Message


@pytest.fixture(scope="module")
def station(sandbox: Sandbox) -> Iterator[Station]:
    with sandbox.installation() as installation, Station(installation) as station:
        for name in ("alpha", "beta"):
            station.add_shell_site(name, applications=["base", "do"])
        station.start()
        yield station


@pytest.fixture
def alpha(station: Station) -> Site:
    return station.installation.sites["alpha"]


@pytest.fixture
def beta(station: Station) -> Site:
    return station.installation.sites["beta"]


@pytest.fixture
def watcher(station: Station) -> Account:
    return station.installation.accounts.user(WATCHER)


def started(station: Station) -> int:
    return sum(event["event"] == "job started" for event in station.daemon.events)


def forgeries(station: Station, site: Site, other: Site) -> list[Callable[[random.Random], Message]]:
    """Return what makes an order out of a good one that no helper may carry out, each in its own way."""
    mission, theirs = station.mission(site), station.mission(other)
    evil = mission / "evil.sh"
    evil.write_text("echo evil\n")
    evil.chmod(0o777)

    def order(**changes: object) -> Message:
        return station.order(site, mission, "do.sh", "echo ran", **changes)

    def script(r: random.Random) -> Message:
        up = "../" * r.randrange(1, 12)
        names = [str(evil), f"{up}{evil}", "./do.sh", "do.sh/", "/bin/sh", "", ".", "..", "do.sh\n", "-c", "do.py "]
        return order(script=r.choice(names))

    def place(r: random.Random) -> Message:
        field = r.choice(["home", "mission_dir", "log_file"])
        return order(**{field: r.choice([f"{theirs}", "/etc", "/", f"{mission}/../../../beta", "relative", ""])})

    def account(r: random.Random) -> Message:
        field = r.choice(["uid", "gid", "groups", "runner_user", "env", "limits", "argv", "program", "python_version"])
        return {**order(), field: r.choice([0, [0], "root", {"LD_PRELOAD": str(evil)}, ["/bin/sh"]])}

    def job_id(r: random.Random) -> Message:
        alphabet = "0123456789abcdef-./\n\0ABCZ~ \u0661"
        made = "".join(r.choice(alphabet) for _ in range(r.randrange(70)))
        return order() | {"job_id": made if not protocol.is_job_id(made) else "../claims"}

    def names(r: random.Random) -> Message:
        changes: list[dict[str, object]] = [
            {"site": "beta"},
            {"site": "../alpha"},
            {"digest": ""},
            {"digest": [1]},
            {"application": "early-gps"},
            {"application": "none"},
            {"application": "../do"},
            {"site": None},
            {"queue_length": -1},
            {"queue_length": 1 << 40},
            {"additions": {"env": {"LD_PRELOAD": str(evil)}}},
            {"additions": {"env": {"PATH": str(mission)}}},
            {"additions": {"pre_exec": [str(evil)]}},
            {"additions": {"groups": ["root"]}},
            {"additions": {"mode": "direct"}},
            {"additions": {"env": {"A": "\0"}}},
            {"additions": [["x"]]},
            {"args": "echo ran"},
            {"args": ["a\0b"]},
            {"args": [["x"]]},
            {"args": ["x" * 300_000]},
        ]
        return order(**r.choice(changes))

    def legacy(r: random.Random) -> Message:
        scripts = station.installation.scripts
        argv = r.choice(
            [
                ["/bin/sh", "-c", "echo ran"],
                ["/bin/sh", str(evil)],
                ["/bin/sh", f"{scripts}/../{evil}"],
                ["/bin/sh", f"{scripts}//do.sh", "echo ran"],
                ["/bin/sh", "-s", f"{scripts}/do.sh", "echo ran"],
                ["/usr/bin/env", f"{scripts}/do.sh", "echo ran"],
                ["/bin/bash", f"{scripts}/do.sh", "echo ran"],
                [str(evil)],
                [],
                [""],
            ]
        )
        return {"site": r.choice(["alpha", "beta", "none"]), "argv": argv, "log_file": str(mission / "legacy.log")}

    return [script, place, account, job_id, names, legacy]


def ask(path: Path, account: Account, message: Message) -> list[Message]:
    """Ask on a connection of its own; return all that is answered until the question is settled or it is closed."""
    answers: list[Message] = []
    with Client(path, account) as client:
        client.send(message)
        with contextlib.suppress(EOFError, ConnectionResetError):
            answers.append(client.next())
    return answers


def test_nothing_that_it_should_not_get_is_started_in_thousands_of_rounds(
    station: Station, alpha: Site, beta: Site, watcher: Account
) -> None:
    makers = forgeries(station, alpha, beta)
    before, theirs = started(station), fingerprint(beta.homes)
    chance = random.Random(20261130)  # noqa: S311 - the same attacks each time
    seen: set[str] = set()
    for number in range(rounds(600)):
        message = makers[number % len(makers)](chance)
        for answer in ask(station.installation.helper_socket, watcher, message):
            kind = str(answer.get("event", answer.get("ok")))
            assert kind in {"refused", "temporary", "False"}, (message, answer)
            seen.add(kind)
    assert seen == {"refused", "temporary", "False"}
    station.catch_up()
    assert started(station) == before
    assert fingerprint(beta.homes) == theirs
    assert station.output(alpha, "echo ran") == "ran\n"
    state = station.installation.helper_state
    strange = [path for path in state.rglob("*") if not (path.is_dir() or protocol.is_job_id(path.name))]
    assert [path.name for path in strange] == ["lock"]


def test_thousands_of_connections_and_broken_frames_cost_the_helper_nothing_for_good(
    station: Station, alpha: Site, watcher: Account
) -> None:
    path = station.installation.helper_socket
    process = Path(f"/proc/{station.daemon.pid}")
    station.client.hello()
    chance = random.Random(20261130)  # noqa: S311 - the same attacks each time
    descriptors, memory = len(list((process / "fd").iterdir())), resident(process)
    whole = protocol.encode({"request": "hello", "version": protocol.VERSION})

    def broken() -> bytes:
        cut = chance.randrange(len(whole))
        return chance.choice(
            [
                whole[:cut],
                whole[:cut] + bytes([chance.randrange(256)]) + whole[cut + 1 :],
                struct.pack(">I", chance.randrange(1 << 32)) + chance.randbytes(chance.randrange(2000)),
                struct.pack(">I", 1 << 20) + b"[" * 60_000,
                protocol.encode({"request": "inquire", "job_ids": ["ab"] * chance.randrange(3000)}),
                protocol.encode({"request": "settled", "job_ids": ["-" * 64] * chance.randrange(3000)}),
            ]
        )

    for number in range(rounds(1000)):
        with acting_as(watcher), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(str(path))  # waits for its turn
            link.settimeout(20)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                link.sendall(broken())
        if number % 50 == 0:
            begun = time.monotonic()
            station.client.hello()
            assert time.monotonic() - begun < 5
    assert station.output(alpha, "echo ran") == "ran\n"
    station.client.hello()
    with Client(path, watcher) as late:  # all the others have been forgotten by the time that it is served
        late.hello()
        station.catch_up()
        assert len(list((process / "fd").iterdir())) <= descriptors + 1
    assert resident(process) - memory < 40_000


def resident(process: Path) -> int:
    return int((process / "status").read_text().partition("VmRSS:")[2].split()[0])


ATTEMPTS: dict[str, str] = {
    "kill the helper": "os.kill(helper, 9)",
    "stop the helper": "os.kill(helper, 19)",
    "trace the helper": "check(libc.ptrace(0x4206, helper, 0, 0))",
    "read the helper's memory": "open(f'/proc/{helper}/mem', 'rb')",
    "list the helper's files": "os.listdir(f'/proc/{helper}/fd')",
    "read its environment": "open(f'/proc/{helper}/environ').read(1)",
    "list the claims": "os.listdir(state + '/claims')",
    "forge an exit record": "open(state + '/exits/ab', 'w')",
    "take the state away": "os.rename(state, state + '.old')",
    "put a socket in the place of the helper's": "os.unlink(socket_path)",
    "change the config": "open(config, 'a')",
    "become the site": "os.setuid(site)",
    "kill the job": "os.kill(job, 9)",
    "enter the job's cgroup": "open(cgroups + '/cgroup.procs', 'w')",
}


def test_with_its_uid_alone_it_reaches_neither_helper_nor_marks_nor_jobs(station: Station, alpha: Site) -> None:
    """With accounts of their own; the helper's socket is all that it can use."""
    installation = station.installation
    job = station.start_job(station.order(alpha, station.mission(alpha), "do.sh", "exec sleep 1000"))
    assert alpha.account
    facts: dict[str, Any] = {
        "helper": station.daemon.pid,
        "job": job["pid"],
        "site": alpha.account.uid,
        "state": str(installation.helper_state),
        "socket_path": str(installation.helper_socket),
        "config": str(installation.sites_config),
        "cgroups": str(installation.cgroup_root),
    }
    assert attempts(installation, installation.accounts.user(WATCHER), facts, ATTEMPTS) == dict.fromkeys(ATTEMPTS, "no")
    assert installation.accounts.user(HELPER).uid != installation.accounts.user(WATCHER).uid
    assert station.inquire(job["job_id"])["event"] == "started"
