"""A client of the helper that speaks its protocol as any account, and orders jobs of an installation's sites."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from basestation_runner import nss, protocol
from basestation_runner.config.load import load_files
from basestation_runner.sandbox.installation import WATCHER
from basestation_runner.sandbox.program import write_launcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon

DEADLINE: Final = 20.0
"""How long anything is waited for, in seconds; nothing that works takes a noticeable part of it."""

PYTHON_DOES: Final = "import sys\nexec(sys.argv[1])\n"
SHELL_DOES: Final = 'eval "$1"\n'
_PROFILES: Final = """\
applications:
  - name: do
    scripts: [do.py, do.sh]
"""
_APPLICATION_OF: Final = {
    "Base.py": "base",
    "BaseLogin.py": "base-login",
    "GliderEarlyGPS.py": "early-gps",
    "do.py": "do",
    "do.sh": "do",
}
_OUTCOMES: Final = ("ended", "lost", "refused", "temporary", "never_started")

Message = dict[str, Any]


def parent_of(pid: int) -> int:
    """Return a process's parent: of a job, its keeper."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def acting_as(account: Account | None) -> Iterator[None]:
    """Have an account's effective ids and groups for a moment, as the file system and a socket's peer see them."""
    if account is None:
        yield
        return
    own_groups = os.getgroups()
    os.setgroups(sorted(nss.groups_of(account)))
    os.setegid(account.gid)
    os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(own_groups)


class Client:
    """One connection to a helper; without an account, as the caller."""

    def __init__(self, path: Path, account: Account | None = None) -> None:
        self._link: Final = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._decoder: Final = protocol.FrameDecoder()
        self._received: Final[list[Message]] = []
        self._link.settimeout(DEADLINE)
        try:
            with acting_as(account):
                self._link.connect(str(path))
        except OSError:
            self._link.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._link.close()

    def send(self, message: Mapping[str, Any]) -> None:
        self.send_bytes(protocol.encode(message))

    def send_bytes(self, data: bytes) -> None:
        self._link.sendall(data)

    def send_until_full(self, data: bytes) -> int:
        """Send as much as the helper takes, until it has taken nothing for a while; return how much that was."""
        sent = 0
        self._link.settimeout(0.5)
        with suppress(TimeoutError):
            while sent < len(data):
                sent += self._link.send(data[sent:])
        return sent

    def next(self) -> Message:
        """Return the next message that nobody has taken. Raises EOFError when the helper has closed the connection."""
        while not self._received:
            self._receive(time.monotonic() + DEADLINE)
        return self._received.pop(0)

    def hello(self) -> Message:
        self.send({"request": "hello", "version": protocol.VERSION})
        return self._take(lambda message: message.get("reply") == "hello")

    def event(self, job_id: str, *events: str) -> Message:
        """Return the first untaken event of the job that is one of `events`, now or when it comes."""
        return self._take(lambda message: message.get("job_id") == job_id and message["event"] in events)

    def forget(self, job_id: str) -> None:
        """Drop the events of a job that nobody has taken."""
        self._received[:] = [message for message in self._received if message.get("job_id") != job_id]

    def wait_until_closed(self) -> None:
        """Wait until the helper closes the connection; what it still said can be taken."""
        deadline = time.monotonic() + DEADLINE
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                self._receive(deadline)

    def _take(self, is_wanted: Any) -> Message:  # noqa: ANN401 - a predicate on messages
        deadline = time.monotonic() + DEADLINE
        while True:
            for position, message in enumerate(self._received):
                if is_wanted(message):
                    return self._received.pop(position)
            self._receive(deadline)

    def _receive(self, deadline: float) -> None:
        self._link.settimeout(max(0.001, deadline - time.monotonic()))
        data = self._link.recv(1 << 16)
        if not data:
            raise EOFError
        self._received.extend(self._decoder.feed(data))


