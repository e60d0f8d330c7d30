"""Ways for the tests to write config files as text."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from basestation_runner.config.load import ConfigErrors, Source, load_sources

if TYPE_CHECKING:
    from collections.abc import Callable

    from basestation_runner.config.model import Config


def _load(sites: str, applications: str | None = None) -> Config:
    profiles = None if applications is None else Source("applications.yaml", dedent(applications).encode())
    return load_sources(Source("sites.yaml", dedent(sites).encode()), profiles)


@pytest.fixture
def load() -> Callable[..., Config]:
    return _load


@pytest.fixture
def faults_of() -> Callable[..., list[str]]:
    def faults(sites: str, applications: str | None = None) -> list[str]:
        with pytest.raises(ConfigErrors) as raised:
            _load(sites, applications)
        return [str(fault) for fault in raised.value.faults]

    return faults


@pytest.fixture
def fault_of(faults_of: Callable[..., list[str]]) -> Callable[[str], str]:
    """The only fault of an otherwise good site `a` with one more line, without the file's name."""

    def fault(line: str) -> str:
        (found,) = faults_of(f"a:\n  watch_dir: /srv/a\n  runner_user: runner-a\n  {line}\n")
        return found.removeprefix("sites.yaml:")

    return fault
