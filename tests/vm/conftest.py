"""The suite that boots Debian and installs the package.

`make vm-test` says with RUNNER_DEB which package, and with RUNNER_VM on which release. Without the former the machines
are not what is tested, and nothing here is collected.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.vm.host import CONFIG, WATCHER, Host

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITES: Final = os.environ.get("RUNNER_VM", "trixie bookworm").split()  # systemd 257 and 252
MEASURED: Final = pytest.StashKey[list[str]]()

collect_ignore_glob = [] if "RUNNER_DEB" in os.environ else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MEASURED] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[MEASURED]:
        terminalreporter.write_line(f"measured: {line}")


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> list[str]:
    """What a test appends to it is shown at the end."""
    return request.config.stash[MEASURED]


@pytest.fixture(scope="session", params=SUITES)
def host(request: pytest.FixtureRequest, privileged: None) -> Iterator[Host]:  # noqa: ARG001 - only for what it decides
    """One machine for all tests; each leaves both units running."""
    with Host(request.param, Path(os.environ["RUNNER_DEB"])) as host:
        yield host


@pytest.fixture
def config(host: Host) -> Iterator[str]:
    """The path of sites.yaml, which is as it was, and read by both daemons, afterwards."""
    host.check(f"cp {CONFIG} /var/tmp/sites.yaml")
    yield CONFIG
    host.check(f"cp /var/tmp/sites.yaml {CONFIG}; systemctl reload {WATCHER}")
