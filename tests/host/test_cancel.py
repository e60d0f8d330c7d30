"""Jobs that are cancelled, by real helpers and keepers: who is told to end, and what happens if it does not."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from basestation_runner.sandbox.installation import HELPER
from tests.host.helper_client import DEADLINE, Gate, Station, launcher, parent_of
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from tests.host.helper_client import Message

IMPATIENT = """
from basestation_runner.privexec import ending
ending.GRACE_SECONDS = 1
"""
FOREVER = "while :; do sleep 1000; done"


@pytest.fixture
def station(installation: Installation) -> Iterator[Station]:
    with Station(installation) as station:
        station.add_shell_site("one")
        station.add_site("two")
        # Without cgroups: nothing but signals ends a job.
        os.chown(installation.cgroup_root, 0, 0)
        start(station)
        yield station


@pytest.fixture
def site(station: Station) -> Site:
    return station.installation.sites["one"]


@pytest.fixture
def gate(station: Station) -> Iterator[Gate]:
    with Gate(station.installation.top / "gate") as gate:
        yield gate


def start(station: Station) -> None:
    station.start(command=[str(launcher(station.installation, IMPATIENT))])


def cancel(station: Station, *job_ids: str) -> None:
    station.client.send({"request": "cancel", "job_ids": list(job_ids)})


KEYCTL: Final = {"x86_64": 250, "ppc64le": 271, "s390x": 280}.get(os.uname().machine, 219)


def running(station: Station, site: Site, code: str) -> tuple[Message, int]:
    """Start a job and wait until it says that it is ready; return its order and its process."""
    script = "do.sh" if site.entry["python_version"] == "/bin/sh" else "do.py"
    order = station.order(site, station.mission(site), script, code)
    pid = int(station.start_job(order)["pid"])
    until(lambda: Path(order["log_file"]).read_text().startswith("ready\n"), "the job to be ready")
    return order, pid


def record_of(station: Station, order: Message) -> Message:
    return dict(station.client.event(order["job_id"], "ended")["record"])


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_cancelled_job_is_told_to_end_and_may_tidy_up(station: Station, site: Site) -> None:
    order, _ = running(station, site, f"trap 'echo tidied; exit 5' TERM; echo ready; {FOREVER} & wait")
    cancel(station, order["job_id"])
    record = record_of(station, order)
    assert (record["exit_code"], record["signal"], record["cancelled"]) == (5, None, True)
    assert Path(order["log_file"]).read_text() == "ready\ntidied\n"


def test_a_cancelled_job_that_does_not_end_is_killed_with_its_process_group(station: Station, site: Site) -> None:
    order, pid = running(station, site, f"trap '' TERM; sh -c '{FOREVER}' & echo $! > child; echo ready; {FOREVER}")
    child = int((Path(order["mission_dir"]) / "child").read_text())
    cancel(station, order["job_id"])
    record = record_of(station, order)
    assert (record["exit_code"], record["signal"], record["cancelled"]) == (None, signal.SIGKILL, True)
    until(lambda: is_gone(child) and is_gone(pid), "all of it to be gone")


def test_what_a_cancelled_job_leaves_behind_goes_with_it(station: Station, site: Site) -> None:
    order, _ = running(station, site, f"(trap '' TERM; {FOREVER}) & echo $! > child; echo ready; {FOREVER}")
    child = int((Path(order["mission_dir"]) / "child").read_text())
    cancel(station, order["job_id"])
    assert record_of(station, order)["signal"] == signal.SIGTERM
    until(lambda: is_gone(child), "the child to be gone")


def test_all_of_a_cancelled_jobs_cgroup_is_killed(station: Station, site: Site) -> None:
    station.daemon.stop()
    root = station.installation.cgroup_root
    os.chown(root, station.installation.accounts.user(HELPER).uid, 0)
    start(station)
    order, _ = running(station, site, f"echo ready; {FOREVER}")
    cancel(station, order["job_id"])
    record_of(station, order)
    assert (root / "site-one" / f"job-{order['job_id']}" / "cgroup.kill").read_text() == "1"


def test_a_job_that_nobody_cancels_is_not_called_cancelled(station: Station, site: Site, gate: Gate) -> None:
    order, _ = running(station, site, f"echo ready; {gate.in_shell}")
    other, _ = running(station, site, f"echo ready; {FOREVER}")
    cancel(station, other["job_id"], "0123")
    assert record_of(station, other)["cancelled"] is True
    gate.open()
    record = record_of(station, order)
    assert (record["exit_code"], record["cancelled"]) == (0, False)


def test_a_keeper_that_is_woken_for_no_reason_goes_on(station: Station, site: Site, gate: Gate) -> None:
    order, pid = running(station, site, f"echo ready; {gate.in_shell}; exit 4")
    os.kill(parent_of(pid), signal.SIGUSR1)
    gate.open()
    record = record_of(station, order)
    assert (record["exit_code"], record["cancelled"]) == (4, False)


def test_a_successor_helper_ends_a_job_of_an_earlier_one(station: Station, site: Site) -> None:
    order, _ = running(station, site, f"echo ready; {FOREVER}")
    station.daemon.kill()
    start(station)
    assert station.inquire(order["job_id"])["event"] == "started"
    cancel(station, order["job_id"])
    record = record_of(station, order)
    assert (record["signal"], record["cancelled"]) == (signal.SIGTERM, True)


def test_a_job_that_is_cancelled_while_it_starts_ends(station: Station, site: Site) -> None:
    order = station.order(site, station.mission(site), "do.sh", f"echo ready; {FOREVER}")
    station.client.send(order)
    cancel(station, order["job_id"])
    event = station.client.event(order["job_id"], "ended", "temporary")  # it may not have got to its program
    assert event["event"] == "temporary" or event["record"]["cancelled"] is True


def test_a_keeper_that_is_woken_before_its_job_runs_is_not_ended_by_that(station: Station, site: Site) -> None:
    station.daemon.stop()
    prelude = (
        "import os, signal\n"
        "from basestation_runner.privexec import keeper\n"
        "def claim(*given, real=keeper._claim):\n"
        "    real(*given)\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "keeper._claim = claim\n"
    )
    station.start(command=[str(launcher(station.installation, prelude))])
    record = station.run(station.order(site, station.mission(site), "do.sh", "exit 6"))
    assert (record["exit_code"], record["cancelled"]) == (6, False)


def test_a_job_that_is_cancelled_again_and_again_ends_once(station: Station, site: Site) -> None:
    order, _ = running(station, site, f"trap 'echo told; sleep 0.2; exit 0' TERM; echo ready; {FOREVER} & wait")
    for _ in range(20):
        cancel(station, order["job_id"])
    assert record_of(station, order)["cancelled"] is True
    assert Path(order["log_file"]).read_text().count("told") == 1


def test_nothing_of_a_cancellation_is_left_when_the_job_is_settled(station: Station, site: Site) -> None:
    order, _ = running(station, site, f"echo ready; {FOREVER}")
    cancel(station, order["job_id"])
    record_of(station, order)
    claims = station.installation.helper_state / "claims"
    assert (claims / f"{order['job_id']}.cancel").exists()
    station.settle(order["job_id"])
    assert list(claims.iterdir()) == []


def test_the_one_who_signals_is_the_keeper_and_stays_out_of_the_jobs_reach(station: Station) -> None:
    """A job sees whose signal it is, and can neither signal nor look into the sender."""
    site = station.installation.sites["two"]
    code = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "print('ready', flush=True)\n"
        "told = signal.sigwaitinfo({signal.SIGTERM})\n"
        "print(told.si_uid, told.si_pid == os.getppid(), flush=True)\n"
        "for attempt in (lambda: os.kill(told.si_pid, 0), lambda: open(f'/proc/{told.si_pid}/environ').read()):\n"
        "    try: attempt()\n"
        "    except PermissionError: print('refused', flush=True)\n"
    )
    order, _ = running(station, site, code)
    cancel(station, order["job_id"])
    assert record_of(station, order)["exit_code"] == 0
    helper = station.installation.accounts.user(HELPER).uid
    assert Path(order["log_file"]).read_text() == f"ready\n{helper} True\nrefused\nrefused\n"


def test_a_job_whose_account_may_have_no_more_keys_can_be_ended(station: Station) -> None:
    """Nothing that a job can use up keeps whoever is to signal it from doing so."""
    site = station.installation.sites["two"]
    number = KEYCTL - 2  # add_key(2), on every architecture that is known
    code = (
        "import ctypes, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "libc = ctypes.CDLL(None)\n"
        "count = 0\n"
        f"while libc.syscall({number}, b'user', b'key%d' % count, b'x', 1, -3) > 0: count += 1\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(60)\n"
    )
    order, _ = running(station, site, code)
    cancel(station, order["job_id"])
    record = record_of(station, order)
    assert (record["cancelled"], record["signal"]) == (True, signal.SIGKILL)


def test_a_job_that_stops_whoever_signals_it_is_killed_all_the_same(station: Station) -> None:
    """It may stop each child of its keeper that has become its own account; none of them is waited for."""
    site = station.installation.sites["two"]
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "keeper = os.getppid()\n"
        "children = f'/proc/{keeper}/task/{keeper}/children'\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for child in open(children).read().split():\n"
        "        if int(child) != os.getpid():\n"
        "            try: os.kill(int(child), signal.SIGSTOP)\n"
        "            except OSError: pass\n"
    )
    order, pid = running(station, site, code)
    keeper = os.pidfd_open(parent_of(pid))
    cancel(station, order["job_id"])
    # What it does not stop in time ends it; the keeper is not held up meanwhile.
    assert record_of(station, order)["cancelled"] is True
    assert select.select([keeper], [], [], DEADLINE)[0]
    os.close(keeper)


STOPS: Final = (
    IMPATIENT
    + """