class Station:
    """An installation and its helper, from the watcher's place: orders jobs and hears how they went.

    Besides the stand-ins there are two scripts that do what their first argument says: do.py in Python, and do.sh for
    sites whose interpreter is /bin/sh.
    """

    def __init__(self, installation: Installation) -> None:
        self.installation: Final = installation
        self.daemon: Daemon
        self.client: Client
        self._cleanup: Final = contextlib.ExitStack()
        self._numbers: Final = itertools.count(1)
        self._probes: Final[set[str]] = set()  # orders of nothing, sent to see how far the log is
        installation.write(installation.scripts / "do.py", PYTHON_DOES)
        installation.write(installation.scripts / "do.sh", SHELL_DOES)
        installation.write(installation.applications_config, _PROFILES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def add_site(self, name: str, **options: Any) -> Site:  # noqa: ANN401 - as Installation.add_site
        """Make a site that may use every application, in a tree of its own name unless told otherwise."""
        return self.installation.add_site(name, options.pop("tree", name), **{"applications": "all", **options})

    def add_shell_site(self, name: str, **options: Any) -> Site:  # noqa: ANN401 - as Installation.add_site
        return self.add_site(name, python_version="/bin/sh", **options)

    def start(self, *arguments: str, **options: Any) -> Daemon:  # noqa: ANN401 - as Installation.start_helper
        """Start a helper and connect to it as the watcher."""
        self.daemon = self.installation.start_helper(*arguments, **options)
        self.client = self.connect(self.installation.accounts.user(WATCHER))
        return self.daemon

    def connect(self, account: Account | None = None) -> Client:
        return self.connect_at(self.installation.helper_socket, account)

    def connect_at(self, path: Path, account: Account | None = None) -> Client:
        return self._cleanup.enter_context(Client(path, account))

    def mission(self, site: Site, *, mode: int = 0o2770) -> Path:
        """Make a mission directory of the site's account, in a home that all the site's missions share."""
        home = self.home(site)
        return self.installation.make_directory(
            home / f"mission{next(self._numbers)}", site.account, site.group, mode=mode
        )

    def home(self, site: Site) -> Path:
        return self.installation.make_directory(site.homes / "sg001", site.account, site.group, mode=0o2770)

    def order(self, site: Site, mission: Path, script: str = "Base.py", /, *args: str, **changes: object) -> Message:
        """Return a dispatch as a watcher sends it; `changes` replace its fields."""
        config = load_files(self.installation.sites_config, self.installation.applications_config)
        return {
            "request": "dispatch",
            "job_id": str(uuid.uuid4()),
            "site": site.name,
            "digest": config.digest(site.name),
            "application": _APPLICATION_OF.get(script, "base"),
            "home": site.seen(mission.parent),
            "mission_dir": site.seen(mission),
            "log_file": site.seen(mission / "job.log"),
            "script": script,
            "args": list(args),
            "queue_length": 0,
            "additions": {},
            **changes,
        }

    def dispatch(self, order: Message) -> str:
        self.client.send(order)
        return str(order["job_id"])

    def outcome(self, order: Message) -> Message:
        """Send an order and return the event that says how it went; `started` is not one."""
        return self.client.event(self.dispatch(order), *_OUTCOMES)

    def start_job(self, order: Message) -> Message:
        """Send an order and return its `started` event."""
        event = self.client.event(self.dispatch(order), "started", *_OUTCOMES)
        assert event["event"] == "started", event
        return event

    def run(self, order: Message) -> Message:
        """Send an order whose job must run, and return its exit record."""
        event = self.outcome(order)
        assert event["event"] == "ended", event
        return dict(event["record"])

    def refusal(self, order: Message) -> str:
        """Send an order that must be refused for good, and return the reason."""
        event = self.outcome(order)
        assert event["event"] == "refused", event
        return str(event["reason"])

    def inquire(self, job_id: str) -> Message:
        """Ask for a job and return what is known by now, also that it runs; forget what was said about it before."""
        self.client.hello()
        self.client.forget(job_id)
        self.client.send({"request": "inquire", "job_ids": [job_id]})
        return self.client.event(job_id, "started", *_OUTCOMES)

    def settle(self, *job_ids: str) -> None:
        """Settle jobs and wait until that is done."""
        self.client.send({"request": "settled", "job_ids": list(job_ids)})
        self.client.hello()

    def report(self, site: Site, mission: Path | None = None, script: str = "Base.py", **changes: object) -> Message:
        """Run a stand-in script and return what it says that it was run as."""
        mission = mission or self.mission(site)
        order = self.order(site, mission, script, **changes)
        record = self.run(order)
        assert record["exit_code"] == 0, record["log_tail"]
        return dict(json.loads((mission / f"report-{script}-{order['job_id']}.json").read_text()))

    def answer(self, site: Site, code: str, *args: str, **changes: object) -> Any:  # noqa: ANN401 - JSON
        """Have a job do `code`, Python or shell as its site has it, and return what it prints: one JSON value."""
        return json.loads(self.output(site, code, *args, **changes))

    def output(self, site: Site, code: str, *args: str, **changes: object) -> str:
        """Have a job do `code` and return what it prints."""
        script = "do.sh" if site.entry["python_version"] == "/bin/sh" else "do.py"
        record = self.run(self.order(site, self.mission(site), script, code, *args, **changes))
        assert record["exit_code"] == 0, record
        return str(record["log_tail"])

    def warnings(self, event: str | None = None, **fields: object) -> list[Message]:
        """Return the warnings in the helper's log so far, those with this text and these fields."""
        self.catch_up()
        return [
            dict(line)
            for line in self.daemon.events
            if line.get("level") == "warning"
            and line.get("job_id") not in self._probes
            and line["event"] == (event or line["event"])
            and fields.items() <= line.items()
        ]

    def catch_up(self) -> None:
        """Wait until everything that the helper has logged so far can be seen here."""
        site = next(iter(self.installation.sites.values()))
        order = self.order(site, site.watch_dir, application="none") | {"job_id": uuid.uuid4().hex}
        self._probes.add(order["job_id"])
        self.refusal(order)
        self.daemon.wait_event(lambda line: line.get("job_id") == order["job_id"])


_NAME_SERVICE: Final = """\
import os
from basestation_runner import nss
from basestation_runner.privexec import keeper
keeper.LOOKUP_SECONDS = {seconds}
def account(name, look_up=nss.account):
    if os.path.exists("{directory}/" + name + ".fails"):
        raise nss.LookupFailedError("account " + repr(name) + ": Connection refused")
    if os.path.exists("{directory}/" + name + ".hangs"):
        os.open("{directory}/" + name + ".hangs", os.O_RDONLY)  # a FIFO: until somebody opens it to write
    return look_up(name)
nss.account = account
"""


class NameService:
    """A name service for a helper that hangs or fails for one account when told to."""

    def __init__(self, installation: Installation, *, seconds: int = 60) -> None:
        """Let the helper wait `seconds` for an answer; `command` starts one that asks this service."""
        self._directory: Final = installation.make_directory(installation.top / "names")
        prelude = _NAME_SERVICE.format(directory=self._directory, seconds=seconds)
        self.command: Final = [str(launcher(installation, prelude))]

    def hang(self, name: str) -> None:
        path = self._directory / f"{name}.hangs"
        os.mkfifo(path)
        path.chmod(0o644)

    def go_on(self, name: str) -> None:
        """Answer everybody who waits, and whoever asks later."""
        path = self._directory / f"{name}.hangs"
        descriptor = os.open(path, os.O_RDWR)
        path.unlink()
        os.close(descriptor)

    def fail(self, name: str) -> None:
        (self._directory / f"{name}.fails").touch()

    def recover(self, name: str) -> None:
        (self._directory / f"{name}.fails").unlink()


def launcher(installation: Installation, prelude: str) -> Path:
    """Make a program that runs Python code before it is `runner`."""
    lib = Path(installation.program.command[0]).with_name("lib")
    return write_launcher(installation.top / "launcher", installation.program.python, lib, prelude)


class Gate:
    """A FIFO at which jobs wait until they are let through, one line each; never waits itself."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        path.chmod(0o666)
        self.path: Final = path
        self._descriptor: Final = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def open(self, times: int = 1) -> None:
        os.write(self._descriptor, b"\n" * times)

    @property
    def in_shell(self) -> str:
        """What a shell job does to wait here."""
        return f"read -r _ < {self.path}"
