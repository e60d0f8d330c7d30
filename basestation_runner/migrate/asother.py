"""What is done in places that others than root can change: by a child that has become the account that may, for good.

A rundir's people decide what lies in it. Root looks at nothing there and writes nothing; nor does it in the watcher's
state directory.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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


@frozen
class Again:
    """Requests that were handed in again, and why others could not be, by name."""

    names: tuple[str, ...]
    failed: Mapping[str, str]


def hand_in_again(identity: Identity, watch_dir: str, since_ns: int) -> Again:
    """Have a legacy daemon notice requests that were there before it: it takes a file only when somebody closes it.

    Those are meant that came since then, the oldest first. To do this more than once changes nothing: what it has taken
    is not there any more. Raises RunnerError.
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
        # One that this account may not read, its legacy daemon does not take either.
        found = [each for each in sorted(_requests(rundir)) if os.access(each[1], os.R_OK, dir_fd=rundir)]
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
                    # It came when it was changed last here: one that is copied with its time looks older.
                    yield max(status.st_mtime_ns, status.st_ctime_ns), name


def _hand_in_again(watch_dir: str, since_ns: int) -> Again:
    os.umask(0o002)
    rundir = _opened(watch_dir)
    failed: dict[str, str] = {}
    try:
        hidden = [name for name in os.listdir(rundir) if _is_hidden(name)]  # noqa: PTH208 - the same
        for name in hidden:  # those that a kill has interrupted
            with _noted(name, failed):
                _write_again(rundir, name, name.removeprefix(_HIDDEN))
        waiting = [name for time_ns, name in sorted(_requests(rundir)) if time_ns >= since_ns]
        for name in waiting:
            with _noted(name, failed), suppress(FileNotFoundError):
                _close_again(rundir, name)
        return Again(tuple(name for name in waiting if name not in failed), failed)
    finally:
        os.close(rundir)


def _is_hidden(name: str) -> bool:
    """Tell whether a file is a request that is on its way to being handed in again."""
    return name.startswith(_HIDDEN) and inbox.is_request(name.removeprefix(_HIDDEN))


@contextmanager
def _noted(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Go on with the next file when one cannot be used, and note why: the site's people decide what lies there."""
    try:
        yield
    except OSError as error:
        failed[name] = error.strerror or str(error)


def _close_again(rundir: int, name: str) -> None:
    try:
        os.close(os.open(name, _WRITE, dir_fd=rundir))
    except PermissionError:
        if _content(rundir, name) is None:  # neither could the legacy daemon read it
            raise
        setaside.move(rundir, name, rundir, _HIDDEN + name)
        _write_again(rundir, _HIDDEN + name, name)


def _write_again(rundir: int, hidden: str, name: str) -> None:
    """Make a request anew from what it held. It is closed, whatever happens, after the old one is gone."""
    content = _content(rundir, hidden)
    if content is None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if _content(rundir, name) == content:  # a kill came between the two
        os.unlink(hidden, dir_fd=rundir)
        return
    try:
        new = os.open(name, _NEW, 0o664, dir_fd=rundir)
    except FileExistsError:  # another request has got the name meanwhile
        _write_again(rundir, hidden, f"again-{name}")
        return
    try:
        left = content
        while left:
            left = left[os.write(new, left) :]
        os.unlink(hidden, dir_fd=rundir)
    except OSError:
        os.unlink(name, dir_fd=rundir)
        raise
    finally:
        os.close(new)


def _content(rundir: int, name: str) -> bytes | None:
    """Return what a file holds; None if there is none that can be read, or it is too long for a request."""
    try:
        descriptor = os.open(name, _READ, dir_fd=rundir)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            return None
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
