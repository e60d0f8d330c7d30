"""That the helper finds every way in which others than root could decide what it does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import basestation_runner
from basestation_runner import trust
from basestation_runner.errors import RunnerError
from basestation_runner.trust import check_chain, read_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOMEBODY: Final = 65534

privileged = pytest.mark.usefixtures("privileged")


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that root alone can write, in directories that root alone can write."""
    path = tmp_path / "etc" / "runner" / "sites.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("sites: {}\n")
    path.chmod(0o644)
    for directory in (path.parent, path.parent.parent):
        directory.chmod(0o755)
    return path


@pytest.fixture
def sticky(tmp_path: Path) -> Path:
    directory = tmp_path / "sticky"
    directory.mkdir()
    directory.chmod(0o1777)
    return directory


def give_away(path: Path) -> None:
    os.chown(path, SOMEBODY, -1, follow_symlinks=False)


def mode(number: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.chmod(number)

    change.__name__ = f"mode {number:o}"
    return change


def culprit(path: Path | str) -> str:
    """Return what is to blame that `path` cannot be trusted."""
    with pytest.raises(RunnerError) as error:
        check_chain(str(path))
    assert error.value.where is not None
    assert error.value.hint
    return error.value.where


# The file and every directory above it


@privileged
def test_what_root_alone_can_write_is_trusted_also_below_a_sticky_directory(file: Path, sticky: Path) -> None:
    check_chain(str(file))
    own = sticky / "own"
    own.touch()
    check_chain(str(own))


@privileged
@pytest.mark.parametrize("change", [give_away, mode(0o664), mode(0o646), mode(0o666), mode(0o1666), mode(0o020)])
def test_a_file_that_others_can_write_is_not_trusted(file: Path, change: Callable[[Path], None]) -> None:
    change(file)
    assert culprit(file) == str(file)


@privileged
@pytest.mark.parametrize("change", [give_away, mode(0o775), mode(0o757), mode(0o777), mode(0o730)])
@pytest.mark.parametrize("above", [0, 1, 2])
def test_a_directory_above_that_others_can_write_is_not_trusted(
    file: Path, change: Callable[[Path], None], above: int
) -> None:
    change(file.parents[above])
    assert culprit(file) == str(file.parents[above])


@privileged
def test_the_sticky_directory_of_somebody_else_is_not_trusted(sticky: Path) -> None:
    (sticky / "file").touch()
    give_away(sticky)
    assert culprit(sticky / "file") == str(sticky)


@privileged
def test_somebody_elses_file_in_a_sticky_directory_is_not_trusted(sticky: Path) -> None:
    (sticky / "file").touch()
    give_away(sticky / "file")
    assert culprit(sticky / "file") == str(sticky / "file")


IN_NEW_ROOT: Final = """
import os, sys
sys.path.insert(0, sys.argv[1])
from basestation_runner.trust import check_chain
os.chroot(sys.argv[2])
check_chain("/file")
"""


@privileged
@pytest.mark.parametrize(("number", "trusted"), [(0o755, True), (0o1777, True), (0o777, False), (0o775, False)])
def test_the_root_directory_counts_too(tmp_path: Path, number: int, trusted: bool) -> None:  # noqa: FBT001
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").touch(mode=0o644)
    root.chmod(number)
    package = Path(basestation_runner.__file__).parents[1]
    command = [sys.executable, "-ISc", IN_NEW_ROOT, str(package), str(root)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode == 0) == trusted
    assert trusted or "RunnerError: /: " in run.stderr


# Links


@privileged
def test_links_of_root_are_followed_also_in_a_sticky_directory(file: Path, sticky: Path) -> None:
    (sticky / "link").symlink_to(file)
    (file.parent / "relative").symlink_to("../../sticky/link")
    (file.parent / "directory").symlink_to(file.parent)
    for path in (sticky / "link", file.parent / "relative", file.parent / "directory" / "sites.yaml"):
        check_chain(str(path))


@privileged
def test_somebody_elses_link_in_a_sticky_directory_is_not_trusted(file: Path, sticky: Path) -> None:
    (sticky / "link").symlink_to(file)
    give_away(sticky / "link")
    assert culprit(sticky / "link") == str(sticky / "link")


@privileged
def test_a_link_in_a_directory_that_others_can_write_is_not_trusted(file: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(file)
    (file.parent / "second").symlink_to(tmp_path / "open" / "link")
    (tmp_path / "open").chmod(0o777)
    assert culprit(tmp_path / "open" / "link") == str(tmp_path / "open")
    assert culprit(file.parent / "second") == str(tmp_path / "open")


@privileged
@pytest.mark.parametrize("target", ["{open}/file", "../../open/file", "../runner/../../open/../open/file", "to/file"])
def test_a_link_is_not_trusted_when_others_can_write_where_it_leads(file: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").touch(mode=0o644)
    (tmp_path / "open").chmod(0o777)
    (file.parent / "to").symlink_to("../../open")
    (file.parent / "link").symlink_to(target.format(open=tmp_path / "open"))
    assert culprit(file.parent / "link") == str(tmp_path / "open")


@privileged
def test_a_step_upwards_after_a_link_leads_to_the_parent_of_where_the_link_leads(file: Path, tmp_path: Path) -> None:
    (tmp_path / "open" / "deep").mkdir(parents=True)
    (tmp_path / "open" / "sites.yaml").touch(mode=0o644)
    (tmp_path / "open").chmod(0o777)
    (file.parent / "link").symlink_to(tmp_path / "open" / "deep")
    assert culprit(f"{file.parent}/link/../sites.yaml") == str(tmp_path / "open")
    with pytest.raises(RunnerError):
        read_config(f"{file.parent}/link/../sites.yaml", privileged=True)


@privileged
def test_steps_upwards_beyond_the_root_stay_there(file: Path) -> None:
    (file.parent / "link").symlink_to("../" * 40 + str(file))
    check_chain(str(file.parent / "link"))
    file.chmod(0o666)
    assert culprit(file.parent / "link") == str(file)


@privileged
def test_links_that_lead_to_each_other_are_not_followed_for_ever(file: Path) -> None:
    (file.parent / "first").symlink_to("second")
    (file.parent / "second").symlink_to(file.parent / "first")
    assert culprit(file.parent / "first") == str(file.parent / "first")


@privileged
def test_as_many_links_are_followed_as_the_kernel_follows(file: Path) -> None:
    target = file.name
    for number in range(1, 42):
        (file.parent / f"link{number}").symlink_to(target)
        target = f"link{number}"
    check_chain(str(file.parent / "link40"))
    assert (file.parent / "link40").read_text()
    assert culprit(file.parent / "link41") == str(file.parent / "link41")
    with pytest.raises(OSError, match="symbolic links"):
        (file.parent / "link41").read_text()


# What is missing


@privileged
def test_what_is_missing_is_safe_where_root_alone_can_make_it(file: Path) -> None:
    check_chain(str(file.parent / "missing"))
    check_chain(str(file.parent / "missing" / "deeper"))


@privileged
@pytest.mark.parametrize("name", ["missing", "missing/deeper"])
def test_what_is_missing_is_not_trusted_where_others_can_make_it(file: Path, sticky: Path, name: str) -> None:
    assert culprit(sticky / name) == str(sticky / "missing")
    (file.parent / "link").symlink_to(sticky / name)
    assert culprit(file.parent / "link") == str(sticky / "missing")


@privileged
def test_what_is_in_an_archive_is_as_safe_as_the_archive(file: Path) -> None:
    check_chain(str(file / "inside" / "module.py"))
    file.chmod(0o666)
    assert culprit(file / "inside" / "module.py") == str(file)


# Many files


@privileged
def test_what_was_found_safe_is_remembered_and_what_was_not_is_not(file: Path) -> None:
    known: set[str] = set()
    check_chain(str(file.parent), known)
    assert {str(file.parent), str(file.parents[1]), "/"} <= known
    file.chmod(0o666)
    for _ in range(2):
        with pytest.raises(RunnerError):
            check_chain(str(file), known)
    assert str(file) not in known


@privileged
def test_a_link_is_followed_again_although_where_it_leads_is_known(file: Path, sticky: Path) -> None:
    known: set[str] = set()
    (file.parent / "link").symlink_to(file)
    check_chain(str(file.parent / "link"), known)
    (file.parent / "link").unlink()
    (sticky / "file").touch()
    give_away(sticky / "file")
    (file.parent / "link").symlink_to(sticky / "file")
    with pytest.raises(RunnerError):
        check_chain(str(file.parent / "link"), known)


# Config files


@privileged
def test_a_config_file_is_read_through_links_and_from_the_working_directory(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / "link").symlink_to(file)
    monkeypatch.chdir(file.parent)
    for path in (str(file), str(file.parent / "link"), "sites.yaml", "./link", "../runner/sites.yaml"):
        assert read_config(path, privileged=True) == b"sites: {}\n"


@privileged
@pytest.mark.parametrize("change", [give_away, mode(0o664), mode(0o646)])
@pytest.mark.parametrize("which", ["file", "parent"])
def test_a_config_file_that_others_can_change_is_refused(
    file: Path, change: Callable[[Path], None], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = file if which == "file" else file.parent
    change(target)
    monkeypatch.chdir(file.parent)
    for path in (str(file), "sites.yaml"):
        with pytest.raises(RunnerError) as error:
            read_config(path, privileged=True)
        assert error.value.where == str(target)


@privileged
@pytest.mark.parametrize("change", [give_away, mode(0o664), mode(0o646)])
def test_the_open_config_file_counts_not_the_one_that_had_its_name(
    file: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "check_chain", lambda _: change(file))
    with pytest.raises(RunnerError, match="others than root"):
        read_config(str(file), privileged=True)


@privileged
def test_a_missing_config_file_is_told_from_one_that_others_could_make(file: Path, sticky: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_config(str(file.parent / "missing"), privileged=True)
    with pytest.raises(RunnerError):
        read_config(str(sticky / "missing"), privileged=True)


def test_a_helper_without_capabilities_reads_what_its_account_can_read(file: Path) -> None:
    file.chmod(0o666)
    file.parent.chmod(0o777)
    assert read_config(str(file), privileged=False) == b"sites: {}\n"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_config_that_is_no_regular_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "odd")
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(RunnerError, match="regular file"):
        read_config(str(tmp_path / "odd"), privileged=False)
    assert set(Path("/proc/self/fd").iterdir()) == before


# The program itself


CHECK: Final = """
import sys
sys.path.insert(0, sys.argv[1])
import basestation_runner.privexec
from basestation_runner.errors import RunnerError
from basestation_runner import trust
exec(sys.argv[2], {"place": sys.argv[1], "trust": trust})
try:
    trust.check_program()
except RunnerError as error:
    print(error.where, end="")
"""


@pytest.fixture
def program(privileged: None, tmp_path: Path) -> Path:  # noqa: ARG001 - only for what it decides
    """A directory with a copy of the package that belongs to root."""
    place = tmp_path / "lib"
    package = Path(basestation_runner.__file__).parent
    names = ("__init__.py", "errors.py", "program.py", "trust.py", "privexec/__init__.py")
    for name in names:
        target = place / "basestation_runner" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package / name, target)
        target.chmod(0o644)
    (place / "extra").mkdir()
    (place / "extra" / "file").write_text("x" * 4096)
    return place


def found_in(program: Path, more: str = "") -> str:
    """Run the check in the interpreter that this one is, without its virtual environment; return the culprit."""
    python = os.path.realpath(sys.executable)
    command = [python, "-IS", "-c", CHECK, str(program), more]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_a_program_of_roots_files_is_trusted(program: Path) -> None:
    assert not found_in(program)


@pytest.mark.parametrize("change", [give_away, mode(0o777)])
@pytest.mark.parametrize(
    "name",
    [
        "",
        "basestation_runner",
        "basestation_runner/errors.py",
        "basestation_runner/__pycache__",
        "basestation_runner/privexec/__init__.py",
    ],
)
def test_a_program_with_a_module_that_others_can_change_is_not(
    program: Path, change: Callable[[Path], None], name: str
) -> None:
    (program / "basestation_runner" / "__pycache__").mkdir()
    change(program / name)
    assert found_in(program) == str(program / name)


def test_a_compiled_module_that_others_can_change_counts(program: Path) -> None:
    assert not found_in(program)
    (compiled,) = (program / "basestation_runner" / "__pycache__").glob("errors.*.pyc")
    give_away(compiled)
    assert found_in(program) == str(compiled)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("import sys; sys.path.append(place + '/extra')", id="import path"),
        pytest.param("import os, sys; os.chdir(place + '/extra'); sys.path.append('')", id="working directory"),
        pytest.param("import os, sys; os.chdir(place); sys.path.append('extra')", id="relative import path"),
        pytest.param("trust.program.EXECUTABLE = place + '/extra/file'", id="executable"),
        pytest.param(
            "import mmap; file = open(place + '/extra/file', 'rb');"
            "import builtins; builtins.kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)",
            id="mapped library",
        ),
    ],
)
def test_whatever_else_code_can_come_from_counts(program: Path, more: str) -> None:
    assert not found_in(program, more)
    (program / "extra").chmod(0o777)
    assert found_in(program, more) == str(program / "extra")


@pytest.mark.parametrize("name", ["extra/not-loaded-yet.so", "extra/folder"])
def test_of_a_compiled_program_the_whole_folder_counts(program: Path, name: str) -> None:
    (program / "extra" / "not-loaded-yet.so").touch(mode=0o644)
    (program / "extra" / "folder").mkdir()
    more = "trust.program.COMPILED = True; trust.program.EXECUTABLE = place + '/extra/file'"
    assert not found_in(program, more)
    give_away(program / name)
    assert found_in(program, more) == str(program / name)


def test_mapped_memory_whose_file_is_gone_is_nothing_that_others_can_change(program: Path, sticky: Path) -> None:
    more = f"""
import builtins, mmap, os
with open({str(sticky / "file")!r}, "w+b") as file:
    file.write(bytes(4096))
    file.flush()
    builtins.kept = mmap.mmap(file.fileno(), 0)
os.unlink(file.name)
"""
    assert not found_in(program, more)


def test_an_import_path_that_others_could_make_is_not_trusted(program: Path, sticky: Path) -> None:
    missing = sticky / "missing"
    assert found_in(program, f"import sys; sys.path.append({str(missing)!r})") == str(missing)
