"""Exchanges two names again and again as fast as it can: what an attacker does while somebody else resolves a path.

A program of its own, run as the attacker's account: `exchanger.py A B [C D …]` until it is killed. It writes a dot to
stdout once it has begun. A name that somebody has taken away is made again, as an empty file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from contextlib import suppress
from typing import Final, NoReturn

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def main(names: list[str]) -> NoReturn:
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    pairs = [(os.fsencode(a), os.fsencode(b)) for a, b in zip(names[::2], names[1::2], strict=True)]

    def exchange() -> None:
        for first, second in pairs:
            if rename(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE) != 0:
                if ctypes.get_errno() != errno.ENOENT:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fsdecode(first))
                for name in (first, second):
                    with suppress(FileExistsError):
                        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o664))

    exchange()
    os.write(1, b".")
    while True:
        exchange()


if __name__ == "__main__":
    main(sys.argv[1:])
