"""What is done in places that others than root can change: by a child that has become the account that may, for good.

A rundir's people decide what lies in it. Root looks at nothing there and writes nothing; nor does it in the watcher's
state directory.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from attrs import frozen

from basestation_runner import nss, processes
from basestation_runner.config.probes import PATIENCE, Unseen, ask
from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.paths import PathRefusedError, open_trusted_directory
from basestation_runner.watch import inbox, lockfile, setaside, takeover

T = TypeVar("T")

_HIDDEN: Final = ".again-"
_MOST_BYTES: Final = 1 << 17
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@frozen
class Identity:
    """Whom a child becomes. None stands for whoever calls, who is not root."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    @classmethod
    def of(cls, name: str) -> "Identity":
        """Return the identity of an account. Raises RunnerError when there is none."""
        try:
            account = nss.account(name)
            if account is None:
                raise RunnerError(f"there is no account {name}")
            return cls(account.uid, account.gid, tuple(sorted(nss.groups_of(account))))
        except nss.LookupFailedError as error:
            raise TemporaryError(f"the name service does not answer: {error}") from error


@frozen
class Rundir:
    """What a rundir looks like: its requests with their times, when names in it last changed, who has its lock."""

    requests: tuple[tuple[int, str], ...]
    changed_ns: int
    holder: int | None


def look(identity: Identity, watch_dir: str) -> Rundir:
    """Return what a site's account sees in its rundir. Raises RunnerError."""
    return _as(identity, watch_dir, partial(_look, watch_dir))


def hand_in_again(identity: Identity, watch_dir: str, since_ns: int) -> tuple[str, ...]:
    """Have a legacy daemon notice requests that were there before it: it takes a file only when somebody closes it.

    Those are meant that were written since then, the oldest first. To do this more than once changes nothing: what it
    has taken is not there any more. Returns the names. Raises RunnerError.
    """
    return _as(identity, watch_dir, partial(_hand_in_again, watch_dir, since_ns))


def tell_of_takeover(identity: Identity, state_dir: Path, site: str, stopped_at: float | None) -> None:
    """Leave word for the watcher of when a site's legacy daemon was stopped, or take it back. Raises RunnerError."""
    _as(identity, str(state_dir), partial(takeover.write, state_dir, site, stopped_at))


def _as(identity: Identity, where: str, work: Callable[[], T]) -> T:
    answer: T | Unseen | RunnerError
    (answer,) = ask([partial(_become, identity, work)], patience=PATIENCE)
    match answer:
        case Unseen(why=why):
            raise TemporaryError(why, where=where)
        case RunnerError():
            raise answer
    return answer


def _become(identity: Identity, work: Callable[[], T]) -> T | RunnerError:
    """Do some work as another account; there is no way back, and this process ends with it."""
    try:
        if os.geteuid() == 0:
            processes.become(identity.uid, identity.gid, identity.groups)
        return work()
    except PathRefusedError as error:
        return RunnerError(str(error))
    except OSError as error:
        return RunnerError(f"cannot be used: {error.strerror}", where=str(error.filename or ""))


def _look(watch_dir: str) -> Rundir:
    rundir = _opened(watch_dir)
    try:
        found = sorted(_requests(rundir))
        return Rundir(tuple(found), os.fstat(rundir).st_mtime_ns, lockfile.holder(rundir))
    finally:
        os.close(rundir)


def _opened(watch_dir: str) -> int:
    found = open_trusted_directory(watch_dir)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found)
    finally:
        os.close(found)


def _requests(rundir: int) -> Iterator[tuple[int, str]]:
    for name in os.listdir(rundir):
        if inbox.is_request(name):
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=rundir, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):  # a legacy daemon leaves all else alone
                    yield status.st_mtime_ns, name


def _hand_in_again(watch_dir: str, since_ns: int) -> tuple[str, ...]:
    os.umask(0o002)
    rundir = _opened(watch_dir)
    try:
        for hidden in [name for name in os.listdir(rundir) if name.startswith(_HIDDEN)]:  # noqa: PTH208 - the same
            _write_again(rundir, hidden, hidden.removeprefix(_HIDDEN))  # one that a kill has interrupted
        waiting = [name for time_ns, name in sorted(_requests(rundir)) if time_ns >= since_ns]
        for name in waiting:
            with suppress(FileNotFoundError):
                _close_again(rundir, name)
        return tuple(waiting)
    finally:
        os.close(rundir)


def _close_again(rundir: int, name: str) -> None:
    try:
        os.close(os.open(name, _WRITE, dir_fd=rundir))
    except PermissionError:
        setaside.move(rundir, name, rundir, _HIDDEN + name)
        _write_again(rundir, _HIDDEN + name, name)


def _write_again(rundir: int, hidden: str, name: str) -> None:
    """Make a request anew from what it held. It is closed, whatever happens, after the old one is gone."""
    content = _content(rundir, hidden)
    if content is None:
        return
    if _content(rundir, name) == content:  # a kill came between the two
        os.unlink(hidden, dir_fd=rundir)
        return
    try:
        new = os.open(name, _NEW, 0o664, dir_fd=rundir)
    except FileExistsError:  # another request has got the name meanwhile
        _write_again(rundir, hidden, f"again-{name}")
        return
    try:
        os.write(new, content)
        os.unlink(hidden, dir_fd=rundir)
    finally:
        os.close(new)


def _content(rundir: int, name: str) -> bytes | None:
    """Return what a file holds; None if there is none that can be read."""
    try:
        descriptor = os.open(name, _READ, dir_fd=rundir)
    except OSError:
        return None
    try:
        return os.read(descriptor, _MOST_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)
