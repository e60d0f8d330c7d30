"""That docs/applications.md says what the program does: every field is there, and every example is taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attrs import fields_dict

from basestation_runner.config.additions import Additions
from basestation_runner.config.environment import BASE_ENV
from basestation_runner.config.load import Source, load_sources
from basestation_runner.config.model import Application
from basestation_runner.runfile import parse

PAGE = (Path(__file__).parents[3] / "docs/applications.md").read_text()
BLOCKS = re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [block for block in BLOCKS if "applications:\n" in block]
REQUESTS = [block for block in BLOCKS if block.startswith("/home/")]


@pytest.mark.parametrize("name", [*fields_dict(Application), *fields_dict(Additions), *sorted(BASE_ENV)])
def test_each_field_has_its_line(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_each_example_of_a_file_is_a_valid_one() -> None:
    assert len(EXAMPLES) == 6
    for text in EXAMPLES:
        load_sources(Source("s", b"a: {watch_dir: /a, runner_user: b, applications: all}"), Source("a", text.encode()))


def test_each_example_of_a_request_is_a_valid_one() -> None:
    assert [parse(text.encode()).additions.application for text in REQUESTS] == ["solve"]
