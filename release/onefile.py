"""Append the compiled program's folder to the program that unpacks it: `python -m release.onefile STUB FOLDER OUTPUT`.

What the file consists of is said in packaging/onefile/runner.c. The same folder gives the same file.
"""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC: Final = b"basestation-run\n"
_TRAILER: Final = struct.Struct("<64sQQ16s")


def pack(stub: bytes, folder: Path, version: str) -> bytes:
    """Given the unpacking program, the folder, which must hold `runner`, and its version, return the one file.

    Raises ValueError if there is something in the folder that is neither a file nor a directory.
    """
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch, "archive.tar")
        with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
            for path in sorted(folder.rglob("*")):
                _add(tar, path, str(path.relative_to(folder)))
        compressed = Path(scratch, "archive.tar.zst")
        subprocess.run(["zstd", "-q", "-12", "--check", str(archive), "-o", str(compressed)], check=True)
        payload = compressed.read_bytes()
    index = "".join(_index(folder)).encode()
    name = f"{version}-{hashlib.sha256(payload).hexdigest()[:16]}".encode()
    if len(name) >= 64:  # noqa: PLR2004 - the trailer's field, which ends with a zero byte
        raise ValueError(f"the version is too long: {version}")
    return stub + payload + index + _TRAILER.pack(name, len(payload), len(index), MAGIC)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file or a directory without its owner, times and what else is the building machine's own."""
    entry = tarfile.TarInfo(name)
    if path.is_dir() and not path.is_symlink():
        entry.type = tarfile.DIRTYPE
        entry.mode = 0o755
        tar.addfile(entry)
        return
    if not path.is_file() or path.is_symlink():
        raise ValueError(f"{path}: neither a file nor a directory")
    entry.size = path.stat().st_size
    entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    with path.open("rb") as content:
        tar.addfile(entry, content)


def _index(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield f"{path.stat().st_size} {path.relative_to(folder)}\n"


def main(arguments: list[str]) -> None:
    """Write the one file; the program in the folder says its version."""
    stub, folder, output = map(Path, arguments)
    said = subprocess.run([folder / "runner", "--version"], check=True, capture_output=True, text=True).stdout
    whole = pack(stub.read_bytes(), folder, said.split()[1])
    output.write_bytes(whole)
    output.chmod(0o755)


if __name__ == "__main__":
    main(sys.argv[1:])
