"""What all tests share: a directory, the fixtures of those that need root, and hypothesis without a clock.

Without root such tests are skipped, unless RUNNER_MUST_RUN has the word privileged in it: then they fail.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.needs import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Installation, Sandbox
    from basestation_runner.sandbox.accounts import Accounts

# How long one example takes says something about the machine's load, nothing about the code.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "privileged: needs root (set by itself)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "privileged" in getattr(item, "fixturenames", ()):
            item.add_marker("privileged")


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A directory that every account can reach and write in."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # pytest keeps its own private
        Path(directory).chmod(0o777)
        yield Path(directory).resolve()


@pytest.fixture(scope="session")
def privileged() -> None:
    """Skip or fail what cannot run here."""
    need(os.geteuid() == 0, "root")


@pytest.fixture(scope="session")
def sandbox(privileged: None) -> Iterator[Sandbox]:  # noqa: ARG001 - only for what it decides
    """Move this test process to a mount namespace of its own, for the rest of its life."""
    from basestation_runner.sandbox import with_accounts  # noqa: PLC0415 - the other tests do without

    with with_accounts() as sandbox:
        yield sandbox


@pytest.fixture
def installation(sandbox: Sandbox) -> Iterator[Installation]:
    """Accounts and daemons of this test's own; nothing is left behind."""
    with sandbox.installation() as installation:
        yield installation


@pytest.fixture
def accounts(installation: Installation) -> Accounts:
    return installation.accounts
