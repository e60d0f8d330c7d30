"""What an ELF file needs of a host is read as binutils read it, and what is too new for some host is a fault."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from release import elf
from tests.needs import need

LIBC: Final = next(Path("/lib").glob("*/libc.so.6"))
FILES: Final = [Path(sys.executable).resolve(), LIBC, *sorted(LIBC.parent.glob("lib[a-d]*.so.?"))[:10]]

PROGRAM: Final = """
#define _GNU_SOURCE
#include <{header}>
int main(void) {{ return {call}; }}
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_needs_are_what_objdump_reads(path: Path) -> None:
    need(shutil.which("objdump") is not None, "objdump")
    said = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True).stdout
    _, _, references = said.partition("Version References:\n")
    versions = set()
    for required in re.split(r"^ +required from ", references, flags=re.MULTILINE)[1:]:
        library, _, lines = required.partition(":\n")
        versions |= {(library, version) for version in re.findall(r"^ +0x\S+ 0x\S+ \d+ (\S+)$", lines, re.MULTILINE)}
    needs = elf.read_needs(path.read_bytes())
    assert needs.libraries == set(re.findall(r"^  NEEDED +(\S+)$", said, re.MULTILINE))
    assert needs.versions == versions


@pytest.mark.parametrize(
    ("version", "too_new"),
    [
        ("GLIBC_2.2.5", False),
        ("GLIBC_2.4", False),
        ("GLIBC_2.35", False),
        ("GLIBC_2.36", True),
        ("GLIBC_2.100", True),
        ("GLIBC_3.0", True),
        ("GLIBC_ABI_DT_RELR", True),  # 2.36
        ("GLIBC_PRIVATE", True),
        ("GLIBCXX_3.4.30", False),  # another library's
        ("OPENSSL_3.0.0", False),
    ],
)
def test_a_version_above_ubuntu_22_04s_is_too_new(version: str, too_new: bool) -> None:  # noqa: FBT001 - a parameter
    assert elf.too_new(version) is too_new


def compile_in(folder: Path, header: str, call: str, *options: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "program.c").write_text(PROGRAM.format(header=header, call=call))
    subprocess.run(["gcc", "-o", folder / "runner", folder / "program.c", *options], check=True)


def test_a_folder_in_which_something_needs_a_newer_c_library_is_a_fault_that_names_file_and_version(
    tmp_path: Path,
) -> None:
    need(b"GLIBC_2.36" in LIBC.read_bytes(), "glibc 2.36")
    compile_in(tmp_path / "old", "stdlib.h", "abs(1)")
    assert elf.faults(tmp_path / "old") == []
    compile_in(tmp_path / "new", "stdlib.h", "(int)arc4random()")
    assert elf.faults(tmp_path / "new") == [f"{tmp_path}/new/runner: libc.so.6 needs GLIBC_2.36"]
    assert elf.main([str(tmp_path / "old")]) == 0
    assert elf.main([str(tmp_path / "new")]) == 1


def test_a_library_that_not_every_host_has_must_be_bundled(tmp_path: Path) -> None:
    (tmp_path / "own.c").write_text("int own(void) { return 0; }\n")
    library = tmp_path / "libown.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, tmp_path / "own.c"], check=True
    )
    compile_in(tmp_path / "folder", "stdio.h", "({ extern int own(void); own(); })", str(library))
    fault = f"{tmp_path}/folder/runner: libown.so.1 is not bundled, and not every host has it"
    assert elf.faults(tmp_path / "folder") == [fault]
    shutil.copy(library, tmp_path / "folder")
    assert elf.faults(tmp_path / "folder") == []


def test_a_folder_without_a_program_is_a_fault(tmp_path: Path) -> None:
    assert elf.faults(tmp_path) == [f"{tmp_path}: no ELF file is in it"]


@given(st.data())
def test_a_damaged_file_is_refused_and_nothing_else(data: st.DataObject) -> None:
    content = bytearray(FILES[-1].read_bytes()[:40000])
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.one_of(st.integers(0, 63), st.integers(0, len(content) - 1)))
        content[at] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        elf.read_needs(cut)
    except ValueError:
        return


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + b"\0" * 60])
def test_what_is_no_64_bit_elf_file_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF file"):
        elf.read_needs(content)
