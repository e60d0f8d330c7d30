"""The one-file program: it becomes what it holds, and unpacks that where nobody else can change it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from release import onefile
from tests.release.conftest import NOBODY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.release.conftest import OneFile

WITH_CAPABILITIES = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=+setuid,+setgid", "--ambient-caps=+setuid,+setgid",
)  # fmt: skip

WITHOUT_TMP = (
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    f'mount -t tmpfs -o ro tmpfs /tmp; exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups "$@"', "sh",
)  # fmt: skip


def only_folder(place: Path) -> Path:
    """Return the one folder that has been unpacked there."""
    (folder,) = (path for path in place.iterdir() if path.name.startswith("1.2-"))
    return folder


LIBRARY_SIGNALS: Final = 1 << 31 | 1 << 32
"""Signals 32 and 33: nobody's to set, and ignored below whoever was started by posix_spawn."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_becomes_the_program_in_the_same_process_with_everything_as_it_is(one_file: OneFile) -> None:
    start = subprocess.Popen(
        ["env", "--default-signal", "--ignore-signal=USR1", str(one_file.file), "one", "two words"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={"ONLY": "this"}, text=True, umask=0o027,
    )  # fmt: skip
    first, *lines = start.communicate()[0].splitlines()
    assert start.returncode == 0
    folder = only_folder(one_file.cache)
    assert first == f"{start.pid} 0027 {folder}/runner one two words"
    (ignored,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")]
    assert ignored & ~LIBRARY_SIGNALS == 1 << signal.SIGUSR1 - 1
    assert [line for line in lines if "=" in line] == ["ONLY=this"]
    # The script is what the shell reads.
    assert {line for line in lines if line.startswith(f"open {one_file.top}")} == {f"open {folder}/runner"}


def test_what_root_unpacks_every_account_can_read_and_root_alone_can_write(one_file: OneFile) -> None:
    assert one_file.run().returncode == 0
    folder = only_folder(one_file.cache)
    assert contents(folder) == contents(one_file.folder)
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (folder, *folder.rglob("*"))}
    assert modes == {folder.name: 0o755, "inner": 0o755, "runner": 0o755, "library.so": 0o644}
    assert {path.stat().st_uid for path in folder.rglob("*")} == {0}
    assert f" {folder}/runner " in one_file.run(user=NOBODY).stdout


def test_it_unpacks_once_and_only_below_the_users_cache(one_file: OneFile) -> None:
    home = one_file.home(NOBODY)
    first = one_file.run(*WITHOUT_TMP, cache=home)
    assert first.returncode == 0, first.stderr
    folder = only_folder(home / "basestation-runner")
    inode = folder.stat().st_ino
    assert one_file.run(user=NOBODY, cache=home).returncode == 0
    assert only_folder(home / "basestation-runner").stat().st_ino == inode
    assert not one_file.cache.exists()


def test_what_is_installed_comes_first(one_file: OneFile) -> None:
    one_file.run()
    folder = only_folder(one_file.cache)
    shutil.copytree(folder, one_file.installed / folder.name)
    shutil.rmtree(one_file.cache)
    assert f" {one_file.installed / folder.name}/runner " in one_file.run().stdout
    assert not one_file.cache.exists()


def test_with_capabilities_it_runs_roots_files_and_keeps_them(one_file: OneFile) -> None:
    one_file.run()
    done = one_file.run(*WITH_CAPABILITIES)
    assert done.returncode == 0, done.stderr
    for name in ("CapAmb", "CapPrm", "CapEff"):
        assert f"{name}:\t00000000000000c0" in done.stdout


def test_with_capabilities_it_refuses_files_that_its_account_could_change(one_file: OneFile) -> None:
    home = one_file.home(NOBODY)
    assert one_file.run(user=NOBODY, cache=home).returncode == 0
    done = one_file.run(*WITH_CAPABILITIES, cache=home)
    assert done.returncode == 1
    assert done.stderr == (
        f"runner: {one_file.file}: with capabilities it runs only from files that root alone can write "
        f"(as root: {one_file.file} install)\n"
    )
    one_file.run()
    os.chown(only_folder(one_file.cache) / "inner" / "library.so", NOBODY, 0)
    assert one_file.run(*WITH_CAPABILITIES, cache=home).returncode == 1


def test_a_set_user_id_copy_runs_nothing_from_the_environment(one_file: OneFile) -> None:
    home = one_file.home(NOBODY)
    os.chown(one_file.file, NOBODY, -1)
    one_file.file.chmod(0o4755)
    done = one_file.run(user=NOBODY - 1, cache=home)
    assert done.returncode == 1
    assert "root alone" in done.stderr
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", ["", "inner", "inner/library.so", "runner"])
def test_files_that_others_could_write_are_not_executed_but_made_anew(one_file: OneFile, name: str) -> None:
    one_file.run()
    path = only_folder(one_file.cache) / name
    path.chmod(path.stat().st_mode | 0o020)
    assert f" {one_file.cache}/" in one_file.run().stdout
    path = only_folder(one_file.cache) / name
    assert not path.stat().st_mode & 0o022


def test_a_place_that_others_could_write_is_refused(one_file: OneFile) -> None:
    home = one_file.home(NOBODY)
    home.chmod(0o770)
    done = one_file.run(user=NOBODY, cache=home)
    assert done.returncode == 1
    assert f"runner: {home}: others could change what is unpacked below it (chmod go-w it" in done.stderr


def test_without_a_place_it_says_what_to_do(one_file: OneFile) -> None:
    done = one_file.run(user=NOBODY)
    assert done.returncode == 1
    assert "there is no directory to unpack it to (set XDG_CACHE_HOME, or as root install it)" in done.stderr


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_what_has_been_damaged_on_the_disk_is_made_anew(one_file: OneFile, harm: str) -> None:
    one_file.run()
    library = only_folder(one_file.cache) / "inner" / "library.so"
    if harm == "removed":
        library.unlink()
    else:
        os.truncate(library, 10)
    assert one_file.run().returncode == 0
    assert contents(only_folder(one_file.cache)) == contents(one_file.folder)


def test_what_a_killed_start_left_behind_is_made_away_with(one_file: OneFile) -> None:
    left = one_file.cache / ".unfinished" / "inner"
    left.mkdir(parents=True)
    (left / "library.so").write_bytes(b"half")
    assert one_file.run().returncode == 0
    assert contents(only_folder(one_file.cache)) == contents(one_file.folder)
    assert not (one_file.cache / ".unfinished").exists()


def test_many_first_starts_at_once_unpack_one_folder_and_all_run(one_file: OneFile) -> None:
    starts = [subprocess.Popen([one_file.file], stdout=subprocess.PIPE, env={}) for _ in range(8)]
    outputs = [start.communicate()[0] for start in starts]
    assert {start.returncode for start in starts} == {0}
    assert all(output for output in outputs)
    assert sorted(path.name for path in one_file.cache.iterdir()) == [".lock", only_folder(one_file.cache).name]


def test_a_file_that_is_not_whole_says_so(one_file: OneFile) -> None:
    os.truncate(one_file.file, one_file.file.stat().st_size - 1)
    done = one_file.run()
    assert (done.returncode, done.stderr) == (1, f"runner: {one_file.file}: it is not whole (copy it anew)\n")


def test_a_damaged_file_unpacks_to_nothing(one_file: OneFile) -> None:
    content = bytearray(one_file.file.read_bytes())
    content[content.rindex(b"(\xb5/\xfd") + 40] ^= 1  # in the last zstd frame
    one_file.file.write_bytes(content)
    done = one_file.run()
    assert (done.returncode, done.stderr) == (1, f"runner: {one_file.file}: it is damaged (copy it anew)\n")
    assert not [path for path in one_file.cache.iterdir() if path.name.startswith("1.2-")]


def test_another_content_gets_another_folder_and_the_same_the_same(one_file: OneFile) -> None:
    whole = one_file.file.read_bytes()
    one_file.run()
    (one_file.folder / "inner" / "library.so").touch()
    one_file.pack()
    assert one_file.file.read_bytes() == whole
    (one_file.folder / "inner" / "library.so").write_bytes(b"newer")
    one_file.pack()
    one_file.run()
    assert len([path for path in one_file.cache.iterdir() if path.name.startswith("1.2-")]) == 2


def test_a_link_cannot_be_packed(tmp_path: Path) -> None:
    (tmp_path / "runner").symlink_to("/bin/true")
    with pytest.raises(ValueError, match="neither a file nor a directory"):
        onefile.pack(b"", tmp_path, "1")
