"""Which libraries and which of their versions the compiled program needs of a host: `python -m release.elf FOLDER`.

Read from the files themselves, as the dynamic linker does: it refuses a program for one symbol version that it lacks.
"""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_GLIBC: Final = (2, 35)
"""Ubuntu 22.04's."""

OF_THE_HOST: Final = re.compile(
    r"(ld-linux-[a-z0-9-]+\.so\.\d|lib(c|m|dl|rt|util|pthread)\.so\.\d|libz\.so\.1|libcap\.so\.2|lib(gcc_s|stdc\+\+)\.so\.\d)"
)
"""Libraries that each Debian and Ubuntu has, since dpkg, apt and systemd need them; all others must be bundled."""

_MAGIC: Final = b"\x7fELF"
_KIND_64_LITTLE: Final = b"\x02\x01"
_DYNAMIC: Final = 6
_VERSIONS_NEEDED: Final = 0x6FFFFFFE
_NEEDED_TAG: Final = 1


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class Needs:
    """What one ELF file needs: libraries by name, and symbol versions as (library, version)."""

    libraries: frozenset[str]
    versions: frozenset[tuple[str, str]]


def is_elf(path: Path) -> bool:
    """Given a file, return whether it is an ELF file."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_needs(content: bytes) -> Needs:
    """Given an ELF file's content, return what it needs. Raises ValueError if it is not one, or none of this kind."""
    if content[:4] != _MAGIC or content[4:6] != _KIND_64_LITTLE:
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        sections = list(_sections(content))
        libraries = frozenset(_libraries(content, sections))
        return Needs(libraries, frozenset(_versions(content, sections)))
    except (struct.error, IndexError) as error:
        raise ValueError(f"a damaged ELF file: {error}") from error


def _sections(content: bytes) -> Iterator[_Section]:
    (start,) = struct.unpack_from("<Q", content, 0x28)
    size, number = struct.unpack_from("<HH", content, 0x3A)
    for index in range(number):
        _, kind, _, _, offset, length, link = struct.unpack_from("<IIQQQQI", content, start + index * size)
        yield _Section(kind, offset, length, link)


def _string(content: bytes, table: _Section, offset: int) -> str:
    start = table.offset + offset
    return content[start : content.index(b"\0", start)].decode("ascii", "backslashreplace")


def _libraries(content: bytes, sections: list[_Section]) -> Iterator[str]:
    for section in sections:
        if section.kind == _DYNAMIC:
            for at in range(section.offset, section.offset + section.size, 16):
                tag, value = struct.unpack_from("<QQ", content, at)
                if tag == _NEEDED_TAG:
                    yield _string(content, sections[section.link], value)


def _versions(content: bytes, sections: list[_Section]) -> Iterator[tuple[str, str]]:
    """The lists of .gnu.version_r: for each library its versions; each entry says how far the next one is."""
    for section in sections:
        if section.kind != _VERSIONS_NEEDED:
            continue
        names = sections[section.link]
        library, more = section.offset, True
        while more:
            _, _, file, versions, following = struct.unpack_from("<HHIII", content, library)
            version, last = library + versions, False
            while not last:
                _, _, _, name, next_version = struct.unpack_from("<IHHII", content, version)
                yield _string(content, names, file), _string(content, names, name)
                version, last = version + next_version, not next_version
            library, more = library + following, bool(following)


def too_new(version: str) -> bool:
    """Given a symbol version, return whether it is of a C library newer than MOST_GLIBC, or of no release at all."""
    if not version.startswith("GLIBC_"):
        return False
    found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
    return found is None or (int(found[1]), int(found[2])) > MOST_GLIBC


def faults(folder: Path) -> list[str]:
    """Given the compiled program's folder, return what keeps it from running on every host, one line each."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and is_elf(path)]
    bundled = {path.name for path in files}
    found = []
    for path in files:
        needs = read_needs(path.read_bytes())
        found += [
            f"{path}: {library} needs {version}" for library, version in sorted(needs.versions) if too_new(version)
        ]
        missing = [name for name in sorted(needs.libraries) if name not in bundled and not OF_THE_HOST.fullmatch(name)]
        found += [f"{path}: {name} is not bundled, and not every host has it" for name in missing]
    return found if files else [f"{folder}: no ELF file is in it"]


def main(arguments: list[str]) -> int:
    """Print what is wrong with a folder; return 1 if anything is."""
    found = faults(Path(arguments[0]))
    sys.stderr.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
