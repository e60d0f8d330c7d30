"""A watcher on a loop of its own in a thread, and a helper of which each test says what it does."""

from __future__ import annotations

import asyncio
import os
import pwd
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import structlog
from structlog.testing import LogCapture

from basestation_runner import cli, protocol
from basestation_runner.config.model import Config, Site
from basestation_runner.config.parts import Host
from basestation_runner.config.profiles import builtin_profiles
from basestation_runner.systemd import Notifier
from basestation_runner.watch import reload
from basestation_runner.watch import watcher as watcher_module
from basestation_runner.watch.options import WatchOptions
from basestation_runner.watch.shared import Timing
from basestation_runner.watch.watcher import Watcher
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from basestation_runner.watch.sitewatch import SiteWatch
    from basestation_runner.watch.web import Address

DEADLINE = 20.0
ME = pwd.getpwuid(os.geteuid()).pw_name
ALL = ("base", "base-login", "early-gps")


class FakeHelper:
    """Speaks the helper's side of the protocol. What a dispatch leads to is `on_dispatch`'s to say."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: Path) -> None:
        self.loop = loop
        self.socket = socket
        self.dispatched: list[dict[str, Any]] = []
        self.settled: list[str] = []
        self.inquired: list[str] = []
        self.cancelled: list[str] = []
        self.reloads = 0
        self.reload_faults: list[str] = []
        self.probed: list[str] = []
        self.has_probe = True  # whether a probe is answered
        self.ends: dict[str, dict[str, Any]] = {}  # survives a restart, as exit records do
        self.running: set[str] = set()  # as claims and keepers do
        self.on_dispatch: Callable[[dict[str, Any]], None] = self.run
        self.on_cancel: Callable[[str], None] = self.end
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Transport] = set()

    # What a test may have done on a dispatch

    def run(self, message: dict[str, Any]) -> None:
        """Start the job, and end it at once."""
        self.hold(message)
        self.finish(message["job_id"])

    def hold(self, message: dict[str, Any]) -> None:
        """Start the job."""
        job_id = message["job_id"]
        self.running.add(job_id)
        self.say({"event": "started", "job_id": job_id, "pid": 4711, "started_at": time.time()})

    def end(self, job_id: str) -> None:
        """End a job that runs as SIGTERM does."""
        if job_id in self.running:
            self.finish(job_id, None, 15, cancelled=True)

    # What a test does to a running helper

    def finish(self, job_id: str, exit_code: int | None = 0, signal: int | None = None, **more: object) -> None:
        self.running.discard(job_id)
        self.ends[job_id] = {
            "job_id": job_id,
            "exit_code": exit_code,
            "signal": signal,
            "pid": 4711,
            "started_at": time.time() - 1,
            "ended_at": time.time(),
            "seconds": 1.0,
            "user_seconds": 0.5,
            "system_seconds": 0.25,
            "max_rss_kib": 2048,
            "log_tail": "the last line\n",
            **more,
        }
        self.say({"event": "ended", "job_id": job_id, "record": self.ends[job_id]})

    def say(self, message: dict[str, Any]) -> None:
        self.loop.call_soon_threadsafe(self._say, message)

    def _say(self, message: dict[str, Any]) -> None:
        for transport in self._connections:
            transport.write(protocol.encode(message))

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(DEADLINE)

    async def _start(self) -> None:
        with suppress(FileNotFoundError):
            self.socket.unlink()
        self._server = await self.loop.create_unix_server(lambda: _Serving(self), str(self.socket))

    def kill(self) -> None:
        """End as SIGKILL would have it: connections break, the socket's file stays, jobs live on."""

        async def kill() -> None:
            if self._server is not None:
                self._server.close()
            for transport in tuple(self._connections):
                transport.abort()

        asyncio.run_coroutine_threadsafe(kill(), self.loop).result(DEADLINE)

    def has(self, message: dict[str, Any], transport: asyncio.Transport) -> None:
        """Deal with one request."""
        assert protocol.check_request(message)
        match message["request"]:
            case "hello":
                self._connections.add(transport)
                answer = {"reply": "hello", "ok": True, "version": protocol.VERSION, "pid": 1, "program": "fake"}
                transport.write(protocol.encode(answer))
            case "dispatch":
                self.dispatched.append(message)
                self.on_dispatch(message)
            case "inquire":
                self.tell_of(message["job_ids"])
            case "cancel":
                self.cancelled += message["job_ids"]
                for job_id in message["job_ids"]:
                    self.on_cancel(job_id)
            case "recall":
                self.recall()
            case "reload":
                self.reloads += 1
                self.say({"event": "reloaded", "faults": self.reload_faults})
            case "probe":
                self.probe(message["site"])
            case "settled":
                self.settled += message["job_ids"]

    def tell_of(self, job_ids: Iterable[str]) -> None:
        self.inquired += job_ids
        for job_id in job_ids:
            if job_id in self.ends:
                self.say({"event": "ended", "job_id": job_id, "record": self.ends[job_id]})
            elif job_id in self.running:
                self.say({"event": "started", "job_id": job_id, "pid": 4711, "started_at": time.time()})
            else:
                self.say({"event": "never_started", "job_id": job_id})

    def probe(self, site: str) -> None:
        self.probed.append(site)
        if self.has_probe:
            self.say({"event": "probed", "site": site, "outcome": "probed", "uids": [1, 1, 1]})

    def recall(self) -> None:
        fields = ("site", "application", "home", "mission_dir", "log_file", "script", "args", "additions")
        for sent in self.dispatched:
            if sent["job_id"] not in self.settled and sent["job_id"] in self.running | self.ends.keys():
                request = {name: sent[name] for name in fields}
                self.say({"event": "recalled", "job_id": sent["job_id"], "request": request})
        self.say({"event": "recalled all"})

    @property
    def scripts(self) -> list[str]:
        return [message["script"] for message in self.dispatched]

    def lost(self, transport: asyncio.Transport) -> None:
        self._connections.discard(transport)


