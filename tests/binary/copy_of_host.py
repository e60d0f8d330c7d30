"""This host's files, of which a test can change what it likes: what is written goes to a directory of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

FILE: Final = "/srv/runner"
"""Where the one-file program is."""

_MOUNT: Final = """
set -e
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount -t tmpfs tmpfs root/run
mount -t tmpfs -o mode=1777 tmpfs root/tmp
cp "$1" root/srv/runner
rm -rf root/usr/lib/python3* root/usr/bin/python3*
echo ready
exec sleep infinity
"""


class CopyOfHost:
    """The copy, in a mount namespace of its own; without Python, and with the one-file program in /srv."""

    def __init__(self, binary: Path) -> None:
        """Make the copy."""
        self._top: Final = Path(tempfile.mkdtemp(dir="/var/tmp"))  # what can be an upper layer
        for name in ("upper", "work", "root"):
            (self._top / name).mkdir()
        self._holder: Final = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, "sh", binary],
            cwd=self._top,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self._end()
            raise OSError("no copy of this host can be made")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._holder.kill()
        self._holder.communicate()
        shutil.rmtree(self._top)

    def command(self, *words: str, user: int = 0) -> list[str]:
        """Return the command that executes a program there, in the same process, with an environment from nothing."""
        enter = [
            "nsenter",
            f"--target={self._holder.pid}",
            "--mount",
            "chroot",
            f"--userspec={user}:{user}",
            "--groups=",
        ]
        return [*enter, str(self._top / "root"), "env", "-i", "PATH=/usr/bin:/bin", *words]

    def run(self, *words: str, user: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program there."""
        command = self.command(*words, user=user)
        return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def check(self, *words: str, user: int = 0) -> str:
        """Run a program there that must not fail; return what it wrote."""
        done = self.run(*words, user=user)
        assert done.returncode == 0, (words, done)
        return done.stdout

    def sh(self, script: str) -> str:
        """Run a shell script as root that must not fail; return what it wrote."""
        return self.check("sh", "-euc", script)

    def written(self) -> set[str]:
        """Return the names of files and links that are not as on this host."""
        upper = self._top / "upper"
        found = (path for path in upper.rglob("*") if path.is_symlink() or not path.is_dir())
        return {str(path.relative_to(upper)) for path in found if not path.match("python3*")}
