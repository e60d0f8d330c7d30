"""The suite of the one-file program: installed on a copy of this host that has no Python, and taken away again.
`make binary-test` says with RUNNER_BINARY which file; without that, nothing here is collected.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.binary.copy_of_host import CopyOfHost

if TYPE_CHECKING:
    from collections.abc import Iterator

collect_ignore_glob = [] if "RUNNER_BINARY" in os.environ else ["test_*.py"]


@pytest.fixture
def host(privileged: None) -> Iterator[CopyOfHost]:  # noqa: ARG001 - only for what it decides
    with CopyOfHost(Path(os.environ["RUNNER_BINARY"])) as host:
        yield host
