"""A stand-in for the system manager: units whose processes really run, and programs by which others ask for them.

It is served by a thread of the test. `systemctl`, `usermod` and `gpasswd` are small scripts that hand their words over.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from basestation_runner.sandbox.process import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.installation import Site
    from basestation_runner.sandbox.process import Daemon

CLIENT = """#!/usr/bin/python3 -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({socket!r})
    asked.sendall(json.dumps([{name!r}, *sys.argv[1:]]).encode())
    asked.shutdown(socket.SHUT_WR)
    answer = b""
    while part := asked.recv(65536):
        answer += part
status, out, err = json.loads(answer)
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(status)
"""

STARTER = ThreadPoolExecutor(max_workers=1)
"""Daemons are told to end when the thread that started them does: this one stays."""


class Unit:
    """One service: what systemd would say of it, and how its process is started."""

    def __init__(
        self, name: str, text: str, shown: Mapping[str, str], start: Callable[[], Daemon], *, is_restarted: bool
    ) -> None:
        self.name = name
        self.text = text
        self.shown = shown
        self.start_process = start
        self.is_restarted = is_restarted
        self.is_enabled = False
        self.is_runtime = False
        self.is_wanted = False
        self.daemon: Daemon | None = None
        self.active_since = 0
        self.inactive_since = 0
        self.lock = threading.RLock()
        self.refuses_to_start = False

    @property
    def is_active(self) -> bool:
        return self.daemon is not None and self.daemon.returncode is None

    @property
    def file_state(self) -> str:
        if not self.is_enabled:
            return "disabled"
        return "enabled-runtime" if self.is_runtime else "enabled"

    def start(self) -> None:
        with self.lock:
            if self.is_active:
                return
            if self.refuses_to_start:
                raise ValueError("it is meant to fail")
            self.is_wanted = True
            self.daemon = STARTER.submit(self.start_process).result()
            self.daemon.wait_ready()
            self.active_since = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            threading.Thread(target=self._follow, args=(self.daemon,), daemon=True).start()

    def stop(self) -> None:
        """End the process and all that it has started, as KillMode=control-group does."""
        with self.lock:
            self.is_wanted = False
            daemon = self.daemon
            if daemon is None or daemon.returncode is not None:
                return
            left = descendants(daemon.pid) if "BaseRunner.py" in self.text else []
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            daemon.stop()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.inactive_since = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    def _follow(self, daemon: Daemon) -> None:
        while daemon.returncode is None:
            time.sleep(0.01)
        with self.lock:
            if self.is_wanted and self.is_restarted and self.daemon is daemon:
                with suppress(Exception):
                    self.start()

    def properties(self) -> dict[str, str]:
        active = self.is_active
        return {
            "Id": self.name,
            "LoadState": "loaded",
            "ActiveState": "active" if active else "inactive",
            "UnitFileState": self.file_state,
            "FragmentPath": f"/etc/systemd/system/{self.name}",
            "Type": "notify",
            "MainPID": str(self.daemon.pid if active and self.daemon else 0),
            "ControlGroup": "",
            "ActiveEnterTimestampMonotonic": str(self.active_since),
            "InactiveEnterTimestampMonotonic": str(self.inactive_since),
            "KillMode": "control-group",
            "NeedDaemonReload": "no",
            **self.shown,
        }


class Manager:
    """Units of one installation, and whoever changes groups. Use it as a context manager."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.units: dict[str, Unit] = {}
        self.calls: list[list[str]] = []
        self.fault = ""
        self.bin = installation.top / "bin"
        self.bin.mkdir()
        self._path = installation.top / "manager.sock"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self._path))
        self._listening.listen(16)
        for name in ("systemctl", "usermod", "gpasswd"):
            script = self.bin / name
            script.write_text(CLIENT.format(socket=str(self._path), name=name))
            script.chmod(0o755)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        for unit in self.units.values():
            unit.is_wanted = False
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def add(self, unit: Unit) -> Unit:
        self.units[unit.name] = unit
        return unit

    def add_daemons(self) -> None:
        """Have our two daemons as units."""
        makers = {
            "baserunner-exec.service": self.installation.start_helper,
            "baserunner-watch.service": self.installation.start_watcher,
        }
        for name, make in makers.items():
            self.add(Unit(name, "[Service]\n", {"ExecStart": exec_start(["/usr/bin/runner"])}, make, is_restarted=True))

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            asked = b""
            while part := connection.recv(65536):
                asked += part
            words = json.loads(asked)
            try:
                answer = [0, self._do(words[0], [word for word in words[1:] if word not in _QUIET]), ""]
            except Exception as error:  # noqa: BLE001 - whatever it is, the command fails with it
                answer = [1, "", f"{error}"]
            with suppress(BrokenPipeError):
                connection.sendall(json.dumps(answer).encode())

    def _do(self, program: str, words: list[str]) -> str:
        if program != "systemctl":
            return self._change_group(program, words)
        what, *rest = words
        name = rest[-1] if rest else ""
        match what:
            case "list-units" | "list-unit-files":
                return "".join(f"{name} loaded active running x\n" for name in self.units)
            case "show":
                wanted = rest[1].removeprefix("--property=").split(",")
                if name not in self.units:
                    return "LoadState=not-found\n"
                known = self.units[name].properties()
                return "".join(f"{key}={known.get(key, '')}\n" for key in wanted)
            case "cat":
                return f"# /etc/systemd/system/{name}\n{self.units[name].text}"
        self.calls.append(words)
        self._change(what, name, is_runtime="--runtime" in rest)
        return ""

    def _change(self, what: str, name: str, *, is_runtime: bool) -> None:
        if what in {"stop", "restart"}:
            self.units[name].stop()
        if what in {"start", "restart"}:
            self.units[name].start()
        if what in {"enable", "disable"}:
            self.units[name].is_enabled = what == "enable"
            self.units[name].is_runtime = is_runtime

    def _change_group(self, program: str, words: list[str]) -> str:
        self.calls.append([program, *words])
        if self.fault == f"{program} fails":
            raise ValueError("it is meant to fail")
        accounts = self.installation.accounts
        if program == "usermod":
            _, group, user = words
            accounts.join(user, group)
        else:
            _, user, group = words
            accounts.leave(user, group)
        return ""


_QUIET = {"--no-pager", "--no-ask-password", "--"}


def exec_start(argv: list[str]) -> str:
    return f"{{ path={argv[0]} ; argv[]={' '.join(argv)} ; ignore_errors=no ; start_time=[n/a] ; pid=0 }}"


def legacy_unit(manager: Manager, name: str, site: Site, program: Path, *options: str, **directives: str) -> Unit:
    """Make the unit of a legacy daemon that serves a site."""
    installation = manager.installation
    python = installation.program.python
    argv = [python, str(installation.scripts / "BaseRunner.py"), *options, str(site.watch_dir)]
    assert site.account is not None
    lines = [f"ExecStart={' '.join(argv)}", "User=%i", "Restart=always", "WatchdogSec=30", "Type=notify"]
    lines += [f"{key}={value}" for key, value in directives.items()]
    text = "\n".join(
        [
            "[Unit]",
            "Description=Legacy runner",
            "",
            "[Service]",
            *lines,
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )
    shown = {"ExecStart": exec_start(argv), "User": site.account.name}

    def start() -> Daemon:
        return installation.start("legacy", [python, "-IS", str(program), *argv[2:]], Identity(site.account))

    return manager.add(Unit(name, text, shown, start, is_restarted=True))


def descendants(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            found += [child, *descendants(child)]
    return found
