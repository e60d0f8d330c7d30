"""The commands' end of the control socket: one connection, one question at a time. Blocking."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from basestation_runner import protocol
from basestation_runner.errors import RunnerError, TemporaryError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE: Final = 30.0
"""Seconds for an answer."""
_READ_BYTES: Final = 1 << 16

Facts = dict[str, Any]


class Client:
    """A watcher that can be asked. Use it as a context manager."""

    def __init__(self, path: Path, patience: float = PATIENCE) -> None:
        """Connect; an answer may take `patience` seconds.

        Raises TemporaryError when nobody listens there, RunnerError when we may not.
        """
        self._path = path
        self._decoder = protocol.FrameDecoder()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(patience)
        try:
            self._socket.connect(str(path))
        except PermissionError as error:
            self._socket.close()
            raise RunnerError("the watcher's control socket cannot be used", where=str(path)) from error
        except OSError as error:
            self._socket.close()
            raise TemporaryError(
                f"the watcher cannot be asked: {error.strerror or error}",
                where=str(path),
                hint="see that `runner watch` is running, and --control-socket",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: str, **fields: object) -> Facts:
        """Return the answer. Raises RunnerError with what the watcher says, or TemporaryError if that may pass."""
        with self._reporting():
            self._socket.sendall(protocol.encode({"request": request, **fields}))
            answer = self._receive()
        if answer.get("ok") is True:
            return answer
        error = TemporaryError if answer.get("kind") == "temporary" else RunnerError
        raise error(str(answer.get("error")))

    def all_sites(self) -> list[Facts]:
        """Return all sites that we may see, by name."""
        sites: list[Facts] = []
        has_more = True
        while has_more:
            answer = self.ask("sites", after=sites[-1]["site"] if sites else "")
            sites += answer["sites"]
            has_more = answer["more"]
        return sites

    def jobs(self, limit: int, **wanted: object) -> Iterator[Facts]:
        """Yield up to `limit` jobs, the newest first."""
        before = None
        while limit > 0:
            answer = self.ask("jobs", before=before, limit=limit, **wanted)
            yield from answer["jobs"]
            limit -= len(answer["jobs"])
            if not answer["more"]:
                return
            before = answer["jobs"][-1]["seq"]

    def _receive(self) -> Facts:
        while True:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError(None, "it closed the connection")
            messages = self._decoder.feed(data)
            if messages:
                return messages[0]

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise TemporaryError("the watcher does not answer", where=str(self._path)) from error
        except BrokenPipeError:  # it has refused us before it was asked: its word may have come all the same
            raise TemporaryError("the watcher closed the connection", where=str(self._path)) from None
        except (OSError, protocol.ProtocolError) as error:
            what = f"the watcher cannot be asked: {getattr(error, 'strerror', None) or error}"
            raise TemporaryError(what, where=str(self._path)) from error