class _Serving(asyncio.Protocol):
    def __init__(self, helper: FakeHelper) -> None:
        self.helper = helper
        self.decoder = protocol.FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self.decoder.feed(data):
            self.helper.has(message, self.transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.helper.lost(self.transport)


class FakeVisualiser:
    """Keeps the notices."""

    notices: ClassVar[list[dict[str, Any]]] = []
    is_heard: ClassVar[bool] = True

    def __init__(self) -> None:
        self.notices.clear()

    def notify(self, action: str, *, uuids: Iterable[str], **fields: Any) -> None:  # noqa: ANN401 - any notice
        self.notices.append({"action": action, "uuids": list(uuids), **fields})

    def close(self) -> None:
        pass


class Bench:
    """Sites, rundirs, a helper and a watcher that can be started again."""

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop, patch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.patch = patch
        self.loop = loop
        self.socket = directory / "helper.sock"
        self.helper = FakeHelper(loop, self.socket)
        self.capture = LogCapture()
        self.timing = Timing(settle=0.05, pause=0.01, recheck=0.3, first_wait=0.02, hung=0.5)
        self.max_running = 8
        self.max_queued = 50_000
        self.absent_patience = 600.0
        self.on_failure: Path | None = None
        self.metrics: Address | None = None
        self.http: Address | None = None
        self.sites: dict[str, Site] = {}
        self.applications = dict(builtin_profiles().applications)
        self.host = Host()
        self.default_application: str | None = None
        self.watcher: Watcher | None = None
        self._running: Any = None
        (directory / "state").mkdir(mode=0o700)
        self.until = until
        self.notices = FakeVisualiser.notices
        patch.setattr(watcher_module, "Visualiser", FakeVisualiser)

    def site(self, name: str, *, make: bool = True, **fields: Any) -> Path:  # noqa: ANN401 - the model's fields
        """Add a site and make its rundir."""
        rundir = self.directory / name
        fields = {"watch_dir": str(rundir), "runner_user": ME, "applications": ALL, **fields}
        self.sites[name] = Site(name=name, **fields)
        if make:
            rundir.mkdir()
        return rundir

    @property
    def config(self) -> Config:
        return Config(
            sites=dict(self.sites),
            applications=dict(self.applications),
            default_application=self.default_application,
            host=self.host,
        )

    @property
    def options(self) -> WatchOptions:
        return WatchOptions(
            sites_config=self.directory / "sites.yaml",
            applications_config=None,
            priv_exec_socket=self.socket,
            control_socket=self.directory / "control.sock",
            state_dir=self.directory / "state",
            base_log=None,
            log_format="text",
            max_running=self.max_running,
            max_queued=self.max_queued,
            absent_patience=self.absent_patience,
            on_failure=self.on_failure,
            metrics=self.metrics,
            http=self.http,
            job_completions_log=self.directory / "completions.log",
            debug=False,
        )

    def start(self, *, wait: bool = True) -> Watcher:
        """Start a watcher and, unless told otherwise, wait until it is ready."""
        log = structlog.wrap_logger(
            structlog.PrintLogger(),
            processors=[self.capture],
            wrapper_class=structlog.make_filtering_bound_logger(0),
        )
        config = self.config
        seen = len(self.events("ready"))

        async def make() -> Watcher:
            return Watcher(self.options, config, log=log, notifier=Notifier({}), timing=self.timing)

        watcher = asyncio.run_coroutine_threadsafe(make(), self.loop).result(DEADLINE)
        self.watcher = watcher
        self._running = asyncio.run_coroutine_threadsafe(watcher.run(), self.loop)
        if wait:
            self.until(lambda: len(self.events("ready")) > seen or self._running.done(), "ready")
            if self._running.done():
                self._running.result()
        return watcher

    def configure(self) -> None:
        """Have the next reload find the sites and applications as they are here now."""
        config = self.config
        self.patch.setattr(reload, "load", lambda *_: config)

    def stop(self) -> None:
        if self.watcher is not None:
            self.loop.call_soon_threadsafe(self.watcher.stop)
            self._running.result(DEADLINE)
            self.watcher = None

    @property
    def sites_of_watcher(self) -> list[SiteWatch]:
        assert self.watcher is not None
        return list(self.watcher.sites)

    def hold_up(self, owner: type, name: str) -> threading.Event:
        """Make a method wait, on its lane, until the returned event is set."""
        release = threading.Event()
        real = getattr(owner, name)

        def waits(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
            assert release.wait(DEADLINE)
            return real(*args, **kwargs)

        self.patch.setattr(owner, name, waits)
        return release

    def on_loop(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - any function's result
        """Call a function on the watcher's loop and return its result."""

        async def call() -> Any:  # noqa: ANN401
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(DEADLINE)

    def events(self, event: str, **fields: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any log fields
        """Return the log's lines of one event that have these fields."""
        return [
            dict(entry)
            for entry in tuple(self.capture.entries)
            if entry["event"] == event and all(entry.get(key) == value for key, value in fields.items())
        ]

    def drop(self, rundir: Path, name: str, text: str | None = None, *, script: str = "Base.py", n: int = 1) -> Path:
        """Put a request into a rundir the way a careful client does: written beside it, then renamed."""
        if text is None:
            text = request(script=script, n=n)
        with tempfile.NamedTemporaryFile("w", dir=rundir, prefix="tmp", delete=False) as file:
            file.write(text)
        path = rundir / name
        Path(file.name).rename(path)
        return path

    def states(self) -> dict[str, str]:
        """Return the state of each job in the ledger by its request's name."""
        import sqlite3  # noqa: PLC0415

        database = sqlite3.connect(f"file:{self.directory}/state/ledger.db?mode=ro", uri=True)
        try:
            return dict(database.execute("SELECT request, state FROM jobs"))
        finally:
            database.close()


def request(*, home: str = "/home/sg123", n: int = 1, script: str = "Base.py", args: str = "--verbose") -> str:
    mission = f"{home}/mission{n}"
    return f"{home} {mission} {mission}/baselog.log {script} {args}\n"


@contextmanager
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., None]:
    return until


@pytest.fixture
def fake_helper() -> Iterator[FakeHelper]:
    """A helper alone, not started, for a watcher in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="runner-test-") as directory, loop_thread() as loop:
        Path(directory).chmod(0o755)
        made = FakeHelper(loop, Path(directory) / "helper.sock")
        yield made
        made.kill()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the bench is."""
    return tmp_path


@pytest.fixture
def bench(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench whose helper runs; what a test starts is stopped."""
    with loop_thread() as loop:
        made = Bench(directory, loop, monkeypatch)
        made.helper.start()
        yield made
        made.stop()
        made.helper.kill()


@pytest.fixture
def run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command against the bench's watcher; return status, stdout and stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        status = cli.main([words[0], "--control-socket", str(bench.options.control_socket), *words[1:]])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
