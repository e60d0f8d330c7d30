"""One site's rundir as a directory: finding it, watching it, its lock. Blocking calls, for the site's lane only.

It is opened anew for each task: a kept descriptor would hide its removal, and could not tell that its path leads
elsewhere by now.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from attrs import frozen

from basestation_runner import filesystems, nss
from basestation_runner.paths import PathRefusedError, open_trusted_directory, path_of
from basestation_runner.watch import inotify, lockfile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from basestation_runner.config.model import Site
    from basestation_runner.watch.inotify import Watches

    GetOn = Callable[[str], None]


class NotReadyError(Exception):
    """The site cannot be served now; the text says why."""


class MovedError(Exception):
    """The rundir's path does not lead to the directory that is watched any more, or its lock is not ours any more."""


class LinkError(Exception):
    """The rundir's path leads through a link that is not to be followed."""

    def __init__(self, path: str) -> None:
        super().__init__("it leads through a link that others than root could have made")
        self.path = path


@frozen
class Place:
    """Which directory a rundir is."""

    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> Place:
        """Return where an open directory is."""
        status = os.fstat(descriptor)
        return cls(status.st_dev, status.st_ino)


@frozen
class Missing:
    """The rundir cannot be opened. `watch` is on the nearest directory above it, in which `name` should appear;
    `appeared` if the rundir came while that watch was made.
    """

    reason: str
    watch: int | None = None
    name: str = ""
    appeared: bool = False


@frozen
class Armed:
    """The rundir is watched, and its lock is ours unless `lock_fault` says why it could not be written.

    `silent` is the type of its filesystem if that may not tell of every request.
    """

    watch: int
    lock_fault: str | None
    silent: str | None


@frozen
class Locked:
    """A live process has the lock; `watch` is on the lock's file."""

    pid: int
    watch: int


class Rundir:
    """A site's rundir. A task that takes `get_on` calls it whenever it gets on, with what it waits for next."""

    def __init__(self, site: Site, watches: Watches) -> None:
        self.site = site
        self.uid = -1  # the runner account's; as of the last `find`
        self.gid = -1  # the site's group
        self.watches = watches

    def find(self, get_on: GetOn) -> Place | Missing:
        """Look up where it is, and the site's account. Raises NotReadyError, nss.LookupFailedError or OSError."""
        get_on("the name service")
        self._look_up()
        get_on("the rundir")
        try:
            return self._place()
        except (OSError, LinkError) as error:
            reason = f"{self.site.watch_dir}: {says(error)}"
            if isinstance(error, PermissionError) and not has_group(self.gid):
                reason += f" ({needs_restart(self.gid)})"
            return self._missing(reason)

    def arm(self, place: Place) -> Armed | Locked:
        """Make its lock ours, and watch it. Raises MovedError or OSError."""
        with self.open(place) as rundir:
            lock_fault = None
            if not self.site.ignore_lock:
                try:
                    holder = lockfile.take(rundir, self.gid)
                except OSError as error:
                    lock_fault = says(error)
                else:
                    if holder is not None:
                        return self._locked(rundir, holder)
            kind = filesystems.kind(rundir)
            silent = kind if filesystems.may_be_silent(kind) else None
            return Armed(self.watches.add(rundir, inotify.RUNDIR), lock_fault, silent)

    def check(self, place: Place) -> None:
        """See whether all is as `arm` left it. Raises MovedError if it is not, or OSError."""
        with self.open(place) as rundir:
            if self.site.ignore_lock:
                return
            holder = None
            with suppress(OSError):  # that it cannot be written was said when the site was armed
                holder = lockfile.take(rundir, self.gid)
            if holder is not None:
                os.close(holder.descriptor)
                raise MovedError

    def release(self, place: Place) -> None:
        """Give the lock back. Raises MovedError or OSError."""
        if not self.site.ignore_lock:
            with self.open(place) as rundir:
                lockfile.release(rundir)

    @contextmanager
    def open(self, place: Place) -> Iterator[int]:
        """Open it. Raises MovedError if it is not at `place`, or OSError."""
        try:
            descriptor = _open(self.site.watch_dir)
        except (FileNotFoundError, NotADirectoryError, LinkError) as error:
            raise MovedError from error
        try:
            if Place.of(descriptor) != place:
                raise MovedError
            yield descriptor
        finally:
            os.close(descriptor)

    def _look_up(self) -> None:
        self.uid, self.gid = owner(self.site)

    def _place(self) -> Place:
        descriptor = _open(self.site.watch_dir)
        try:
            return Place.of(descriptor)
        finally:
            os.close(descriptor)

    def _missing(self, reason: str) -> Missing:
        try:
            parent, name = inotify.open_nearest(self.site.watch_dir)
        except OSError:
            return Missing(reason)
        try:
            watch = self.watches.add(parent, inotify.PARENT)
        except PermissionError:  # a directory that must not be listed cannot be watched
            return Missing(reason)
        finally:
            os.close(parent)
        appeared = False
        with suppress(OSError, LinkError):
            self._place()
            appeared = True
        return Missing(reason, watch, name, appeared)

    def _locked(self, rundir: int, holder: lockfile.Holder) -> Locked:
        """Watch a foreign lock. Raises MovedError when it has gone or changed meanwhile."""
        try:
            watch = self.watches.add(holder.descriptor, inotify.FILE)
            present = os.stat(lockfile.NAME, dir_fd=rundir, follow_symlinks=False)
            if present.st_ino != os.fstat(holder.descriptor).st_ino:
                raise MovedError
        except FileNotFoundError:
            raise MovedError from None
        finally:
            os.close(holder.descriptor)
        return Locked(holder.pid, watch)


def owner(site: Site) -> tuple[int, int]:
    """Return the uid of a site's account, and its group. Raises NotReadyError or nss.LookupFailedError."""
    account = nss.account(site.runner_user)
    if account is None:
        raise NotReadyError(f"there is no account {site.runner_user}")
    gid: int | str = site.groups[0] if site.groups else account.gid
    if isinstance(gid, str):
        group = nss.group(gid)
        if group is None:
            raise NotReadyError(f"there is no group {gid}")
        gid = group.gid
    return account.uid, gid


def has_group(gid: int) -> bool:
    """Tell whether this process is a member of a group: a membership that it was given later needs a restart."""
    return gid == os.getegid() or gid in os.getgroups()


def needs_restart(gid: int) -> str:
    """Say which group this process has to be started again for. Raises nss.LookupFailedError."""
    group = nss.group_by_gid(gid)
    return f"needs restart: group {gid if group is None else group.name}"


def says(error: Exception) -> str:
    """Return what an error says in a person's words."""
    match error:
        case FileNotFoundError():
            return "it does not exist"
        case NotADirectoryError():
            return "it is not a directory"
        case OSError():
            return error.strerror or str(error)
    return str(error)


def _open(path: str) -> int:
    """Open a rundir. Raises LinkError when its path leads through a link that others than root could have made.

    The site's people may be able to write in its parents, and a link there could lead to another site's directory.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    if path_of(descriptor) == path:
        return descriptor
    os.close(
        descriptor
    )  # a link is in the way: walked step by step, so that nothing can be exchanged between two looks
    try:
        found = open_trusted_directory(path)
    except PathRefusedError:
        raise LinkError(path) from None
    try:
        return os.open(".", flags, dir_fd=found)
    finally:
        os.close(found)
