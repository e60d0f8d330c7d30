"""What a daemon tells systemd: ready, alive, what it does. A no-op when systemd did not start it.
Standard library only. Must never block, and must not leave systemd's variables for jobs to find.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from basestation_runner.errors import printable

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class Notifier:
    """systemd's notification socket (sd_notify(3)), taken out of the environment."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._address = _address(environ.pop("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog(environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", ""))
        self._unsent = ""  # the newest state, if systemd had no room for it

    @property
    def watchdog_interval(self) -> float | None:
        """Seconds between calls of `watchdog`, half of what systemd allows; None if it does not watch."""
        return self._watchdog

    def ready(self, status: str) -> None:
        """Given what the daemon does now, say that it has started."""
        self._change("READY=1", status)

    def stopping(self) -> None:
        """Say that the daemon is about to end."""
        self._change("STOPPING=1", "stopping")

    def status(self, text: str) -> None:
        """Given what the daemon does now, show it in `systemctl status`."""
        self._send(_status(text))

    def watchdog(self) -> None:
        """Say that the daemon is alive."""
        self._send("WATCHDOG=1")

    def _change(self, state: str, status: str) -> None:
        """Given a new state, send it, with a later message if need be: systemd waits for it."""
        self._unsent = ""
        if not self._send(f"{state}\n{_status(status)}"):
            self._unsent = state

    def _send(self, message: str) -> bool:
        """Given a message, send it, and return whether nothing more is to be done about it."""
        if not self._address:
            return True
        text = f"{self._unsent}\n{message}" if self._unsent else message
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(text.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._address)
        except OSError:  # no room now, or nobody listens
            return False
        self._unsent = ""
        return True


def _status(text: str) -> str:
    """Given a text, return its assignment: on one line, so that it cannot be another assignment too."""
    return f"STATUS={printable(text)}"


def _address(value: str) -> str:
    """Given NOTIFY_SOCKET, return the address to send to, or nothing."""
    if value.startswith("@"):
        return f"\0{value[1:]}"
    return value if value.startswith("/") else ""


def _watchdog(timeout: str, pid: str) -> float | None:
    """Given WATCHDOG_USEC and WATCHDOG_PID, return half of the timeout in seconds if it is meant for this process."""
    if not timeout.isdecimal() or pid not in {"", str(os.getpid())}:
        return None
    return int(timeout) / 2_000_000 or None
