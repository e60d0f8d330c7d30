"""What a migration has begun and done, on disk before and after each step, so that the next call knows after a kill.

One file a site, JSON lines, in a directory that root alone can enter; its version is in the first line. A line that was
cut off counts as not written.
"""

import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from basestation_runner.errors import RunnerError

_SUFFIX: Final = ".jsonl"
_OVER: Final = ".undone"
_VERSION: Final = 1
_WHAT: Final = frozenset({"begun", "done", "undone"})

State = Literal["begun", "migrated", "going back", "undone"]
_STATES: Final[tuple[State, ...]] = ("begun", "migrated", "going back", "undone")


class Journal:
    """One site's migration. `facts` is what is known of it, `state` how far it has come as a whole."""

    def __init__(self, path: Path) -> None:
        """Read what is there; nothing is written. Raises RunnerError."""
        self.path: Final = path
        self.facts: Final[dict[str, Any]] = {}
        self.state: State = "begun"
        self._steps: Final[dict[str, str]] = {}
        self.exists = False
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunnerError(f"the journal cannot be read: {error.strerror}", where=str(path)) from error
        for number, line in enumerate(lines, 1):
            with suppress(ValueError):
                entry = json.loads(line)
                if not self._apply(entry):
                    what = f"line {number} of the journal is not understood"
                    raise RunnerError(what, where=str(path), hint="was it written by another version of this program?")
                self.exists = True

    @classmethod
    def of(cls, directory: Path, site: str) -> "Journal":
        """Return a site's journal. Raises RunnerError."""
        return cls(directory / f"{site}{_SUFFIX}")

    @classmethod
    def names(cls, directory: Path) -> list[str]:
        """Return each site that was migrated, or is about to be; none where we may not look."""
        if not os.access(directory, os.R_OK | os.X_OK):
            return []
        return sorted(path.name.removesuffix(_SUFFIX) for path in directory.glob(f"*{_SUFFIX}"))

    @property
    def remark(self) -> str:
        """What a person should know about how far it has come."""
        return {
            "migrated": "--rollback gives it back",
            "begun": "interrupted: the next call goes on",
            "going back": "interrupted: the next call goes on to undo it",
            "undone": "",
        }[self.state]

    @property
    def is_known(self) -> bool:
        """Whether a migration has begun, or is over."""
        return "site" in self.facts

    def is_done(self, step: str) -> bool:
        """Tell whether a step was done."""
        return self._steps.get(step) == "done"

    def was_begun(self, step: str) -> bool:
        """Tell whether a step may have been done, or a part of it, and was not undone."""
        return self._steps.get(step) in {"begun", "done"}

    def step(self, name: str, what: Literal["begun", "done", "undone"]) -> None:
        """Write down how far a step has come."""
        self._append({"step": name, "what": what, "at": time.time()})

    def note(self, **facts: Any) -> None:  # noqa: ANN401 - anything that JSON can hold
        """Write down what is to be known after a kill."""
        self._append({"facts": facts})

    def turn(self, state: State) -> None:
        """Write down how far the whole has come."""
        self._append({"state": state, "at": time.time()})

    def close(self) -> None:
        """It was all undone: keep the journal out of the way of another migration. Raises RunnerError."""
        try:
            self.path.rename(self.path.with_suffix(_OVER))
            self._sync()
        except OSError as error:
            raise RunnerError(f"the journal cannot be put aside: {error.strerror}", where=str(self.path)) from error

    def _apply(self, entry: Any) -> bool:  # noqa: ANN401 - whatever JSON can hold
        """Take in a line; tell whether it is one of ours."""
        match entry:
            case {"version": version}:
                return bool(version == _VERSION)
            case {"facts": dict(facts)}:
                self.facts.update(facts)
            case {"step": str(step), "what": str(what)} if what in _WHAT:
                self._steps[step] = what
            case {"state": state} if state in _STATES:
                self.state = state
            case _:
                return False
        return True

    def _append(self, entry: dict[str, Any]) -> None:
        """Write one line, whole, on disk when this returns. Raises RunnerError."""
        make_directory(self.path.parent)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        entries = [entry] if self.exists else [{"version": _VERSION}, entry]
        # A line may have been cut off: that one ends here.
        left = b"".join(b"\n" + json.dumps(each).encode() + b"\n" for each in entries)
        try:
            descriptor = os.open(self.path, flags, 0o600)
            try:
                while left:
                    left = left[os.write(descriptor, left) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if not self.exists:
                self._sync()
        except OSError as error:
            raise RunnerError(f"the journal cannot be written: {error.strerror}", where=str(self.path)) from error
        self.exists = True
        self._apply(entry)

    def _sync(self) -> None:
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def make_directory(path: Path) -> None:
    """Make the journals' directory, or see that nobody else can write there. Raises RunnerError."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise RunnerError(f"the journals' directory cannot be made: {error.strerror}", where=str(path)) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise RunnerError("the journals' directory is not root's alone", where=str(path), hint="chmod 0700, chown root")
