"""What `runner validate-config` prints, and the status that it gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from basestation_runner.config.validate import run

SITES = "a: {watch_dir: /srv/a, runner_user: b, applications: [extra]}\nb: {watch_dir: /srv/b, runner_user: b}\n"
PLAIN = "a: {watch_dir: /srv/a, runner_user: b}\n"
APPLICATIONS = "applications: [{name: extra, scripts: [Extra.py]}]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with good and bad files, the working directory."""
    files = {
        "sites.yaml": SITES,
        "others.yaml": SITES,
        "plain.yaml": PLAIN,
        "applications.yaml": APPLICATIONS,
        "bad-sites.yaml": "a: {watch_dir: srv, runner_user: root}\n",
        "bad-applications.yaml": "default_application: none\n",
        "broken.yaml": "a: [\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("files", "applications", "out", "err"),
    [
        (["plain.yaml"], None, ["plain.yaml: ok (1 site)"], []),
        (["sites.yaml"], "applications.yaml", ["sites.yaml: ok (2 sites)"], []),
        (
            ["sites.yaml", "applications.yaml"],
            None,
            ["sites.yaml: ok (2 sites)", "applications.yaml: ok (1 application)"],
            [],
        ),
        (
            ["applications.yaml"],
            None,
            ["applications.yaml: ok (1 application)", "sites.yaml: ok (2 sites)"],
            [],
        ),
        (
            ["sites.yaml"],
            None,
            ["sites.yaml: ok (2 sites)", "applications.yaml: ok (1 application)"],
            [],
        ),
        (["plain.yaml", "plain.yaml"], None, ["plain.yaml: ok (1 site)"], []),
        (["others.yaml"], None, [], ["others.yaml:1:55: a.applications[0]: application extra is not defined"]),
        (
            ["bad-sites.yaml", "plain.yaml"],
            None,
            ["plain.yaml: ok (1 site)"],
            ["bad-sites.yaml:1:16: a.watch_dir: 'srv' is not", "bad-sites.yaml:1:34: a.runner_user: jobs never"],
        ),
        (
            ["plain.yaml", "bad-applications.yaml"],
            None,
            ["plain.yaml: ok (1 site)"],
            ["bad-applications.yaml:1:22: default_application: application none is not defined"],
        ),
        (
            ["plain.yaml"],
            "bad-applications.yaml",
            ["plain.yaml: ok (1 site)"],
            ["bad-applications.yaml:1:22: default_application: application none is not defined"],
        ),
        (
            ["others.yaml", "broken.yaml"],
            None,
            ["others.yaml: ok (2 sites)"],
            ["broken.yaml:1:5: not valid YAML"],
        ),
        (
            ["absent.yaml", "plain.yaml", "bad-sites.yaml"],
            None,
            ["plain.yaml: ok (1 site)"],
            ["absent.yaml: cannot be read: No such file", "bad-sites.yaml:1:16: ", "bad-sites.yaml:1:34: "],
        ),
        (["."], None, [], [".: cannot be read: Is a directory"]),
        (["plain.yaml"], "absent.yaml", ["plain.yaml: ok (1 site)"], ["absent.yaml: cannot be read: No such file"]),
    ],
)
def test_every_fault_of_every_file_is_a_line_and_so_is_every_sound_file(
    files: list[str], applications: str | None, out: list[str], err: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = run([Path(file) for file in files], applications=Path(applications) if applications else None)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == out
    lines = printed.err.splitlines()
    assert len(lines) == len(err)
    assert all(line.startswith(start) for line, start in zip(lines, err, strict=True))
    assert status == (1 if err else 0)


def test_profiles_count_for_the_sites_in_their_own_directory_only(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "host").mkdir()
    (folder / "host/sites.yaml").write_text(SITES)
    assert run([Path("host/sites.yaml"), Path("applications.yaml")]) == 1
    assert "application extra is not defined" in capsys.readouterr().err
    assert run([Path("host/sites.yaml"), Path("bad-applications.yaml")], applications=Path("applications.yaml")) == 1
    assert "host/sites.yaml: ok (2 sites)" in capsys.readouterr().out


def test_sites_that_are_called_like_a_field_of_the_other_file_are_sites(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "odd.yaml").write_text("applications: {watch_dir: /srv/a, runner_user: b}\n")
    assert run([folder / "odd.yaml"]) == 0
    assert capsys.readouterr().out == f"{folder}/odd.yaml: ok (1 site)\n"


def test_checking_needs_nothing_that_only_the_daemons_need() -> None:
    program = (
        "import sys, basestation_runner.config.validate\n"
        "print({'prctl', 'pyinotify', 'cgroupspy', 'structlog', 'zmq', 'sqlite3'} & set(sys.modules))\n"
    )
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert out == "set()\n"


def test_the_helper_loads_its_config_without_click() -> None:
    program = "import sys, basestation_runner.config.load\nprint('click' in sys.modules)\n"
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert out == "False\n"
