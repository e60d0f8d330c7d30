"""The Linux calls that this program needs and Python's standard library lacks, one thin wrapper each.

Every wrapper raises OSError with the call's own errno through `_checked`; nothing here decides anything.
"""

import ctypes
import os
from typing import Final

RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
RESOLVE_IN_ROOT: Final = 0x10

_RENAME_NOREPLACE: Final = 1
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_SYS_OPENAT2: Final = 437  # the same number on every architecture
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 1024  # more than `struct timex` has anywhere

_libc: Final = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _StatxTimestamp(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_int64), ("tv_nsec", ctypes.c_uint32), ("_pad", ctypes.c_int32))


class _Statx(ctypes.Structure):
    """`struct statx` of statx(2), as far as the birth time; the rest is padding up to its 256 bytes."""

    _fields_ = (
        ("stx_mask", ctypes.c_uint32),
        ("_before_times", ctypes.c_uint8 * 60),
        ("stx_atime", _StatxTimestamp),
        ("stx_btime", _StatxTimestamp),
        ("_rest", ctypes.c_uint8 * 160),
    )


def _checked(result: int, path: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def openat2(directory: int, path: str, flags: int, *, resolve: int) -> int:
    """Open `path` below the descriptor `directory`, resolved within the limits of `resolve` (see the manual page).

    The descriptor is always close-on-exec. Raises OSError; EXDEV when the path would leave the directory,
    EAGAIN when a rename went on meanwhile (try again).
    """
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return _checked(_libc.syscall(_SYS_OPENAT2, directory, os.fsencode(path), ctypes.byref(how), size), path)


def rename_noreplace(source_directory: int, source: str, target_directory: int, target: str) -> None:
    """Rename within or between two open directories; FileExistsError instead of replacing anything.

    Raises OSError; EINVAL where the filesystem cannot promise that.
    """
    arguments = (source_directory, os.fsencode(source), target_directory, os.fsencode(target), _RENAME_NOREPLACE)
    _checked(_libc.renameat2(*arguments), target)


def birth_time_ns(descriptor: int) -> int | None:
    """When the open file was created, in nanoseconds since the epoch; None where its filesystem does not know."""
    facts = _Statx()
    _checked(_libc.statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BTIME, ctypes.byref(facts)))
    if not facts.stx_mask & _STATX_BTIME:
        return None
    return int(facts.stx_btime.tv_sec) * 1_000_000_000 + int(facts.stx_btime.tv_nsec)


def clock_is_synchronised() -> bool:
    """Tell whether something keeps the wall clock right, as the kernel knows (adjtimex(2)). Raises OSError."""
    nothing_to_set = ctypes.create_string_buffer(_TIMEX_BYTES)
    return _checked(_libc.adjtimex(nothing_to_set)) != _TIME_ERROR