import signal
from basestation_runner.privexec.child import Child
ending.START_SECONDS = {seconds}
def stop_before(self, plan, real=Child.{what}):
    if any("stop here" in word for word in plan._order.own_args):
        self.ending._signal(signal.SIGSTOP)  # as whoever has the site's account can do
    return real(self, plan)
Child.{what} = stop_before
"""
)


def stopped(station: Station, seconds: float, what: str) -> Message:
    """Order a job whose child stops when it is told to `what`, and return the order once it is claimed."""
    station.daemon.stop()
    station.start(command=[str(launcher(station.installation, STOPS.format(seconds=seconds, what=what)))])
    site = station.installation.sites["one"]
    order = station.order(site, station.mission(site), "do.sh", "echo ran : stop here")
    station.dispatch(order)
    claim = station.installation.helper_state / "claims" / order["job_id"]
    until(claim.exists, "the job to be claimed")
    return order


def test_a_job_that_does_not_get_to_its_program_can_be_cancelled(station: Station) -> None:
    order = stopped(station, 1000, "open")
    cancel(station, order["job_id"])
    event = station.client.event(order["job_id"], "temporary")
    assert event["reason"] == "it was cancelled while it was being started"
    assert list((station.installation.helper_state / "claims").iterdir()) == []


def test_a_job_that_does_not_get_to_its_program_in_time_is_put_back(station: Station) -> None:
    order = stopped(station, 0.2, "open")
    event = station.client.event(order["job_id"], "temporary")
    assert event["reason"] == "it could not be started within 0.2 s"
    assert station.output(station.installation.sites["one"], "echo ran") == "ran\n"


def test_a_job_that_was_told_to_run_is_never_put_back(station: Station) -> None:
    """Whether its program has begun by the time it is killed nobody knows: it must not run a second time."""
    order = stopped(station, 1000, "execute")
    until(lambda: Path(order["log_file"]).exists(), "the job to be told")
    cancel(station, order["job_id"])
    record = record_of(station, order)
    assert (record["cancelled"], record["signal"]) == (True, signal.SIGKILL)
    station.dispatch(order)
    assert record_of(station, order) == record


def test_a_job_that_was_told_to_run_and_is_too_slow_has_ended(station: Station) -> None:
    order = stopped(station, 0.2, "execute")
    record = record_of(station, order)
    assert (record["cancelled"], record["signal"]) == (False, signal.SIGKILL)
    assert "was killed: it did not get to its program in time" in Path(order["log_file"]).read_text()
