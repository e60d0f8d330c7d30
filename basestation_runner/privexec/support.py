"""What of the profiles' ways to run a job works on this host, tried out when the helper starts."""

import fcntl
import os
import select
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NoReturn

import prctl

from basestation_runner import tools, trust
from basestation_runner.errors import RunnerError, printable
from basestation_runner.privexec import bwrap
from basestation_runner.privexec.launch import LAUNCHERS

SANDBOX: Final = "mode sandbox"
_PATIENCE_MS: Final = 10_000
_MOST_BYTES: Final = 4096
_CLEAN: Final = {"PATH": "/usr/bin:/bin"}


def missing() -> Mapping[str, str]:
    """Return what does not work here, by the words of a profile, each with the reason."""
    found = {}
    for launcher, (program, *_) in LAUNCHERS.items():
        if (fault := _unusable(program)) is not None:
            found[f"launch_type {launcher}"] = fault
    if (fault := _unusable(tools.BWRAP) or _try_out()) is not None:
        found[SANDBOX] = fault
    return found


def _unusable(program: str) -> str | None:
    if not os.access(program, os.X_OK):
        return f"{program} is not installed"
    try:
        trust.check_chain(program)
    except RunnerError as error:
        return f"others than root could change {error.where}"
    return None


def _try_out() -> str | None:
    """Run nothing in a sandbox; return why that is not possible, None if it is."""
    usr = os.open("/usr", os.O_PATH | os.O_CLOEXEC)
    place = bwrap.Place("/mnt", fcntl.fcntl(usr, fcntl.F_DUPFD_CLOEXEC, bwrap.OPTIONS + 1), writable=False)
    os.close(usr)
    tried = bwrap.enclosed(["/usr/bin/true"], _CLEAN, bwrap.View([place], (), network=False, directory="/"))
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _execute(writer, tried)
    os.close(writer)
    os.close(place.descriptor)
    said = _read(reader, pid)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if status == 0:
        return None
    return printable(said.decode(errors="replace").strip()) or f"{tools.BWRAP} ends with wait status {status}"


def _execute(writer: int, tried: bwrap.Enclosure) -> NoReturn:
    """Become what a job is as far as that counts here, and execute it. Never returns."""
    try:
        prctl.cap_effective.limit()
        prctl.cap_permitted.limit()
        prctl.set_no_new_privs(1)
        os.dup2(writer, 2)
        for descriptor in tried.places:
            os.set_inheritable(descriptor, True)
        options = fcntl.fcntl(bwrap.options_file(tried), fcntl.F_DUPFD_CLOEXEC, bwrap.OPTIONS + 1)
        os.dup2(options, bwrap.OPTIONS)
        os.execve(tried.argv[0], [*tried.argv], tried.environment)  # noqa: S606 - an argument list of ours
    finally:
        os._exit(1)


def _read(reader: int, pid: int) -> bytes:
    """Return what it writes until it ends, which it does at the latest when the time is over."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    said = b""
    while poll.poll(_PATIENCE_MS):
        data = os.read(reader, _MOST_BYTES)
        if not data:
            return said
        said = (said + data)[:_MOST_BYTES]
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return said + b" it does not end"
