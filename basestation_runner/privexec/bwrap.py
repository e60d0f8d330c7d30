"""Mode sandbox: what a job sees of the host when bubblewrap runs it. Used after the drop, as the job.

A read-only system, a /tmp and /dev of its own, the mission directory, and the inputs and outputs that profile and job
name. These are opened here, beneath their prefixes, and handed over open: nobody can swap them for links meanwhile.
"""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from stat import S_ISDIR, S_ISREG
from typing import Final, NamedTuple

from basestation_runner import tools
from basestation_runner.paths import PathRefusedError, Tree, lies_beneath, open_trusted_directory

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
_TOPOLOGY: Final = "/sys/devices/system"  # how many processors there are
_RESOLVER: Final = "/run/systemd/resolve"  # where /etc/resolv.conf may point to
_HOME: Final = "/tmp"  # noqa: S108 - the sandbox's own
_NOT_INSIDE: Final = frozenset({"MPLCONFIGDIR"})  # a directory that is not there


class Place(NamedTuple):
    """Something of the host at `path` in the sandbox: open in this process."""

    path: str
    descriptor: int
    writable: bool


class View(NamedTuple):
    """What is seen in the sandbox besides the system: `programs` are files and directories that the job needs.

    `network`: the host's, else none. `directory` is where the job starts.
    """

    mounts: Sequence[Place]
    programs: Sequence[str]
    network: bool
    directory: str


def opened(path: str, prefix: str) -> int:
    """Open an input or output, and nothing outside `prefix`. Raises PathRefusedError, PathBusyError or OSError."""
    if path == prefix:
        return open_trusted_directory(path)
    with Tree((prefix,), jailed=False) as tree:
        try:
            found = tree.open_place(path)
        except PathRefusedError:
            raise PathRefusedError(f"it leads outside {prefix}") from None
    mode = os.fstat(found).st_mode
    if not S_ISDIR(mode) and not S_ISREG(mode):
        raise PathRefusedError("it is neither a directory nor a regular file")
    return found


def enclosed(
    argv: Sequence[str], environment: Mapping[str, str], view: View
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return command and environment that run `argv` in a sandbox. Raises PathRefusedError.

    From here on this process ignores SIGTERM: bubblewrap must outlive it, and whoever is to tidy up is in the sandbox.
    """
    if "=" in argv[0]:
        raise PathRefusedError("a program with a '=' in its path cannot be run in a sandbox")
    inside = {name: value for name, value in environment.items() if name not in _NOT_INSIDE} | {"HOME": _HOME}
    options = [*_options(view), "--clearenv"]
    for name, value in inside.items():
        options += ["--setenv", name, value]
    # Not on the command line, which everybody can read.
    file = os.memfd_create("bwrap", 0)
    with open(file, "wb", closefd=False) as content:
        content.write(b"".join(os.fsencode(option) + b"\0" for option in options))
    os.lseek(file, 0, os.SEEK_SET)
    os.set_inheritable(file, True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    command = [tools.BWRAP, "--args", str(file), "--", "/usr/bin/env", "--default-signal=TERM", *argv]
    return command, {"PATH": environment["PATH"]}


def _options(view: View) -> Iterator[str]:
    yield from ("--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev")
    if view.network:
        yield from ("--share-net", "--ro-bind-try", _RESOLVER, _RESOLVER)
    for path in _SYSTEM:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        else:
            yield from ("--ro-bind-try", path, path)
    yield from ("--ro-bind-try", _TOPOLOGY, _TOPOLOGY, "--tmpfs", "/tmp", "--tmpfs", "/var/tmp")  # noqa: S108 - its own
    for path in sorted(set(view.programs)):
        if not any(lies_beneath(path, system) for system in _SYSTEM):
            yield from ("--ro-bind", path, path)
    # What lies in another one comes after it; of two at one place the writable one counts.
    for mount in sorted(view.mounts, key=lambda mount: (mount.path.rstrip("/").split("/"), mount.writable)):
        os.set_inheritable(mount.descriptor, True)
        yield from ("--bind-fd" if mount.writable else "--ro-bind-fd", str(mount.descriptor), mount.path)
    yield from ("--remount-ro", "/", "--chdir", view.directory)
