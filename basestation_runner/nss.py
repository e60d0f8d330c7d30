"""Accounts and groups as the host's name service tells them, with "absent" and "did not answer" kept apart.

Python's pwd and grp raise the same KeyError for both, so the C library is called directly. Every function may block
for as long as a directory service likes: call none of them on an event loop.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_FIRST_BUFFER: Final = 1024
_LARGEST_BUFFER: Final = 1 << 24
_FIRST_GROUPS: Final = 64
_LARGEST_GROUPS: Final = 1 << 17  # twice the kernel's NGROUPS_MAX
_ABSENT: Final = frozenset({0, errno.ENOENT, errno.ESRCH})  # getpwnam(3), "RETURN VALUE": what "not found" looks like

_libc: Final = ctypes.CDLL(None, use_errno=True)


class LookupFailedError(Exception):
    """The name service did not answer; whether the name exists is not known."""


class Account(NamedTuple):
    """One account; `uid` and `gid` (its primary group) are unsigned numbers."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str


class Group(NamedTuple):
    """One group."""

    name: str
    gid: int


class _Passwd(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("password", ctypes.c_char_p),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("gecos", ctypes.c_char_p),
        ("home", ctypes.c_char_p),
        ("shell", ctypes.c_char_p),
    )


class _Group(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("password", ctypes.c_char_p),
        ("gid", ctypes.c_uint32),
        ("members", ctypes.c_void_p),
    )


def account(name: str) -> Account | None:
    """Return the account called `name`, or None if there is none. Raises LookupFailedError."""
    return _account(_libc.getpwnam_r, os.fsencode(name), f"account {name!r}")


def account_by_uid(uid: int) -> Account | None:
    """Return the account with this number, or None if there is none. Raises LookupFailedError."""
    return _account(_libc.getpwuid_r, ctypes.c_uint32(uid), f"uid {uid}")


def group(name: str) -> Group | None:
    """Return the group called `name`, or None if there is none. Raises LookupFailedError."""
    return _group(_libc.getgrnam_r, os.fsencode(name), f"group {name!r}")


def group_by_gid(gid: int) -> Group | None:
    """Return the group with this number, or None if there is none. Raises LookupFailedError."""
    return _group(_libc.getgrgid_r, ctypes.c_uint32(gid), f"gid {gid}")


def groups_of(who: Account) -> frozenset[int]:
    """Return every GID of the account, its primary group included.

    getgrouplist(3) reports success even when a service was away, so the answer may be a part of the truth:
    what is missing from it is no proof. Raises LookupFailedError when the list does not fit the largest buffer.
    """
    room = _FIRST_GROUPS
    while room <= _LARGEST_GROUPS:
        count = ctypes.c_int(room)
        gids = (ctypes.c_uint32 * room)()
        if _libc.getgrouplist(os.fsencode(who.name), ctypes.c_uint32(who.gid), gids, ctypes.byref(count)) >= 0:
            return frozenset(gids[: count.value])
        room = max(room * 2, count.value)
    raise LookupFailedError(f"groups of account {who.name!r}: more than {_LARGEST_GROUPS}")


def _account(call: Callable[..., int], key: object, asked_for: str) -> Account | None:
    entry = _look_up(call, key, _Passwd(), asked_for)
    if entry is None:
        return None
    return Account(
        name=os.fsdecode(entry.name),
        uid=entry.uid,
        gid=entry.gid,
        home=os.fsdecode(entry.home or b""),
        shell=os.fsdecode(entry.shell or b""),
    )


def _group(call: Callable[..., int], key: object, asked_for: str) -> Group | None:
    entry = _look_up(call, key, _Group(), asked_for)
    return None if entry is None else Group(name=os.fsdecode(entry.name), gid=entry.gid)


def _look_up(call: Callable[..., int], key: object, entry: Any, asked_for: str) -> Any:  # noqa: ANN401 - a C structure
    """Call one of the four `get…_r` functions, growing its buffer while it says ERANGE."""
    size = _FIRST_BUFFER
    while size <= _LARGEST_BUFFER:
        buffer = ctypes.create_string_buffer(size)
        found = ctypes.c_void_p()
        number = call(key, ctypes.byref(entry), buffer, ctypes.c_size_t(size), ctypes.byref(found))
        if number == errno.ERANGE:
            size *= 4
        elif number == errno.EINTR:
            continue
        elif found.value is not None:
            entry.keep_alive = buffer  # the structure's strings point into it
            return entry
        elif number in _ABSENT:
            return None
        else:
            raise LookupFailedError(f"{asked_for}: {os.strerror(number)}")
    raise LookupFailedError(f"{asked_for}: its entry is larger than {_LARGEST_BUFFER} bytes")
