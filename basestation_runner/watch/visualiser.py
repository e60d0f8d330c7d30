"""Tells the basestation's visualiser what becomes of jobs: ZeroMQ notices to whoever listens on this host.

Notices are for the eyes only: whatever listeners do, and whatever others plant among their sockets, costs notices and
never the watcher. `notify` only hands over; a thread, started with the first notice, does all that touches the disk or
ZeroMQ, and pyzmq (the extra `vis`) is imported there once there is a socket to send to.
"""

from __future__ import annotations

import json
import os
import queue
import random
import re
import stat
import threading
import time
from contextlib import suppress
from fnmatch import translate
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import structlog
from attrs import frozen

from basestation_runner import runfile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from basestation_runner.watch.push import Identity, Link, Links

DIRECTORY: Final = Path("/tmp")  # noqa: S108 - where the visualiser makes its sockets
PATTERN: Final = "sanic-*-notify.ipc"

MOST_WAITING: Final = 1000
"""Notices that wait for the thread; more are dropped."""
MOST_UUIDS: Final = 200
"""Ids that one notice lists: a queue of thousands must not make every notice of it huge."""
MOST_LISTENERS: Final = 16
MOST_ENTRIES: Final = 20_000
"""Entries of the directory that one search looks at."""

_CONNECT_SECONDS: Final = 0.2
_SEARCH_SHARE: Final = 0.1  # the part of the time that searches may take
_CLOSE_SECONDS: Final = 1.0

log = structlog.get_logger()


class Visualiser:
    """Sends notices. It never raises and never waits for anybody, but for a moment in `close`."""

    def __init__(self, directory: Path = DIRECTORY, pattern: str = PATTERN) -> None:
        """Send to the sockets in `directory` whose names match `pattern`, as they come and go."""
        self._audience: Final = _Audience(directory, pattern)
        self._waiting: Final[queue.Queue[_Notice | None]] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None

    @property
    def is_heard(self) -> bool:
        """Whether a notice may reach anybody: somebody listens, or it is time to look for listeners."""
        return self._audience.may_listen

    def notify(  # noqa: PLR0913 - what a notice says
        self,
        action: Literal["queued", "start", "complete"],
        *,
        site: str,
        home: str,
        mission_dir: str,
        script: str,
        job_id: str,
        uuids: Iterable[str],
        returncode: int | None = None,
    ) -> None:
        """Send a notice about a job to all who listen, soon.

        `mission_dir` is the host's path, `uuids` the ids of what is queued and running in the job's queue; only the
        first ones are looked at, and the job itself counts as one although it may just have ended. `returncode` is said
        on completion only; None if it is not known.
        """
        if self._audience.is_hopeless:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="visualiser", daemon=True)
            self._thread.start()
        listed = list(islice(uuids, MOST_UUIDS))
        if job_id not in listed:
            listed.append(job_id)
        content: dict[str, object] = {
            "glider": int(runfile.glider(home)),
            "queue_id": f"{site}||{mission_dir}||{script}",
            "time": time.time(),
            "uuids": listed,
            "action": action,
            "target": job_id,
            **({"returncode": returncode} if action == "complete" else {}),
        }
        with suppress(queue.Full):
            self._waiting.put_nowait(_Notice(f"{runfile.glider(home)}-proc-queue", content))

    def close(self) -> None:
        """Send what still waits, as far as a second allows, and end."""
        if self._thread is None or not self._thread.is_alive():
            return
        deadline = time.monotonic() + _CLOSE_SECONDS
        with suppress(queue.Full):
            self._waiting.put(None, timeout=_CLOSE_SECONDS)
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        try:
            while not self._audience.is_hopeless and (notice := self._waiting.get()) is not None:
                self._audience.send(notice)
        except Exception as error:  # noqa: BLE001 - the end of a thread: the watcher goes on without notices
            self._audience.give_up(f"{type(error).__name__}: {error}")
        finally:
            self._audience.close()


@frozen
class _Notice:
    """One notice; the thread writes its content out."""

    topic: str
    content: dict[str, object]

    def parts(self) -> Sequence[bytes]:
        return self.topic.encode(), json.dumps(self.content).encode()


class _Audience:
    """Those who listen at present. Used by the thread only, but for `is_hopeless` and `may_listen`."""

    def __init__(self, directory: Path, pattern: str) -> None:
        self.is_hopeless = False
        self._directory = directory
        self._is_wanted = re.compile(translate(pattern)).match
        self._links: Links | None = None
        self._known: dict[Identity, Link] = {}
        self._next_search = 0.0
        self._has_said_none = False

    @property
    def may_listen(self) -> bool:
        """Whether there are listeners, or it is time to look for some."""
        return not self.is_hopeless and (bool(self._known) or time.monotonic() >= self._next_search)

    def send(self, notice: _Notice) -> None:
        """Send a notice to each listener that takes it at once."""
        began = time.monotonic()
        if began >= self._next_search:
            self._search()
            ended = time.monotonic()
            self._next_search = ended + (ended - began) / _SEARCH_SHARE
        listening = [link for link in self._known.values() if link.takes_more]
        parts = notice.parts() if listening else ()
        for link in listening:
            link.send(parts)

    def give_up(self, reason: str) -> None:
        """Send nothing any more, and say why."""
        self.is_hopeless = True
        log.info("visualiser notices are not sent", reason=reason)

    def close(self) -> None:
        for link in self._known.values():
            link.close()
        self._known.clear()
        if self._links is not None:
            self._links.close()

    def _search(self) -> None:
        """Find the sockets that there are now, and connect to new ones."""
        found = dict(self._sockets())
        for identity in self._known.keys() - found.keys():
            self._known.pop(identity).close()
        if not found and not self._has_said_none:
            self._has_said_none = True
            log.info("no visualiser listens", directory=str(self._directory))
        if found.keys() <= self._known.keys() or (links := self._zeromq()) is None:
            return
        if len(found) > MOST_LISTENERS:  # who listens keeps the place; among the others everybody gets a chance
            for identity in [identity for identity, link in self._known.items() if not link.takes_more]:
                self._known.pop(identity).close()
        new = list(found.keys() - self._known.keys())
        random.shuffle(new)
        made: list[Link] = []
        for identity in new:
            if len(self._known) == MOST_LISTENERS:
                break
            if link := links.connect(found[identity], identity):
                self._known[identity] = link
                made.append(link)
        links.await_ready(made, _CONNECT_SECONDS)

    def _zeromq(self) -> Links | None:
        if self._links is None:
            try:
                from basestation_runner.watch.push import Links  # noqa: PLC0415 - needs pyzmq, and costs time
            except ImportError as error:
                self.give_up(f"{error}: the extra vis is not installed")
            else:
                self._links = Links()
        return self._links

    def _sockets(self) -> Iterator[tuple[Identity, bytes]]:
        """Yield the wanted sockets. Whose they are is not asked: the visualiser runs as whoever started it.

        What a notice says, numbers of gliders and names of directories, is not kept from the host's users.
        """
        try:
            entries = os.scandir(self._directory)
        except OSError:
            return
        with entries:
            for entry in filter(lambda entry: self._is_wanted(entry.name), islice(entries, MOST_ENTRIES)):
                with suppress(OSError):  # gone again
                    facts = entry.stat(follow_symlinks=False)
                    if stat.S_ISSOCK(facts.st_mode):
                        yield (facts.st_dev, facts.st_ino), os.fsencode(entry.path)
