"""Directories for the unit tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A directory that every account can reach and write in."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # pytest keeps its own private
        Path(directory).chmod(0o777)
        yield Path(directory).resolve()
