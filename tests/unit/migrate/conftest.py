"""A migration that has begun, of a host that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from basestation_runner.migrate import migration
from basestation_runner.migrate.context import Context
from basestation_runner.migrate.journal import Journal
from basestation_runner.migrate.setting import Setting

NOWHERE: Final = Path("/nonexistent")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A migration of site alpha."""
    journal = Journal.of(tmp_path / "journals", "alpha")
    migration.begin(journal, {"site": "alpha", "unit": "x.service"})
    setting = Setting(
        sites_config=tmp_path / "sites.yaml",
        applications_config=None,
        control_socket=NOWHERE,
        state_dir=NOWHERE,
        watcher_user="",
        helper_user="",
        journals=tmp_path / "journals",
    )
    return Context(setting, journal, lambda _: None)
