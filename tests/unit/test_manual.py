"""The manual pages: made from the commands, complete, and true."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import click
import pytest

from basestation_runner import cli, manual

if TYPE_CHECKING:
    from pathlib import Path


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^\.SH (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_a_synopsis_an_example_and_its_exit_codes(name: str) -> None:
    found = sections(manual.page(name))
    assert f"runner {name}".replace("-", "\\-") in found["SYNOPSIS"]
    assert manual.EXAMPLES[name]
    assert found["EXAMPLES"].count(".TP") == len(manual.EXAMPLES[name])
    codes = set(re.findall(r"^\.B (\d+)$", found["EXIT STATUS"], re.MULTILINE))
    assert codes >= {"0", "1", "2", "70"}
    for option in ("\\-\\-help",):
        assert option in found["OPTIONS"]


def test_nothing_is_described_that_is_no_command() -> None:
    assert manual.EXAMPLES.keys() == manual.STATUSES.keys() == cli.COMMANDS.keys()


@pytest.mark.parametrize(("name", "line"), [(name, line) for name in cli.COMMANDS for line, _ in manual.EXAMPLES[name]])
def test_each_example_is_a_command_line_that_is_understood(name: str, line: str) -> None:
    words = shlex.split(line.rpartition("&& ")[2])
    assert words[:2] == ["runner", name]
    command = cli.runner.get_command(click.Context(cli.runner), name)
    assert command is not None
    with command.make_context(name, words[2:], obj=cli.Invocation(), **cli.CONTEXT_SETTINGS):
        pass


def test_every_option_of_a_command_is_in_its_page() -> None:
    for name in cli.COMMANDS:
        command = cli.runner.get_command(click.Context(cli.runner), name)
        assert command is not None
        text = manual.page(name)
        for param in command.params:
            if isinstance(param, click.Option) and not param.hidden:
                assert all(option.replace("-", "\\-") in text for option in param.opts)


def test_pages_are_written_and_a_formatter_finds_nothing_wrong(tmp_path: Path) -> None:
    manual.main(tmp_path / "man")
    pages = sorted((tmp_path / "man").iterdir())
    assert len(pages) == len(cli.COMMANDS) + 1
    if shutil.which("groff") is None:  # what else could be wrong is tested above
        return
    for page in pages:
        done = subprocess.run(["groff", "-man", "-ww", "-z", page], capture_output=True, text=True, check=True)
        assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion_from_the_commands(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_RUNNER_COMPLETE", f"{shell}_source")
    cli.main([])
    assert "runner" in capsys.readouterr().out
    monkeypatch.setenv("_RUNNER_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "runner re")
    monkeypatch.setenv("COMP_CWORD", "re" if shell == "fish" else "1")
    cli.main([])
    found = capsys.readouterr().out
    assert all(name in found for name in ("rerun", "release", "reload"))
