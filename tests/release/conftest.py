"""One-file programs of these tests' own: a shell script for the compiled program, and directories for the host's."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from release import onefile
from tests.needs import need

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP: Final = Path(__file__).parents[2]
NOBODY: Final = 65534

PAYLOAD: Final = """#!/bin/sh
echo "$$ $(umask) $0 $*"
readlink /proc/$$/fd/* | sed 's/^/open /'
cat /proc/$$/status
tr '\\0' '\\n' </proc/$$/environ
"""


class OneFile:
    """A one-file program whose directories on the host are below `top`."""

    def __init__(self, top: Path, stub: bytes) -> None:
        """Append a folder to what unpacks it."""
        self.top: Final = top
        self.installed: Final = top / "lib"
        self.cache: Final = top / "cache"
        self.folder: Final = top / "folder"
        self.file: Final = top / "runner"
        self._stub: Final = stub
        (self.folder / "inner").mkdir(parents=True)
        (self.folder / "runner").write_text(PAYLOAD)
        (self.folder / "runner").chmod(0o755)
        (self.folder / "inner" / "library.so").write_bytes(b"library" * 1000)
        self.pack()

    def pack(self) -> None:
        """Make the file of what the folder holds now."""
        self.file.write_bytes(onefile.pack(self._stub, self.folder, "1.2"))
        self.file.chmod(0o755)

    def home(self, user: int) -> Path:
        """Make a directory that belongs to a user."""
        home = self.top / f"home-{user}"
        home.mkdir(mode=0o700)
        shutil.chown(home, user, user)
        return home

    def run(self, *words: str, user: int = 0, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run it with an environment that holds nothing but XDG_CACHE_HOME, if that is given."""
        environment = {} if cache is None else {"XDG_CACHE_HOME": str(cache)}
        return subprocess.run(
            [*words, str(self.file), "an argument"],
            user=user, group=user, extra_groups=[], env=environment, cwd="/",
            capture_output=True, text=True, check=False, umask=0o077,
        )  # fmt: skip


@pytest.fixture(scope="session")
def stub(privileged: None) -> Iterator[tuple[Path, bytes]]:  # noqa: ARG001 - only for what it decides
    """What unpacks, and the directory that it takes for the host's."""
    library = subprocess.run(["gcc", "-print-file-name=libzstd.a"], capture_output=True, text=True, check=True).stdout
    need(library.startswith("/") and shutil.which("zstd") is not None, "libzstd-dev and zstd")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:  # not /tmp, which one test takes away
        top = Path(scratch, "host")
        places = (f'-DINSTALLED="{top}/lib"', f'-DCACHE="{top}/cache"')
        source = TOP / "packaging" / "onefile" / "runner.c"
        options = ("-static", "-O1", "-Wall", "-Wextra", "-Werror", *places)
        subprocess.run(["gcc", *options, "-o", f"{scratch}/stub", str(source), "-lzstd"], check=True)
        Path(scratch).chmod(0o755)
        yield top, Path(scratch, "stub").read_bytes()


@pytest.fixture
def one_file(stub: tuple[Path, bytes]) -> Iterator[OneFile]:
    top, program = stub
    top.mkdir()
    yield OneFile(top, program)
    shutil.rmtree(top)
