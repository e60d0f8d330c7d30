"""What `runner validate-config` prints, and the status that it gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.cli import main
from basestation_runner.commands import common
from basestation_runner.config import location
from basestation_runner.config.findings import Finding
from basestation_runner.config.validate import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from basestation_runner.config.document import Document
    from basestation_runner.config.model import Config

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


def test_profiles_of_which_there_are_none_are_profiles(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "host").mkdir()
    (folder / "host/sites.yaml").write_text(PLAIN)
    for nothing in ("{}", "# none yet", ""):
        (folder / "host/applications.yaml").write_text(nothing)
        assert run([Path("host/sites.yaml")]) == 0
        assert "host/applications.yaml: ok (0 applications)" in capsys.readouterr().out


def test_sites_that_are_called_like_a_field_of_the_other_file_are_sites(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "odd.yaml").write_text("applications: {watch_dir: /srv/a, runner_user: b}\n")
    assert run([folder / "odd.yaml"]) == 0
    assert capsys.readouterr().out == f"{folder}/odd.yaml: ok (1 site)\n"


def warn(_: Document, config: Config, files: Sequence[str]) -> list[Finding]:
    """Check a host with a doubt about each site."""
    return [Finding(level="warning", what=f"{name} of {Path(files[0]).name}") for name in config.sites]


def fail(*_: object) -> list[Finding]:
    return [Finding(level="fault", what="no account")]


@pytest.mark.usefixtures("folder")
def test_a_host_is_checked_for_each_file_of_sites(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([Path("sites.yaml"), Path("plain.yaml")], check_host=warn) == 0
    printed = capsys.readouterr()
    said = ["a of sites.yaml", "b of sites.yaml", "a of plain.yaml"]
    assert printed.err.splitlines() == [f"warning: {what}" for what in said]
    assert "sites.yaml: ok (2 sites)" in printed.out


@pytest.mark.usefixtures("folder")
def test_no_file_is_sound_on_a_host_that_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([Path("plain.yaml")], check_host=fail) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "no account\n")


@pytest.mark.usefixtures("folder")
def test_a_host_is_not_looked_at_when_any_file_is_faulty(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([Path("plain.yaml"), Path("broken.yaml")], check_host=fail) == 1
    assert "no account" not in capsys.readouterr().err
    assert run([Path("plain.yaml"), Path("absent.yaml")], check_host=fail) == 1
    assert "no account" not in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_other_programs_get_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([Path("plain.yaml"), Path("bad-sites.yaml"), Path("absent.yaml")], form="json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert [(file["file"], file["ok"]) for file in shown["files"]] == [
        ("plain.yaml", True),
        ("bad-sites.yaml", False),
        ("absent.yaml", False),
    ]
    assert [(found["file"], found["line"], found["path"]) for found in shown["findings"]] == [
        ("absent.yaml", None, ""),
        ("bad-sites.yaml", 1, "a.watch_dir"),
        ("bad-sites.yaml", 1, "a.runner_user"),
    ]


@pytest.mark.usefixtures("folder")
def test_github_gets_its_commands_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([Path("plain.yaml"), Path("bad-sites.yaml")], form="github") == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    first, *_, last = printed.out.splitlines()
    assert first.startswith("::error file=bad-sites.yaml,line=1,col=16::a.watch_dir: 'srv' is not")
    assert last == "plain.yaml: ok (1 site)"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How the command calls what it is for."""
    calls: list[dict[str, Any]] = []

    def note(files: Sequence[Path], **options: Any) -> int:  # noqa: ANN401 - whatever it is given
        calls.append({"files": files, **options})
        return 0

    monkeypatch.setattr("basestation_runner.config.validate.run", note)
    monkeypatch.setattr(location, "APPLICATIONS_CONFIG", Path("/nowhere/applications.yaml"))
    return calls


def test_the_command_checks_the_installed_files_by_default(asked: list[dict[str, Any]]) -> None:
    assert main(["validate-config"]) == 0
    assert asked == [
        {"files": (common.SITES_CONFIG,), "applications": None, "default": None, "form": "text", "check_host": None}
    ]


def test_the_command_checks_the_host_with_the_daemons_accounts(asked: list[dict[str, Any]]) -> None:
    assert main(["validate-config", "--host", "--format=github", "/a", "--applications_config=/b"]) == 0
    assert main(["validate-config", "--host", "--watcher_user=w", "--helper-user=h"]) == 0
    first, second = asked
    assert (first["files"], first["applications"], first["form"]) == ((Path("/a"),), Path("/b"), "github")
    assert first["check_host"].keywords == {"watcher_user": "baserunner", "helper_user": "baserunner-exec"}
    assert second["check_host"].keywords == {"watcher_user": "w", "helper_user": "h"}


def test_accounts_without_host_are_a_wrong_usage(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate-config", "--helper-user=h"]) == 2
    assert "need --host" in capsys.readouterr().err
    assert asked == []


def test_checking_needs_nothing_that_only_the_daemons_need() -> None:
    program = (
        "import sys, basestation_runner.config.host, basestation_runner.config.validate\n"
        "print({'prctl', 'pyinotify', 'cgroupspy', 'structlog', 'zmq', 'sqlite3'} & set(sys.modules))\n"
    )
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert out == "set()\n"


def test_the_helper_loads_its_config_without_click() -> None:
    program = "import sys, basestation_runner.config.load\nprint('click' in sys.modules)\n"
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert out == "False\n"
