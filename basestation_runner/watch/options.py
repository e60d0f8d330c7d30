"""What `runner watch` was told on its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.loglines import Format
    from basestation_runner.watch.web import Address


@attrs.frozen(kw_only=True)
class WatchOptions:
    sites_config: Path
    applications_config: Path | None  # None: the default file if there is one, else the built-in profiles
    priv_exec_socket: Path
    control_socket: Path
    state_dir: Path
    base_log: Path | None  # None: stderr
    log_format: Format
    max_running: int
    max_queued: int
    absent_patience: float  # seconds
    on_failure: Path | None
    metrics: Address | None
    http: Address | None
    job_completions_log: Path | None
    debug: bool
