"""Single looks at a host for `runner doctor`. Each may hang or be forbidden, and is asked by way of a probe's child.

Nothing is changed anywhere: what belongs to a daemon is opened as that daemon's account, so that no file of its is
made as root.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import struct
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISSOCK
from typing import TYPE_CHECKING, Any, Final, NoReturn

import prctl

from basestation_runner import protocol, syscalls, trust
from basestation_runner.config.hostfacts import NOT_BY_THIS_USER, Absent, Identity, may_use, process_status
from basestation_runner.config.probes import Unseen
from basestation_runner.doctor import units
from basestation_runner.doctor.facts import Cgroups, Directory, Ledger, Lock, Process, Socket, System
from basestation_runner.errors import RunnerError
from basestation_runner.processes import become, close_all_but
from basestation_runner.watch import lockfile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
JOBS: Final = "jobs"
ANSWER_SECONDS: Final = 5.0
_READ_BYTES: Final = 1 << 16
_PEER: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid
_SETS: Final = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_WORDS: Final = 200
_CANNOT: Final = b"null"
_NOBODY: Final = Unseen("cannot be seen: there is no account to see it with", is_fault=False)


# Processes


def processes(uids: Collection[int], pids: Collection[int]) -> tuple[Process, ...] | Unseen:
    """Return this program's processes that run as one of these accounts, and those with these pids."""
    if process_status(PROC / "1") is None:  # mounted with hidepid
        return NOT_BY_THIS_USER
    found = []
    for directory in PROC.glob("[0-9]*"):
        status = process_status(directory)
        if status is None or "Uid" not in status:
            continue
        pid, uid = int(directory.name), int(status["Uid"].split()[1])
        if pid in pids or (uid in uids and status["Name"].startswith("runner-")):
            found.append(_process(pid, status))
    return tuple(sorted(found, key=lambda process: process.pid))


def _process(pid: int, status: Mapping[str, str]) -> Process:
    masks = {name: int(status[name], 16) for name in (*_SETS, "CapBnd")}
    groups = {int(number) for number in status["Groups"].split()}
    return Process(
        pid=pid,
        name=status["Name"],
        uid=int(status["Uid"].split()[1]),
        groups=frozenset(groups | {int(status["Gid"].split()[1])}),
        held=masks["CapInh"] | masks["CapPrm"] | masks["CapEff"] | masks["CapAmb"],
        effective=masks["CapEff"],
        bounding=masks["CapBnd"],
        no_new_privs=status.get("NoNewPrivs") == "1",
        has_old_program=_has_old_program(pid),
        cgroup=_cgroup_of(pid),
    )


def _has_old_program(pid: int) -> bool | None:
    with suppress(OSError):
        return os.readlink(PROC / str(pid) / "exe").endswith(" (deleted)")  # noqa: PTH115 - a text, no path
    return None


def _cgroup_of(pid: int) -> str | None:
    with suppress(OSError):
        lines = (PROC / str(pid) / "cgroup").read_text(errors="replace").splitlines()
        return next((line[3:] for line in lines if line.startswith("0::")), None)
    return None


def look_at_program() -> RunnerError | Unseen | None:
    """Return what keeps a helper with capabilities from running this very program; None if nothing does."""
    try:
        trust.check_program()
    except RunnerError as error:
        return error
    except OSError as error:
        return _unseen(error)
    return None


# Sockets


