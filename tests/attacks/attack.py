"""What the attacks share: how long they go on, who carries them out, and how it is seen that nothing has changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from basestation_runner.sandbox.process import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation

_EXCHANGER: Final = Path(__file__).with_name("exchanger.py")


ATTEMPT: Final = """
import ctypes, json, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
facts, attempts = json.loads(sys.argv[-1])
results = {}
for name, code in attempts.items():
    try:
        exec(code, {**globals(), **facts})
        results[name] = "possible"
    except PermissionError:
        results[name] = "no"
    except Exception as error:
        results[name] = repr(error)
print(json.dumps(results))
"""
"""A program that attempts what its last argument says, and tells for each attempt whether it was denied."""


def rounds(usual: int) -> int:
    """Return how many rounds an attack goes on: ATTACK_ROUNDS, or what an everyday run can afford."""
    return int(os.environ.get("ATTACK_ROUNDS") or usual)


@contextlib.contextmanager
def exchanging(account: Account | None, *names: Path) -> Iterator[None]:
    """Have an account exchange the first name with the second, the third with the fourth, without end."""
    python = getattr(sys, "_base_executable", sys.executable)  # the virtual environment may be closed to the account
    code = _EXCHANGER.read_text()
    words = [*Identity(account).prefix(), python, "-IS", "-c", code, *map(str, names)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd="/") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b".", "it could not begin"
            yield
            assert process.poll() is None, "it ended early"
        finally:
            process.kill()


def fingerprint(*trees: Path) -> str:
    """Return what changes whenever anything in a tree does: a name, a kind, an owner, a mode, a time or a byte."""
    found = hashlib.sha256()
    for tree in trees:
        for path in sorted((tree, *tree.rglob("*"))):
            facts = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            whose = (facts.st_ino, facts.st_mode, facts.st_uid, facts.st_gid, facts.st_nlink, facts.st_mtime_ns)
            found.update(repr((str(path), whose, content)).encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def attempts(
    installation: Installation, account: Account, facts: dict[str, Any], wanted: dict[str, str]
) -> dict[str, str]:
    """Have an account attempt things; return for each "no" if it was denied."""
    words = [installation.program.python, "-IS", "-c", ATTEMPT, json.dumps([facts, wanted])]
    return dict(json.loads(installation.run_as(account, words)))
