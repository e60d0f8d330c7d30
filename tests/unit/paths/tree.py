"""tree.c of the job's child, in this process: the same code, for tests that ask it thousands of times."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from basestation_runner import program
from basestation_runner.paths import PathBusyError, PathRefusedError, join_jail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_FLAGS: Final = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-shared", "-fPIC", "-fsanitize=undefined")
_FAULTS: Final = (None, PathRefusedError, PathBusyError)
_MOST_ROOTS: Final = 8
_MOST_BYTES: Final = 4096


class _Tree(ctypes.Structure):
    """`struct tree`."""

    _fields_ = (
        ("jailed", ctypes.c_bool),
        ("count", ctypes.c_int),
        ("roots", ctypes.c_int * _MOST_ROOTS),
        ("names", ctypes.c_char_p * _MOST_ROOTS),
    )


class _Fault(ctypes.Structure):
    """`struct fault`."""

    _fields_ = (("kind", ctypes.c_int), ("number", ctypes.c_int), ("text", ctypes.c_char * 4400))


@cache
def library() -> ctypes.CDLL:
    """Return tree.c, compiled with checks for what C leaves undefined."""
    here, sources = Path(__file__).parent, Path(program.BECOME).parent
    with tempfile.TemporaryDirectory() as directory:
        built = Path(directory, "tree.so")
        objects = []
        for source, hooks in (
            (sources / "tree.c", ["-include", str(here / "hooks.h")]),
            (sources / "fault.c", []),
            (here / "hooks.c", []),
        ):
            objects.append(f"{directory}/{source.stem}.o")
            subprocess.run(["gcc", *_FLAGS, *hooks, "-c", "-o", objects[-1], str(source)], check=True)
        subprocess.run(["gcc", *_FLAGS, "-o", str(built), *objects], check=True)
        return ctypes.CDLL(str(built), use_errno=True)


def checked(result: int) -> int:
    """Return what a function returned. Raises what it has noted instead when that is -1."""
    if result >= 0:
        return result
    fault = _Fault.in_dll(library(), "fault")
    kind = _FAULTS[fault.kind]
    if kind is None:
        raise OSError(fault.number, os.strerror(fault.number))
    raise kind(os.fsdecode(fault.text))


class Tree:
    """A site's tree as the job's child has it."""

    def __init__(self, roots: Iterable[str], *, jailed: bool) -> None:
        self._tree = _Tree(jailed=jailed)
        self._names = [os.fsencode(root) for root in roots]
        for name in self._names:
            try:
                checked(library().open_root(ctypes.byref(self._tree), name))
            except BaseException:
                self.__exit__()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for root in self._tree.roots[: self._tree.count]:
            os.close(root)

    def open(self, path: str, flags: int) -> int:
        return checked(library().open_in(ctypes.byref(self._tree), os.fsencode(path), flags))

    def open_directory(self, path: str) -> int:
        return self.open(path, os.O_PATH | os.O_DIRECTORY)

    def open_log(self, path: str, gid: int) -> tuple[int, bool]:
        readable = ctypes.c_bool()
        log = library().open_log(
            ctypes.byref(self._tree), os.fsencode(path), ctypes.c_uint32(gid), ctypes.byref(readable)
        )
        return checked(log), readable.value

    def host_path(self, path: str) -> str:
        """Return where a path leads on the host, as whoever asks the child makes it of what that says."""
        found = ctypes.create_string_buffer(_MOST_BYTES)
        checked(library().host_path(ctypes.byref(self._tree), os.fsencode(path), found))
        if found.value:
            return os.fsdecode(found.value)
        return join_jail(os.fsdecode(self._names[0]), path) if self._tree.jailed else path


@contextmanager
def failing(number: int) -> Iterator[None]:
    """Have openat2(2) fail."""
    fails = ctypes.c_int.in_dll(library(), "openat2_fails_with")
    fails.value = number
    try:
        yield
    finally:
        fails.value = 0


@contextmanager
def while_resolving(happens: Callable[[], None]) -> Iterator[None]:
    """Have something happen when realpath(3) has found where a path leads."""
    hook = ctypes.c_void_p.in_dll(library(), "in_realpath")
    called = ctypes.CFUNCTYPE(None)(happens)
    hook.value = ctypes.cast(called, ctypes.c_void_p).value
    try:
        yield
    finally:
        hook.value = None
