"""The suite that boots Debian and installs the package. `make vm-test` says with RUNNER_DEB which; without that, the
machines are not what is tested, and nothing here is collected.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.vm.host import Host

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITES: Final = ("trixie", "bookworm")  # systemd 257 and 252

collect_ignore_glob = [] if "RUNNER_DEB" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session", params=SUITES)
def host(request: pytest.FixtureRequest, privileged: None) -> Iterator[Host]:  # noqa: ARG001 - only for what it decides
    """One machine for all tests; each leaves both units running."""
    with Host(request.param, Path(os.environ["RUNNER_DEB"])) as host:
        yield host
