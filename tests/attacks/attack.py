"""What the attacks share: how long they go on, who carries them out, and how it is seen that nothing has changed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from basestation_runner.sandbox.process import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.nss import Account

_EXCHANGER: Final = Path(__file__).with_name("exchanger.py")


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
