"""Config files parsed in another process: the same result and the same faults as in this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import basestation_runner
from basestation_runner.config import apart
from basestation_runner.config.load import ConfigErrors, Source, load_sources
from basestation_runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterator

SITES = b"one: {watch_dir: /srv/one/rundir, runner_user: runner-one, groups: [data, 7], env: {A: b}}\n"
APPLICATIONS = b"applications:\n  - {name: mine, scripts: [Mine.py]}\n"


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be this program: the tests' own command line starts pytest."""
    path = str(Path(basestation_runner.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {path!r}); from basestation_runner.__main__ import main; sys.exit(main())"
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", code, "watch"])
    monkeypatch.setattr(sys, "argv", ["-c", "watch"])
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names are enough
    yield
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


def test_a_config_is_the_same() -> None:
    config = apart.load(("sites.yaml", SITES), ("applications.yaml", APPLICATIONS))
    assert config == load_sources(Source("sites.yaml", SITES), Source("applications.yaml", APPLICATIONS))
    assert config.digest("one") == load_sources(
        Source("sites.yaml", SITES), Source("applications.yaml", APPLICATIONS)
    ).digest("one")


@pytest.mark.parametrize("text", [b"one: {}\n", b"\xff", b"- [", b"one: {watch_dir: relative, groups: []}\n", b""])
def test_faults_are_the_same(text: bytes) -> None:
    with pytest.raises(ConfigErrors) as here:
        load_sources(Source("sites.yaml", text), None)
    with pytest.raises(ConfigErrors) as there:
        apart.load(("sites.yaml", text), None)
    assert str(there.value) == str(here.value)
    assert there.value.faults == here.value.faults


def test_a_large_config_passes() -> None:
    sites = b"".join(b"site%d: {watch_dir: /srv/%d/rundir, runner_user: runner-%d}\n" % (n, n, n) for n in range(300))
    assert len(apart.load(("sites.yaml", sites), None).sites) == 300


def test_a_process_that_fails_is_a_fault_with_its_words_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", "import sys; sys.exit('no memory')", "watch"])
    with pytest.raises(RunnerError, match="cannot be parsed"):
        apart.load(("sites.yaml", SITES), None)
    assert "no memory" in capfd.readouterr().err


def test_whoever_does_not_wait_for_an_answer_leaves_no_process_behind() -> None:
    with apart.begin(("sites.yaml", SITES), None) as parsing:
        assert Path(f"/proc/{parsing._pid}").exists()
    with pytest.raises(ChildProcessError):
        os.waitpid(parsing._pid, 0)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=r"sites.yaml: cannot be read: No such file"):
        apart.read(tmp_path / "sites.yaml")
