"""What lies in one site's rundir: listed, read, judged, acknowledged. Blocking calls, for the site's lane only.

Decides nothing about jobs. Everything is opened relative to the rundir's descriptor, without following a link and
without waiting for a FIFO.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from attrs import frozen

from basestation_runner import nss, runfile, syscalls
from basestation_runner.watch import setaside
from basestation_runner.watch.rundir import says

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from basestation_runner.config.model import Application
    from basestation_runner.watch.ledger import Intake
    from basestation_runner.watch.rundir import GetOn, Place, Rundir

REJECTED: Final = "rejected"
STALE: Final = "stale"
ARCHIVE: Final = "archive"

_PRIVATE: Final = ".taken-"
_RETURNED: Final = "returned-"
_MEMBER_FOR: Final = 60.0  # seconds that "is a member of the site's group" is believed
_ABSENT_FOR: Final = 10.0  # seconds that "there is no such account" is not believed
_TAGGED: Final = re.compile(r".+\.[0-9a-f]{16}", re.DOTALL)
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)
# A file for which opening or reading fails like this is faulty itself; any other error is the rundir's or the host's.
_FAULTS_OF_A_FILE: Final = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV})


@frozen
class Stamp:
    """What a directory tells of a file without opening it; it changes whenever the file does."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Return the stamp of a file's status."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)

    @property
    def came_ns(self) -> int:
        """When it came, or was changed last: one that is copied with its time (cp -p) looks older than it is here."""
        return max(self.mtime_ns, self.ctime_ns)

    def is_same_file(self, other: Stamp) -> bool:
        """Tell whether this is `other` with the same content, perhaps under another name (a rename changes ctime)."""
        return (self.inode, self.size, self.mtime_ns, self.mode) == (
            other.inode,
            other.size,
            other.mtime_ns,
            other.mode,
        )


@frozen
class Scan:
    """What a rundir holds: requests by age, and the names of stale ones that were set aside, or could not be."""

    seen: dict[str, Stamp]
    stale: tuple[str, ...]
    stale_left: tuple[str, ...]


@frozen
class Taken:
    """A request that may become a job."""

    name: str
    stamp: Stamp
    identity: bytes
    submitter: int
    request: runfile.Request
    application: Application


@frozen
class Rejected:
    """A file that was no request, or one that must not run; `now` is where it lies, None if it could not be moved."""

    name: str
    reason: str
    now: str | None


@frozen
class Unsettled:
    """A file that is perhaps being written: to be looked at again when it does not change any more."""

    name: str
    stamp: Stamp


@frozen
class Waiting:
    """A file that cannot be judged now: to be tried again."""

    name: str
    reason: str


Outcome = Taken | Rejected | Unsettled | Waiting


@frozen
class Acknowledged:
    """The job's request is no longer in the rundir; `now` is where it is kept, if it is."""

    job_id: str
    now: str | None = None


@frozen
class Left:
    """The job's request cannot be taken out of the rundir."""

    job_id: str
    reason: str


class _NotNowError(Exception):
    """A request cannot be judged now."""


class _NeverError(Exception):
    """A request must not run."""


@frozen
class _Content:
    """What a file held; `changed` if it was written to while it was read."""

    status: os.stat_result
    birth_ns: int | None
    data: bytes
    changed: bool

    @property
    def identity(self) -> bytes:
        """The same for two files only if they are the same request.

        Inode numbers are used again at once and a rename changes ctime: neither would do by itself.
        """
        facts = (self.status.st_ino, self.birth_ns, self.status.st_size, self.status.st_mtime_ns)
        return hashlib.sha256(repr(facts).encode() + b"\0" + self.data).digest()


def is_request(name: str) -> bool:
    """Tell whether a file of this name is a request, as a shell's `*.run` would."""
    return name.endswith(setaside.SUFFIX) and not name.startswith(".")


