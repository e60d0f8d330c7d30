"""The hook for pre-commit: what it is installed as, without any extra, and which files it is given."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).parents[1]
FILES = {
    "hosts/one/sites.yaml": "a: {watch_dir: /srv/a, runner_user: b, applications: [extra]}\n",
    "hosts/one/applications.yaml": "applications: [{name: extra, scripts: [Extra.py]}]\n",
    "hosts/two/sites.yml": "a: {watch_dir: srv, runner_user: b}\n",
    "hosts/websites.yaml": "[",
    "sites.yaml.orig": "[",
}


def hook() -> dict[str, Any]:
    (found,) = YAML(typ="safe", pure=True).load(TOP / ".pre-commit-hooks.yaml")
    return dict(found)


def dependencies(name: str) -> Iterator[Distribution]:
    """Yield what a distribution needs without any extra, directly or not."""
    for requirement in distribution(name).requires or ():
        needed = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if re.search(r"\bextra\s*==", requirement):
            continue
        with suppress(PackageNotFoundError):  # what this Python does not need
            yield distribution(needed)
            yield from dependencies(needed)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment as pre-commit does, but from what is installed here; return where its programs are."""
    top = tmp_path_factory.mktemp("hook")
    source = top / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, source)
    shutil.copytree(TOP / "basestation_runner", source / "basestation_runner")
    python = top / "environment/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])], check=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    alone = ["--no-index", "--no-deps"]
    subprocess.run([*pip, "wheel", *alone, "--no-build-isolation", f"--wheel-dir={top}", str(source)], check=True)
    (wheel,) = top.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", *alone, str(wheel)], check=True)
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    for dependency in dependencies("basestation-runner"):
        base = Path(str(dependency.locate_file("")))
        for name in {file.parts[0] for file in dependency.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(base / name)
    return python.parent


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def run(programs: Path, repository: Path, *files: str) -> tuple[int, list[str]]:
    """Run the hook as pre-commit does; return its status and its lines."""
    program, *arguments = shlex.split(hook()["entry"])
    command = [str(programs / program), *arguments, *files]
    done = subprocess.run(
        command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, [line.removeprefix(f"{repository}/") for line in done.stdout.splitlines()]


def test_the_hook_is_given_the_files_of_sites_and_of_applications() -> None:
    assert [name for name in FILES if re.search(hook()["files"], name)] == list(FILES)[:3]


def test_the_hook_is_installed_without_what_only_daemons_need(programs: Path) -> None:
    found = subprocess.run(
        [
            str(programs / "python"),
            "-c",
            "import importlib.util as u; print(*map(u.find_spec, ['prctl', 'pyinotify']))",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "None None\n"


def test_the_hook_says_what_is_wrong_with_the_files_that_it_is_given(programs: Path, repository: Path) -> None:
    assert run(programs, repository, "hosts/one/sites.yaml", "hosts/two/sites.yml") == (
        1,
        [
            "hosts/two/sites.yml:1:16: a.watch_dir: 'srv' is not an absolute path (write the whole path from / on)",
            "hosts/one/sites.yaml: ok (1 site)",
            "hosts/one/applications.yaml: ok (1 application)",
        ],
    )


def test_profiles_that_are_committed_alone_are_checked_with_the_sites_beside_them(
    programs: Path, repository: Path
) -> None:
    (repository / "hosts/one/applications.yaml").write_text("{}\n")
    status, lines = run(programs, repository, "hosts/one/applications.yaml")
    assert status == 1
    assert lines[0].startswith("hosts/one/sites.yaml:1:55: a.applications[0]: application extra is not defined")
