"""What the helper does with each request of its table: our own watcher's, and those of an existing BaseRunnerMulti.

The legacy watcher makes one exchange a connection. It takes "ok: false" as final and a missing exit code as success:
so what may pass closes without an answer, and a lost job answers a code that is not 0.
"""

import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from basestation_runner import __version__, protocol
from basestation_runner.config.model import Config, fingerprint
from basestation_runner.privexec import policy
from basestation_runner.privexec.jobs import Jobs
from basestation_runner.privexec.loop import Loop
from basestation_runner.privexec.order import Order
from basestation_runner.privexec.probe import Probes
from basestation_runner.privexec.reload import Answer
from basestation_runner.privexec.server import Connection

LOST_CODE: Final = 255
"""What a legacy watcher is told as the exit code of a job whose end is not known."""

_LEGACY_KEPT_SECONDS: Final = 3600.0
"""How long a job is remembered after a legacy watcher has been told its end; it cannot say that it has heard."""

Action = Callable[[Connection, protocol.Message], None]


class Requests:
    """The helper's table of actions, one for each request that protocol.py knows."""

    def __init__(  # noqa: PLR0913 - what the requests are about
        self,
        config: Config,
        jobs: Jobs,
        events: Loop,
        reload: Callable[[Answer | None], None],
        *,
        probes: Probes,
        missing: Mapping[str, str],
    ) -> None:
        """`reload` has the configuration read anew and calls back with how that went; `use` takes the new one.

        `missing` is what does not work on this host, with the reasons.
        """
        self.config = config
        self._missing = missing
        self._reload_config = reload
        self._probes = probes
        self._greeted: list[Connection] = []
        self._jobs = jobs
        self._loop = events
        self._told: set[str] = set()  # jobs whose end a legacy watcher has heard
        self._actions: Final[Mapping[str, Action]] = {
            "hello": self._hello,
            "dispatch": self._dispatch,
            "inquire": self._inquire,
            "cancel": self._cancel,
            "recall": self._recall,
            "reload": self._reload,
            "probe": self._probe,
            "settled": self._settled,
            "legacy dispatch": self._legacy_dispatch,
            "legacy status": self._legacy_status,
        }

    def take(self, connection: Connection, message: protocol.Message) -> None:
        """Do what the message asks for. Raises ProtocolError for anything that is not in the table."""
        self._actions[protocol.check_request(message)](connection, message)

    def _hello(self, connection: Connection, _: protocol.Message) -> None:
        answer = {"reply": "hello", "ok": True, "version": protocol.VERSION, "pid": os.getpid(), "program": __version__}
        answer["config"] = self._fingerprint
        answer["missing"] = dict(self._missing)
        connection.send(answer)
        self._greeted = [*(known for known in self._greeted if known.is_open), connection]

    def use(self, config: Config) -> None:
        """Go by another configuration, and tell every watcher so: what it was refused for may be gone."""
        self.config = config
        for connection in self._greeted:
            connection.send({"event": "configuration", "config": self._fingerprint})

    @property
    def _fingerprint(self) -> str:
        return fingerprint({name: self.config.digest(name) for name in self.config.sites})

    def _dispatch(self, connection: Connection, message: protocol.Message) -> None:
        def order() -> Order:
            return policy.order(self.config, message, self._missing)

        self._jobs.dispatch(message["job_id"], order, connection.send, connection.peer_uid)

    def _inquire(self, connection: Connection, message: protocol.Message) -> None:
        self._jobs.inquire(message["job_ids"], connection.send)

    def _cancel(self, _: Connection, message: protocol.Message) -> None:
        self._jobs.cancel(message["job_ids"])

    def _recall(self, connection: Connection, _: protocol.Message) -> None:
        self._jobs.recall(connection.send)

    def _reload(self, connection: Connection, _: protocol.Message) -> None:
        self._reload_config(connection.send)

    def _probe(self, connection: Connection, message: protocol.Message) -> None:
        name = message["site"]
        if name in self.config.sites:
            self._probes.ask(self.config.sites[name], connection.send, connection.peer_uid)
        else:
            reason = f"site {name} is not configured: `runner reload` has the helper read its files anew"
            connection.send({"event": "probed", "site": name, "outcome": "refused", "reason": reason})

    def _settled(self, _: Connection, message: protocol.Message) -> None:
        self._jobs.settle(message["job_ids"])

    def _legacy_dispatch(self, connection: Connection, message: protocol.Message) -> None:
        job_id = message.get("job_id") or str(uuid.uuid4())

        def order() -> Order:
            return policy.legacy_order(self.config, message, job_id, self._missing)

        def answer(event: protocol.Message) -> None:
            match event["event"]:
                case "refused":
                    connection.send({"ok": False, "error": event["reason"]})
                case "lost":  # ordered before too; never again, and its pid may be another process's by now
                    connection.send({"ok": False, "error": f"its end is not known: {event['reason']}"})
                case "started":
                    connection.send({"ok": True, "pid": event["pid"]})
                case "ended" if event["record"].get("not_run"):
                    connection.send({"ok": False, "error": event["record"]["not_run"]})
                case "ended":  # it was ordered before under this id
                    connection.send({"ok": True, "pid": event["record"]["pid"]})
            connection.close()

        self._jobs.dispatch(job_id, order, answer, connection.peer_uid)

    def _legacy_status(self, connection: Connection, message: protocol.Message) -> None:
        job = self._jobs.with_pid(message["pid"])
        if job is not None and job.state in {"starting", "running"}:
            connection.send({"ok": True, "done": False, "returncode": None})
        else:
            connection.send({"ok": True, "done": True, "returncode": _returncode(job.record if job else None)})
            if job is not None:
                self._settle_later(job.job_id)
        connection.close()

    def _settle_later(self, job_id: str) -> None:
        def settle() -> None:
            self._told.discard(job_id)
            self._jobs.settle([job_id])

        if job_id not in self._told:
            self._told.add(job_id)
            self._loop.call_later(_LEGACY_KEPT_SECONDS, settle)


def _returncode(record: Mapping[str, Any] | None) -> int:
    """Return an exit record's code as a legacy watcher expects it: of a signal its negative number."""
    if record is None or record.get("not_run"):
        return LOST_CODE
    return int(record["exit_code"] if record["signal"] is None else -record["signal"])
