"""What the tests of the helper begin with, where they need nothing besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.host.helper_client import Station

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.sandbox import Installation


@pytest.fixture
def station(installation: Installation) -> Iterator[Station]:
    with Station(installation) as station:
        yield station