def look_at_socket(
    path: Path, message: Mapping[str, object], caller: Identity | None, *, any_caller: bool
) -> Socket | Absent | Unseen:
    """Return what is at a socket's path, and what a daemon there answers to a message.

    It is asked as the account `caller`, the only one that it listens to unless `any_caller`.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return Absent(str(path))
    except OSError as error:
        return _unseen(error)
    answer: Mapping[str, Any] | None = None
    why_not: str | Unseen | None = None
    listener = None
    try:
        with _as(None if any_caller else caller, must=not any_caller), socket.socket(socket.AF_UNIX) as link:
            link.settimeout(ANSWER_SECONDS)
            link.connect(str(path))
            listener, _, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            link.sendall(protocol.encode(message))
            answer = _receive(link)
    except _CannotBecomeError:
        why_not = NOT_BY_THIS_USER if caller else _NOBODY
    except TimeoutError:
        why_not = f"it does not answer within {ANSWER_SECONDS:g} s"
    except protocol.ProtocolError as error:
        why_not = f"it answers {error}"
    except OSError as error:
        why_not = error.strerror or str(error)
    return Socket(
        uid=status.st_uid,
        gid=status.st_gid,
        mode=S_IMODE(status.st_mode),
        is_socket=S_ISSOCK(status.st_mode),
        listener=listener,
        answer=answer,
        why_not=why_not,
    )


def _receive(link: socket.socket) -> Mapping[str, Any]:
    decoder = protocol.FrameDecoder()
    while data := link.recv(_READ_BYTES):
        for message in decoder.feed(data):
            return message
    raise ConnectionResetError(None, "it closes the connection")


# Files


def look_at_directory(path: Path, owner: Identity | None, file: Path | None = None) -> Directory | Absent | Unseen:
    """Return what a directory is like, and whether its daemon's account can write in it, and to a file in it."""
    try:
        status, room = path.stat(), os.statvfs(path)
    except (FileNotFoundError, NotADirectoryError):
        return Absent(str(path))
    except OSError as error:
        return _unseen(error)
    may_write_file = None
    with suppress(OSError):
        if owner and file and file.lstat():
            may_write_file = may_use(str(file), owner, os.W_OK)
    return Directory(
        uid=status.st_uid,
        gid=status.st_gid,
        mode=S_IMODE(status.st_mode),
        is_directory=S_ISDIR(status.st_mode),
        is_read_only=bool(room.f_flag & os.ST_RDONLY),
        free_bytes=room.f_bavail * room.f_frsize,
        free_files=room.f_favail if room.f_files else None,
        may=may_use(str(path), owner, os.W_OK | os.X_OK) if owner else None,
        may_write_file=may_write_file,
    )


def look_at_ledger(state_dir: Path, watcher: Identity | None) -> Ledger | Absent | Unseen:
    """Return what the ledger is like. The watcher's account reads it: it could harm whoever does, as all its files."""
    path = state_dir / "ledger.db"
    try:
        told = _told_by(watcher, partial(_read_ledger, state_dir))
    except _CannotBecomeError:
        return NOT_BY_THIS_USER if watcher else _NOBODY
    match told:
        case {"is_there": False}:
            return Absent(str(path))
        case {"is_forbidden": True}:
            return NOT_BY_THIS_USER
        case {"fault": str(why)}:
            return Unseen(why[:_WORDS], is_fault=True)
        case {"version": int(version), "damaged": [*names]} if all(map(_is_damaged, names)):
            return Ledger(version, tuple(str(state_dir / name) for name in names))
    return Unseen("could not be looked at: whoever did makes no sense", is_fault=True)


def _read_ledger(state_dir: Path) -> dict[str, object]:
    path = state_dir / "ledger.db"
    try:
        if not path.exists():
            return {"is_there": False}
        damaged = sorted(each.name for each in state_dir.iterdir() if _is_damaged(each.name))
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            database.execute("SELECT count(*) FROM jobs WHERE ended_at IS NULL").fetchone()
    except sqlite3.Error as error:
        return {"fault": f"cannot be read: {error}"}
    except PermissionError:
        return {"is_forbidden": True}
    except OSError as error:
        return {"fault": f"cannot be looked at: {error.strerror}"}
    return {"version": version, "damaged": damaged}


def _is_damaged(name: object) -> bool:
    return isinstance(name, str) and name.startswith("damaged-") and "/" not in name


