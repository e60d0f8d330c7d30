"""Mode sandbox: what a job sees of the host when bubblewrap runs it.

A read-only system, a /tmp and /dev of its own, the mission directory, and the inputs and outputs that profile and job
name. The job's child opens these, beneath their prefixes, and hands them over open: nobody can swap them for links
meanwhile.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from basestation_runner import tools
from basestation_runner.paths import PathRefusedError, lies_beneath

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
_TOPOLOGY: Final = "/sys/devices/system"  # how many processors there are
_RESOLVER: Final = "/run/systemd/resolve"  # where /etc/resolv.conf may point to
_HOME: Final = "/tmp"  # noqa: S108 - the sandbox's own
_NOT_INSIDE: Final = frozenset({"MPLCONFIGDIR"})  # a directory that is not there

OPTIONS: Final = 4
"""The descriptor at which bubblewrap finds its options."""


class Place(NamedTuple):
    """Something of the host at `path` in the sandbox: open in the process that executes bubblewrap."""

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


class Enclosure(NamedTuple):
    """Bubblewrap's command and environment, what is at its descriptor OPTIONS, and what else it must find open."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    options: bytes
    places: Sequence[int]


def enclosed(argv: Sequence[str], environment: Mapping[str, str], view: View) -> Enclosure:
    """Return how `argv` is run in a sandbox. Raises PathRefusedError.

    Whoever executes that ignores SIGTERM: bubblewrap must outlive it, and whoever is to tidy up is in the sandbox.
    """
    if "=" in argv[0]:
        raise PathRefusedError("a program with a '=' in its path cannot be run in a sandbox")
    inside = {name: value for name, value in environment.items() if name not in _NOT_INSIDE} | {"HOME": _HOME}
    options = [*_options(view), "--clearenv"]
    for name, value in inside.items():
        options += ["--setenv", name, value]
    return Enclosure(
        argv=[tools.BWRAP, "--args", str(OPTIONS), "--", "/usr/bin/env", "--default-signal=TERM", *argv],
        environment={"PATH": environment["PATH"]},
        # Not on the command line, which everybody can read.
        options=b"".join(os.fsencode(option) + b"\0" for option in options),
        places=[mount.descriptor for mount in view.mounts],
    )


def options_file(enclosure: Enclosure) -> int:
    """Return a descriptor of a file with bubblewrap's options, at its beginning."""
    file = os.memfd_create("bwrap")
    with open(file, "wb", closefd=False) as content:
        content.write(enclosure.options)
    os.lseek(file, 0, os.SEEK_SET)
    return file


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
        yield from ("--bind-fd" if mount.writable else "--ro-bind-fd", str(mount.descriptor), mount.path)
    yield from ("--remount-ro", "/", "--chdir", view.directory)
