"""A copy of this program that every account can run and only root can write, wherever the original lies.

The original may be an editable install in somebody's home: daemons that hold capabilities must not load code from
there, and accounts without access to that home could not.
"""

import compileall
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

from attrs import frozen

import basestation_runner
from basestation_runner import program
from basestation_runner.errors import RunnerError
from basestation_runner.trust import check_chain

_DISTRIBUTION: Final = "basestation-runner"
_EXTRAS: Final = frozenset({"daemon"})
_BECOME: Final = Path(program.BECOME).name
_LAUNCHER: Final = """\
#!{python} -IS
import sys

sys.path.insert(0, {lib!r})
{prelude}
from basestation_runner.__main__ import main

sys.exit(main())
"""


@frozen
class Program:
    """How to run `runner` in a sandbox: `command` and then its arguments."""

    command: tuple[str, ...]
    python: str  # the interpreter, also for stand-in scripts


def in_place() -> Program:
    """Return the program as it is found now, for daemons that run as the caller."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from basestation_runner.__main__ import main; sys.exit(main())"
    return Program((sys.executable, "-c", code), _interpreter())


def at(path: Path, uid: int) -> Program:
    """Return the installed program `path`. Raises RunnerError unless `uid` can run it and only root can change it."""
    command = str(path.absolute())
    _check_runs([command, "--version"], uid, "other accounts cannot run this program, or can change it")
    return Program((command,), _interpreter())


def install(directory: Path) -> Program:
    """Copy the program and what it needs below `directory`, which only root can write."""
    lib = directory / "lib"
    lib.mkdir(parents=True)
    shutil.copytree(Path(basestation_runner.__file__).parent, lib / "basestation_runner")
    for distribution in _dependencies():
        for source in _top_level(distribution):
            if source.is_dir():
                shutil.copytree(source, lib / source.name, dirs_exist_ok=True)
            else:
                shutil.copy2(source, lib)
    compileall.compile_dir(lib, quiet=2)  # nobody who runs it could store the compiled files
    for folder, _subfolders, files in os.walk(directory):
        Path(folder).chmod(0o755)
        for file in files:
            Path(folder, file).chmod(0o755 if file == _BECOME else 0o644)
    python = _interpreter()
    return Program((str(write_launcher(directory / "runner", python, lib)),), python)


def write_launcher(path: Path, python: str, lib: Path, prelude: str = "") -> Path:
    """Write an executable that runs the program in `lib`, after the Python code `prelude`, and nothing else's code."""
    path.write_text(_LAUNCHER.format(python=python, lib=str(lib), prelude=prelude))
    path.chmod(0o755)
    return path


def check_interpreter(uid: int) -> None:
    """Raise RunnerError unless the account `uid` can run this Python and no account but root can change it."""
    hint = "use Debian's: make clean, then make setup PYTHON=/usr/bin/python3"
    what = "other accounts cannot run this Python, or can change it"
    _check_runs([_interpreter(), "-IS", "-c", ""], uid, what, hint)


def _check_runs(command: list[str], uid: int, what: str, hint: str | None = None) -> None:
    try:
        check_chain(command[0])
        subprocess.run(command, check=True, capture_output=True, cwd="/", user=uid, group=uid, extra_groups=[])
    except (RunnerError, OSError, subprocess.CalledProcessError) as error:
        raise RunnerError(what, where=command[0], hint=hint) from error


def _interpreter() -> str:
    # In a virtual environment sys.executable is a link in the environment; the account that runs it needs the real one.
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def _dependencies() -> Iterator[Distribution]:
    """Yield what the daemons need, directly or not. What a marker leaves out is not installed, and so not found."""
    seen = {_DISTRIBUTION}
    waiting = list(_required(importlib.metadata.distribution(_DISTRIBUTION), _EXTRAS))
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        yield distribution
        waiting.extend(_required(distribution, frozenset()))


def _required(distribution: Distribution, extras: frozenset[str]) -> Iterator[str]:
    for requirement in distribution.requires or ():
        wanted = re.search(r"""\bextra\s*==\s*['"]([^'"]+)""", requirement)
        if wanted is None or wanted[1] in extras:
            yield re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


def _top_level(distribution: Distribution) -> set[Path]:
    """Return the files and folders that a distribution put beside each other where Python imports from."""
    base = Path(str(distribution.locate_file("")))
    found = {base / file.parts[0] for file in distribution.files or ()}
    for name in (distribution.read_text("top_level.txt") or "").split():  # all that old installations record reliably
        found |= {base / name, base / f"{name}.py", *base.glob(f"{name}.*.so")}
    not_code = re.compile(r"\.\.|__pycache__|.*\.(dist-info|egg-info|pth)")
    return {path for path in found if path.exists() and not not_code.fullmatch(path.name)}
