"""Real visualiser notices from a running watcher, and listeners that try to hold it up."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from basestation_runner.watch import watcher as watcher_module
from basestation_runner.watch.visualiser import Visualiser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.watch.conftest import Bench

PATIENCE_MS = 20_000
Pull = zmq.Socket[bytes]


@pytest.fixture
def listen(bench: Bench) -> Iterator[Callable[[str], Pull]]:
    """Make listeners where the watcher looks for them."""
    with TemporaryDirectory(prefix="vis-") as place, zmq.Context() as context, ExitStack() as cleanup:
        bench.patch.setattr(watcher_module, "Visualiser", partial(Visualiser, Path(place)))

        def listener(name: str) -> Pull:
            pull = context.socket(zmq.PULL)
            cleanup.callback(pull.close, linger=0)
            pull.setsockopt(zmq.RCVHWM, 1 if name == "full" else 1000)
            pull.bind(f"ipc://{place}/sanic-{name}-notify.ipc")
            return pull

        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{place}/sanic-dead-notify.ipc")
        yield listener
        bench.stop()


def received(pull: Pull) -> tuple[str, dict[str, Any]]:
    assert pull.poll(PATIENCE_MS), "no notice came"
    topic, content = pull.recv_multipart()
    return topic.decode(), json.loads(content)


def test_a_listener_hears_of_each_step_of_a_job(bench: Bench, listen: Callable[[str], Pull]) -> None:
    vis = listen("vis")
    jail = bench.directory / "jail"
    rundir = bench.site("alpha", jail_root=str(jail))
    bench.start()
    bench.drop(rundir, "1.run")
    notices = [received(vis) for _ in range(3)]
    (job_id,) = (dispatch["job_id"] for dispatch in bench.helper.dispatched)
    common = {"glider": 123, "queue_id": f"alpha||{jail}/home/sg123/mission1||Base.py", "target": job_id}
    assert [topic for topic, _ in notices] == ["123-proc-queue"] * 3
    assert [notice["action"] for _, notice in notices] == ["queued", "start", "complete"]
    for _, notice in notices:
        assert common.items() <= notice.items()
        assert notice["uuids"] == [job_id]
        assert isinstance(notice["time"], float)
    assert ["returncode" in notice for _, notice in notices] == [False, False, True]
    assert notices[2][1]["returncode"] == 0


def test_listeners_that_never_read_or_are_dead_hold_no_job_up(bench: Bench, listen: Callable[[str], Pull]) -> None:
    listen("full")
    rundir = bench.site("alpha")
    bench.start()
    for number in range(300):
        bench.drop(rundir, f"{number}.run", n=number)
    bench.until(lambda: len(bench.events("job ended")) == 300, "all jobs")
    vis = listen("late")
    numbers = iter(range(300, 10_000))
    while not vis.poll(20):
        number = next(numbers)
        bench.drop(rundir, f"{number}.run", n=number)
    assert received(vis)[1]["action"] in {"queued", "start", "complete"}