class Inbox:
    """What lies in one site's rundir. A task calls `get_on` whenever it gets on, with what it waits for next."""

    def __init__(self, rundir: Rundir, choose: Callable[[runfile.Request], Application]) -> None:
        """`choose` returns a request's application, or raises RequestError."""
        self._rundir = rundir
        self.choose = choose
        self._members: dict[int, float] = {}  # until when an owner is known to be a member
        self._absent: dict[int, float] = {}  # until when an owner may still come to be known
        self._left: dict[str, Stamp] = {}
        self._rejected: int | None = None

    # Listing

    def scan(
        self,
        get_on: GetOn,
        place: Place,
        *,
        in_hand: Collection[str],
        stale_before: float | None,
        is_by_coming: bool = False,
    ) -> Scan:
        """List the requests. Raises MovedError or OSError.

        Ones that were modified, or with `is_by_coming` came, before `stale_before` are set aside. One under a private
        name that belongs to none of the jobs `in_hand` was left by a crash before its content was accepted: it becomes
        a request again.
        """
        seen: dict[str, Stamp] = {}
        stale: list[str] = []
        stale_left: list[str] = []
        with self._rundir.open(place) as rundir:
            for name in os.listdir(rundir):  # noqa: PTH208 - of a descriptor
                get_on("the rundir")
                with suppress(FileNotFoundError):
                    if name.startswith(_PRIVATE) and name.removeprefix(_PRIVATE) not in in_hand:
                        _put_back(rundir, name)
                    elif is_request(name):
                        stamp = Stamp.of(os.stat(name, dir_fd=rundir, follow_symlinks=False))
                        time_ns = stamp.came_ns if is_by_coming else stamp.mtime_ns
                        if stale_before is None or time_ns >= stale_before * 1e9:
                            seen[name] = stamp
                        else:
                            is_away = self._is_away(rundir, name, stamp)
                            (stale if is_away else stale_left).append(name)
        self._left = {name: stamp for name, stamp in self._left.items() if name in seen}
        by_age = sorted(seen.items(), key=lambda entry: (entry[1].mtime_ns, entry[0]))
        return Scan(dict(by_age), tuple(sorted(stale)), tuple(sorted(stale_left)))

    def _is_away(self, rundir: int, name: str, stamp: Stamp) -> bool:
        """Set a stale request aside; tell whether that could be done."""
        try:
            self._set_aside(rundir, name, stamp, STALE)
        except FileNotFoundError:
            raise
        except OSError:
            return False
        return True

    def look_again(self, get_on: GetOn, place: Place, names: Iterable[str]) -> dict[str, Stamp]:
        """Return the present stamps of those files that still exist. Raises MovedError or OSError."""
        found: dict[str, Stamp] = {}
        with self._rundir.open(place) as rundir:
            for name in names:
                get_on("the rundir")
                with suppress(FileNotFoundError):
                    found[name] = Stamp.of(os.stat(name, dir_fd=rundir, follow_symlinks=False))
        return found

    # Taking

    def take(self, get_on: GetOn, place: Place, names: Mapping[str, Stamp | None]) -> list[Outcome]:
        """Read requests, and set aside what is none. Raises MovedError or OSError.

        Each name comes with the stamp that the file has had for a while: it is taken if it still has that. One that an
        event has told of comes with None.
        """
        outcomes: list[Outcome] = []
        with self._rundir.open(place) as rundir:
            for name, rested in names.items():
                get_on("the rundir")
                with suppress(FileNotFoundError):
                    outcome = self._take(get_on, rundir, name, rested)
                    if outcome is not None:
                        outcomes.append(outcome)
        return outcomes

    def _take(self, get_on: GetOn, rundir: int, name: str, rested: Stamp | None) -> Outcome | None:
        stamp = Stamp.of(os.stat(name, dir_fd=rundir, follow_symlinks=False))
        if self._left.get(name) == stamp:
            return None
        try:
            content = self._read(get_on, rundir, name, stamp)
            read = Stamp.of(content.status)
            # A network filesystem says only at the opening how a file is now. An empty one is about to be filled.
            if content.changed or (read != rested if rested is not None else not content.data):
                return Unsettled(name, read)
            request = runfile.parse(content.data)
            application = self.choose(request)
        except _NotNowError as error:
            return Waiting(name, str(error))
        except (_NeverError, runfile.RequestError) as error:
            return self._reject(rundir, name, stamp, str(error))
        return Taken(name, read, content.identity, content.status.st_uid, request, application)

    def _read(self, get_on: GetOn, rundir: int, name: str, stamp: Stamp) -> _Content:
        """Read a file that may be a request. Raises _NeverError, _NotNowError or FileNotFoundError."""
        if not stat.S_ISREG(stamp.mode):
            raise _NeverError(f"it is {_kind(stamp.mode)}, not a regular file")
        try:
            descriptor = os.open(name, _READ_FLAGS, dir_fd=rundir)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in _FAULTS_OF_A_FILE:
                raise _NeverError(f"it cannot be opened: {error.strerror}") from None
            raise _NotNowError(f"it cannot be opened: {error.strerror}") from None
        try:
            self._judge(get_on, os.fstat(descriptor))
            return _content(descriptor)
        except OSError as error:
            raise _NotNowError(f"it cannot be read: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def _judge(self, get_on: GetOn, status: os.stat_result) -> None:
        """See whether an open file may be a request. Raises _NeverError or _NotNowError."""
        if not stat.S_ISREG(status.st_mode):
            raise _NeverError(f"it is {_kind(status.st_mode)}, not a regular file")
        if status.st_nlink > 1:
            raise _NeverError("it has a second name (a hard link)")
        if status.st_size > runfile.MAX_BYTES:
            raise _NeverError(f"it is larger than {runfile.MAX_BYTES >> 10} KiB")
        if status.st_uid in {0, self._rundir.uid} or self._members.get(status.st_uid, 0) > monotonic():
            return
        get_on("the name service")
        try:
            self._judge_owner(status.st_uid)
        except nss.LookupFailedError as error:
            raise _NotNowError(f"its owner cannot be looked up: {error}") from None
        get_on("the rundir")

    def _judge_owner(self, uid: int) -> None:
        account = nss.account_by_uid(uid)
        if account is None:  # a directory service that is late looks like this too
            if self._absent.setdefault(uid, monotonic() + _ABSENT_FOR) > monotonic():
                raise _NotNowError(f"its owner (uid {uid}) is not known")
            raise _NeverError(f"its owner (uid {uid}) is not known")
        self._absent.pop(uid, None)
        if self._rundir.gid not in nss.groups_of(account):
            raise _NeverError(f"its owner ({account.name}) is no member of the site's group (gid {self._rundir.gid})")
        self._members[uid] = monotonic() + _MEMBER_FOR

    def _reject(self, rundir: int, name: str, stamp: Stamp, reason: str) -> Rejected | None:
        """Set aside what is no request. When it cannot be moved, that is said once for each state of the file."""
        try:
            now = self._set_aside(rundir, name, stamp, REJECTED, reason)
        except FileNotFoundError:
            raise
        except OSError:
            self._left[name] = stamp
            return Rejected(name, reason, None)
        if now is None:
            return None
        if self._rejected is None:
            self._rejected = setaside.count(rundir, REJECTED)
        else:
            self._rejected += 1
        if self._rejected > setaside.MOST_KEPT:
            with suppress(OSError):
                self._rejected = setaside.clean(rundir, REJECTED, _TAGGED)
        return Rejected(name, reason, now)

    def _set_aside(self, rundir: int, name: str, stamp: Stamp, folder: str, reason: str | None = None) -> str | None:
        """Move the file that has this stamp; return where it is, None if another one has taken its name meanwhile.

        Raises OSError when it cannot be moved.
        """
        tag = secrets.token_hex(8)
        private = _PRIVATE + tag
        setaside.move(rundir, name, rundir, private)
        if not Stamp.of(os.stat(private, dir_fd=rundir, follow_symlinks=False)).is_same_file(stamp):
            _put_back(rundir, private, name)
            return None
        return setaside.set_aside(
            rundir, private, folder=folder, name=name, tag=tag, gid=self._rundir.gid, reason=reason
        )

    # Acknowledging

    def acknowledge(self, get_on: GetOn, place: Place, requests: Iterable[Intake]) -> list[Acknowledged | Left]:
        """Take accepted requests out of the rundir. Raises MovedError or OSError.

        Also completes what a crash has interrupted, at whichever step.
        """
        results: list[Acknowledged | Left] = []
        with self._rundir.open(place) as rundir:
            for request in requests:
                get_on("the rundir")
                results.append(self._acknowledge(rundir, request))
            # What is recorded as removed must not be there again after a power failure: it would run once more.
            with suppress(OSError):  # not every filesystem can be asked for that
                os.fsync(rundir)
        return results

    def _acknowledge(self, rundir: int, request: Intake) -> Acknowledged | Left:
        private = _PRIVATE + request.job_id
        if not _exists(rundir, private):
            try:
                setaside.move(rundir, request.name, rundir, private)
            except FileNotFoundError:
                if not _exists(rundir, private):  # a task that once hung may have moved it in between
                    return Acknowledged(request.job_id)
            except OSError as error:
                return Left(request.job_id, says(error))
        try:
            if _identity(rundir, private) != request.identity:  # another request has taken the name
                _put_back(rundir, private, request.name)
            elif self._rundir.site.archive:
                now = setaside.set_aside(
                    rundir, private, folder=ARCHIVE, name=request.name, tag=request.job_id, gid=self._rundir.gid
                )
                return Acknowledged(request.job_id, now)
            else:
                os.unlink(private, dir_fd=rundir)
        except FileNotFoundError:
            pass
        except OSError as error:
            return Left(request.job_id, says(error))
        return Acknowledged(request.job_id)

    # Giving back

    def give_back(self, get_on: GetOn, place: Place, requests: Mapping[str, bytes]) -> list[str]:
        """Make requests of jobs again, by their ids; return those that are in the rundir now, or were already.

        Raises MovedError or OSError.
        """
        with self._rundir.open(place) as rundir:
            for job_id, content in requests.items():
                get_on("the rundir")
                setaside.write_new(rundir, f"{_RETURNED}{job_id}{setaside.SUFFIX}", content, gid=self._rundir.gid)
            with suppress(OSError):  # not every filesystem can be asked for that
                os.fsync(rundir)
        return list(requests)


def _kind(mode: int) -> str:
    return next((text for is_kind, text in _KINDS if is_kind(mode)), "a device")


def _content(descriptor: int) -> _Content:
    """Read an open file, at most one byte more than a request may have."""
    before = os.fstat(descriptor)
    parts: list[bytes] = []
    room = runfile.MAX_BYTES + 1
    while room and (part := os.read(descriptor, room)):
        parts.append(part)
        room -= len(part)
    data = b"".join(parts)
    after = os.fstat(descriptor)
    changed = (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or len(data) != after.st_size
    return _Content(after, syscalls.birth_time_ns(descriptor), data, changed)


def _identity(rundir: int, name: str) -> bytes | None:
    """Return the identity of what has this name; None if it is nothing that can have been accepted."""
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=rundir)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _FAULTS_OF_A_FILE:
            return None
        raise
    try:
        return _content(descriptor).identity if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)


def _exists(rundir: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=rundir, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _put_back(rundir: int, private: str, name: str | None = None) -> None:
    """Make a file a request again, under its own name if that is free."""
    if name is not None:
        with suppress(OSError):
            syscalls.rename_noreplace(rundir, private, rundir, name)
            return
    setaside.move(rundir, private, rundir, f"{secrets.token_hex(8)}{setaside.SUFFIX}")
