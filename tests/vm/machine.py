"""A machine that boots the disk of `image.py` under User Mode Linux, and runs scripts on it as root.

What it writes goes to a file of its own and is gone with it; `reboot` keeps it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.vm import image

_BOOT_PATIENCE: Final = 240.0
_OFF_PATIENCE: Final = 120.0
_MEMORY: Final = "1024M"
_BLOCK: Final = 1 << 16
_CONSOLE_SHOWN: Final = 4000
# A process namespace of its own: to kill the main process alone would leave those that run the guest's programs.
_JAIL: Final = (*("setpriv", "--pdeathsig", "KILL"), *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))


@dataclass(frozen=True)
class Done:
    """What became of a script."""

    status: int
    stdout: str
    stderr: str


class Machine:
    """One machine, from its first boot to `close`. Use it as a context manager."""

    def __init__(self, suite: str, files: Path) -> None:
        """Boot a release of Debian, with what is in the folder `files` in /in."""
        self._disk = image.disk(suite)
        self._received: bytes
        self._work = Path(tempfile.mkdtemp(prefix="machine.", dir=image.CACHE))
        subprocess.run(["tar", "-C", files, "--owner=0", "--group=0", "-cf", self._work / "in.tar", "."], check=True)
        self._boot()
        self.check("mkdir /in; tar -C /in -xf /dev/ubdb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, script: str, patience: float = 300.0) -> Done:
        """Run a bash script as root. Raises TimeoutError."""
        data = script.encode()
        self._link.sendall(b"%8d" % len(data) + data)
        deadline = time.monotonic() + patience
        status, out, err = map(int, self._line(deadline).split())
        while len(self._received) < out + err:
            self._receive(deadline)
        text, self._received = self._received[: out + err], self._received[out + err :]
        return Done(status, text[:out].decode(errors="replace"), text[out:].decode(errors="replace"))

    def check(self, script: str, patience: float = 300.0) -> str:
        """Run a bash script that must not fail, and return what it wrote to stdout."""
        done = self.run(script, patience)
        assert done.status == 0, f"status {done.status} of:\n{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def reboot(self) -> None:
        """Shut down in order, and boot again from the same disk."""
        self._send_off("systemctl poweroff")
        self._boot()

    def power_cycle(self) -> None:
        """Take the power away, and boot again from what the disk holds."""
        self._kill()
        self._boot()

    def close(self) -> None:
        """Take the power away, for good."""
        self._kill()
        shutil.rmtree(self._work)

    def _boot(self) -> None:
        work, console = self._work, self._work / "console"
        self._link, end = socket.socketpair()
        self._received = b""  # and not yet looked at
        command = [
            *_JAIL,
            *("linux.uml", f"mem={_MEMORY}", f"uml_dir={work}/uml", "umid=machine", "quiet"),
            *("root=/dev/ubda", "rw", "rootfstype=ext4", f"ubd0={work}/cow,{self._disk}", f"ubd1r={work}/in.tar"),
            *("con=null", "con0=null,fd:1", f"ssl0=fd:{end.fileno()}"),
        ]
        environment = {**os.environ, "TMPDIR": "/dev/shm", "LD_PRELOAD": str(image.shim())}  # noqa: S108 - its memory
        with end, console.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[end.fileno()],
                start_new_session=True,
                env=environment,
            )
        deadline = time.monotonic() + _BOOT_PATIENCE
        while self._line(deadline) != b"READY":
            pass

    def _send_off(self, command: str) -> None:
        data = command.encode()
        self._link.sendall(b"%8d" % len(data) + data)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_OFF_PATIENCE)
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._link.close()

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._received:
            self._receive(deadline)
        line, _, self._received = self._received.partition(b"\n")
        return line.strip()

    def _receive(self, deadline: float) -> None:
        ready, _, _ = select.select([self._link], [], [], max(0.0, deadline - time.monotonic()))
        data = self._link.recv(_BLOCK) if ready else b""
        if not data:
            console = (self._work / "console").read_text(errors="replace")[-_CONSOLE_SHOWN:]
            raise TimeoutError(f"the machine does not answer; its console:\n{console}")
        self._received += data
