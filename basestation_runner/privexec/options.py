"""What `runner privexec` was told on its command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.loglines import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperOptions:
    sites_config: Path
    applications_config: Path | None  # None: the default file if there is one, else the built-in profiles
    priv_exec_socket: Path
    state_dir: Path
    cache_dir: Path
    cgroup_root: Path | None  # None: the delegated one, if there is one
    watcher_user: str | None  # None: this process's own account
    base_log: Path | None  # None: stderr
    log_format: Format
    debug: bool