def look_at_lock(rundir: str) -> Lock | Unseen | None:
    """Return a rundir's lock; None if there is none, or no rundir, which is told elsewhere."""
    try:
        directory = os.open(rundir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _unseen(error)
    try:
        seen = lockfile.look(directory)
    except OSError as error:
        return _unseen(error)
    finally:
        os.close(directory)
    if seen is None or not seen.is_held or seen.pid is None:
        return None if seen is None else Lock(seen)
    process = PROC / str(seen.pid)
    uid, command = None, ""
    with suppress(OSError):
        uid = process.stat().st_uid
        words = (process / "cmdline").read_bytes().replace(b"\0", b" ")
        command = words.decode(errors="replace").strip()[:_WORDS]
    return Lock(seen, uid, command, _unit_of(seen.pid))


def _unit_of(pid: int) -> str:
    """Return the service whose main process this is; "" if it is none's.

    Accounts name cgroups below their own user manager's as they like. Above such a one, and in no other, is a unit that
    is no slice.
    """
    with suppress(OSError):
        for line in (PROC / str(pid) / "cgroup").read_text(errors="replace").splitlines():
            *above, last = line.split(":", 2)[-1].strip("/").split("/")
            is_the_systems = last.endswith(".service") and all(name.endswith(".slice") for name in above)
            if is_the_systems and units.main_process(last) == pid:
                return last
    return ""


# The host


def look_at_cgroups(root: Path | None, helper_cgroup: str | None, helper: Identity | None) -> Cgroups:
    """Return the cgroup that is delegated to the helper: `root`, or `jobs` above the one that the helper runs in."""
    has_version_2 = (CGROUPS / "cgroup.controllers").exists()
    if root is None and helper_cgroup is not None:
        own = Path(f"{CGROUPS}{helper_cgroup}")
        root = next((above / JOBS for above in own.parents if _is_there(above / JOBS / "cgroup.procs")), None)
    if root is None:
        return Cgroups(has_version_2=has_version_2)
    controllers = None
    with suppress(OSError):
        controllers = frozenset((root / "cgroup.controllers").read_text(encoding="ascii").split())
    needed = [root, root / "cgroup.procs", root / "cgroup.subtree_control", root.parent / "cgroup.procs"]
    can = {path: may_use(str(path), helper, os.W_OK) if helper else NOT_BY_THIS_USER for path in needed}
    return Cgroups(
        has_version_2=has_version_2,
        root=str(root),
        controllers=controllers,
        closed=tuple(str(path) for path, may in can.items() if may is False),
        unseen=next((may for may in can.values() if isinstance(may, Unseen)), None),
    )


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except PermissionError:
        return True  # in a directory that is, and is closed to us
    except OSError:
        return False
    return True


def look_at_system(files: Collection[Path], now: Callable[[], float]) -> System:
    """Return what the host is; `files` are some that were written at times that the clock cannot be before."""
    latest = 0.0
    for path in files:
        with suppress(OSError):
            latest = max(latest, path.stat().st_mtime)
    is_synchronised = None
    with suppress(OSError):
        is_synchronised = syscalls.clock_is_synchronised()
    libc = None
    with suppress(ValueError, OSError):
        libc = os.confstr("CS_GNU_LIBC_VERSION")
    return System(
        kernel=os.uname().release,
        has_openat2=_has_openat2(),
        libc=libc,
        now=now(),
        latest=latest,
        is_synchronised=is_synchronised,
    )


def _has_openat2() -> bool:
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        os.close(syscalls.openat2(root, ".", os.O_PATH, resolve=syscalls.RESOLVE_BENEATH))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


# Accounts


class _CannotBecomeError(Exception):
    """This process may not act as that account."""


def _told_by(identity: Identity | None, look: Callable[[], object]) -> Any:  # noqa: ANN401 - JSON
    """Return what a look returns to a process that has become an account for good; None if that says nothing.

    What it looks at may take it over. So no more comes from there than JSON, which may hold anything.
    Raises _CannotBecomeError.
    """
    if identity is None or os.geteuid() not in {0, identity.uid}:
        raise _CannotBecomeError
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _tell(identity, look, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read(_READ_BYTES)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if said == _CANNOT:
        raise _CannotBecomeError
    with suppress(ValueError, RecursionError):
        return json.loads(said)
    return None


def _tell(identity: Identity, look: Callable[[], object], writer: int) -> NoReturn:
    try:
        close_all_but({0, 1, 2, writer})  # the way to who asks, above all
        if os.geteuid() == 0:
            try:
                become(identity.uid, identity.gid, identity.groups)
            except OSError:
                os.write(writer, _CANNOT)
                os._exit(0)
        prctl.set_pdeathsig(signal.SIGKILL)  # who asks is killed when this takes too long
        os.write(writer, json.dumps(look()).encode())
    finally:
        os._exit(0)


@contextmanager
def _as(identity: Identity | None, *, must: bool) -> Iterator[None]:
    """Have an account's effective ids and groups for a while, or, unless it must be, stay what this process is."""
    if identity is None:
        if must:
            raise _CannotBecomeError
        yield
        return
    uid, gid, groups = os.geteuid(), os.getegid(), os.getgroups()
    if uid == identity.uid:
        yield
        return
    try:
        os.setgroups(identity.groups)
        os.setegid(identity.gid)
        os.seteuid(identity.uid)
    except OSError:
        raise _CannotBecomeError from None
    try:
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)


def _unseen(error: OSError) -> Unseen:
    if isinstance(error, PermissionError):
        return NOT_BY_THIS_USER
    return Unseen(f"cannot be looked at: {error.strerror}", is_fault=True)
