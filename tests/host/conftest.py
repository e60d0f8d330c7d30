"""Fixtures for tests that need root: accounts of their own, daemons under their real accounts, nothing left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from basestation_runner.sandbox import with_accounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Installation, Sandbox
    from basestation_runner.sandbox.accounts import Accounts


@pytest.fixture(scope="session")
def sandbox(privileged: None) -> Iterator[Sandbox]:  # noqa: ARG001 - only for what it decides
    """Move this test process to a mount namespace of its own, for the rest of its life."""
    with with_accounts() as sandbox:
        yield sandbox


@pytest.fixture
def installation(sandbox: Sandbox) -> Iterator[Installation]:
    with sandbox.installation() as installation:
        yield installation


@pytest.fixture
def accounts(installation: Installation) -> Accounts:
    return installation.accounts
