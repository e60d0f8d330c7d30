"""The fork server: the helper's one child, which does nothing but fork keepers and hand jobs to them.

Forking costs what a process holds in memory, and so does each keeper afterwards. This process holds little: it never
loads the configuration, its parser, the log's library or the command line's. It ends with the helper, and keepers that
have nothing to do end with it.
"""

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Final

from basestation_runner import errors, nss, processes, proctitle, trust
from basestation_runner.privexec import keeper
from basestation_runner.privexec.accounts import Caller
from basestation_runner.privexec.capabilities import secure_helper
from basestation_runner.privexec.child import open_program, receive
from basestation_runner.privexec.claims import Claims
from basestation_runner.privexec.keeper import Post

NUMBER: Final = struct.Struct("Q")
"""To the fork server: the number of a job to be kept; with it come the order's file and the report's pipe."""

WORD: Final = struct.Struct("QiI")
"""From it: the job's number, why no keeper could be forked (errno, else 0), and how the keeper ended (wait status).

A keeper that goes on to other jobs counts as ended with 0.
"""

READY: Final = b"ready"

_NOBODY: Final = "no-such-account-or-group"

_MOST_SETTINGS: Final = 1 << 16
_PASSED_WITH_SETTINGS: Final = 3
_PENDING_SIGNALS: Final = 1 << 12
_FORKED_EARLY: Final = 1
"""Keepers that are there before the first job."""
_MOST_IDLE: Final = 4
"""Keepers without a job that wait for one; others end."""


def main(arguments: list[str]) -> int:
    """Serve the helper at the other end of the link until that closes; return the exit status.

    The one argument is the number of the link's descriptor.
    """
    processes.occupy_standard_descriptors()
    proctitle.set_title("runner-forkserver")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the helper, with which this one ends
    try:
        changes = secure_helper(hands_on=True)
        _load_name_service()
        if changes:
            trust.check_program()
        become = open_program()
    except errors.RunnerError as error:
        lines, status = errors.report(error)
        sys.stderr.writelines(f"{line}\n" for line in lines)
        return status
    with socket.socket(fileno=int(arguments[0])) as link:
        link.set_inheritable(False)
        told, descriptors = receive(link, _MOST_SETTINGS, _PASSED_WITH_SETTINGS)
        if told:
            post = _post(told, descriptors, changes=changes)
            woken = _hear_children()
            # What is there now lives for ever; keepers share it, and a collection in them would copy it.
            gc.disable()
            gc.freeze()
            with suppress(BrokenPipeError, ConnectionResetError):  # the helper is gone
                link.send(READY)
                _Server(link, woken, post, become).serve()
    return errors.EXIT_OK


def _load_name_service() -> None:
    """Look up what nobody is called: the C library loads all that looking up takes, before it is checked.

    Keepers must not load it each by itself: an upgrade may have replaced it by then.
    """
    with suppress(nss.LookupFailedError):
        nss.account(_NOBODY)
    with suppress(nss.LookupFailedError):
        nss.group(_NOBODY)
    with suppress(nss.LookupFailedError):
        nss.groups_of(nss.Account(_NOBODY, os.getuid(), os.getgid(), "/", ""))


def settings(post: Post) -> bytes:
    """Return what the fork server needs to know for keepers to work with the same as `post`, but for descriptors."""
    who = {**post.caller._asdict(), "groups": [*post.caller.groups], "forbidden_gids": [*post.caller.forbidden_gids]}
    return json.dumps({"caller": who, "cache_dir": post.cache_dir}).encode()


def _post(data: bytes, descriptors: list[int], *, changes: bool) -> Post:
    told = json.loads(data)
    who = told["caller"]
    for name in ("groups", "forbidden_gids"):
        who[name] = frozenset(who[name])
    caller = Caller(**who)
    if caller.changes != changes:  # capabilities that pass neither through execve nor to a child are of no use
        raise RuntimeError("the fork server and the helper do not hold the same capabilities")
    claims, exits, starting = descriptors
    return Post(caller, Claims.of_descriptors(claims, exits, starting), told["cache_dir"])


def _hear_children() -> int:
    """Return a descriptor that becomes readable when a keeper has ended."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


class _Keeper:
    """One keeper: the link to it, and the number of what it was forked for; None while it has nothing to do."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.link = link
        self.number: int | None = None


class _Server:
    """The keepers, and who of them does what."""

    def __init__(self, helper: socket.socket, woken: int, post: Post, become: int) -> None:
        self._become = become
        self._helper = helper
        self._woken = woken
        self._post = post
        self._poll = select.poll()
        self._idle: list[_Keeper] = []
        self._by_link: dict[int, _Keeper] = {}
        self._by_pid: dict[int, _Keeper] = {}

    def serve(self) -> None:
        """Have jobs kept and tell when that is over, until the helper is gone."""
        self._poll.register(self._helper, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        with suppress(OSError):  # it is tried again when there is a job
            self._idle += [self._fork() for _ in range(_FORKED_EARLY)]
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._woken:
                    os.read(self._woken, _PENDING_SIGNALS)
                    self._reap()
                elif descriptor != self._helper.fileno():
                    self._hear(self._by_link[descriptor])
                elif not self._take():
                    return

    def _take(self) -> bool:
        """Hand the helper's next job to a keeper; return False when there is no helper any more."""
        data, descriptors = receive(self._helper, NUMBER.size, keeper.PASSED_WITH_ORDER)
        if not data:
            return False
        (number,) = NUMBER.unpack(data)
        try:
            self._hand_out(number, data, descriptors)
        except OSError as error:
            self._helper.send(WORD.pack(number, error.errno, 0))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _hand_out(self, number: int, data: bytes, descriptors: list[int]) -> None:
        while True:
            chosen = self._idle.pop() if self._idle else self._fork()
            try:
                socket.send_fds(chosen.link, [data], descriptors)
            except BrokenPipeError:
                continue  # it has been killed, and is about to be reaped
            chosen.number = number
            return

    def _fork(self) -> _Keeper:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                keeper.main(theirs, self._post, self._become)
        forked = _Keeper(pid, ours)
        self._by_pid[pid] = self._by_link[ours.fileno()] = forked
        self._poll.register(ours, select.POLLIN)
        return forked

    def _hear(self, known: _Keeper) -> None:
        """A keeper has done its work, or has ended."""
        try:
            word = known.link.recv(len(keeper.DONE))
        except ConnectionResetError:
            word = b""
        if word and known.pid in self._by_pid:
            self._tell_end(known, 0)
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(known)
                return
        # It ends, or has ended; which of the two processes noticed first does not matter.
        self._poll.unregister(known.link)
        del self._by_link[known.link.fileno()]
        known.link.close()
        if known in self._idle:
            self._idle.remove(known)

    def _reap(self) -> None:
        """Take note of every keeper that has ended."""
        while self._by_pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._tell_end(self._by_pid.pop(pid), status)

    def _tell_end(self, known: _Keeper, status: int) -> None:
        """Tell the helper that a keeper has done what it had to do, or how it ended instead."""
        if known.number is not None:
            self._helper.send(WORD.pack(known.number, 0, status))
            known.number = None
