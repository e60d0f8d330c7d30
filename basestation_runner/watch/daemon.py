"""`runner watch` as a process: what it may be, signals, logs, systemd, and the loop that everything runs on."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from basestation_runner import logs, processes, proctitle
from basestation_runner.errors import EXIT_OK, RunnerError
from basestation_runner.systemd import Notifier
from basestation_runner.watch.reload import load
from basestation_runner.watch.watcher import Watcher

if TYPE_CHECKING:
    from basestation_runner.config.model import Config
    from basestation_runner.logs import LogFile
    from basestation_runner.watch.options import WatchOptions

UMASK: Final = 0o007
LOGS_CHECKED_EVERY: Final = 60.0
_CAPABILITIES: Final = ("CapPrm", "CapEff", "CapAmb")


def run(options: WatchOptions) -> int:
    """Serve all sites until SIGTERM or SIGINT; return the exit status. Raises RunnerError."""
    refuse_privilege()
    processes.occupy_standard_descriptors()
    notifier = Notifier()
    os.umask(UMASK)
    _raise_descriptor_limit()
    log_file = logs.configure(
        name=proctitle.WATCHER, path=options.base_log, fmt=options.log_format, debug=options.debug
    )
    config = load(options.sites_config, options.applications_config)
    proctitle.set_title(proctitle.WATCHER)
    asyncio.run(_serve(options, config, notifier, log_file))
    return EXIT_OK


def refuse_privilege() -> None:
    """The watcher reads what others write: it must have nothing to lose. Raises RunnerError."""
    if 0 in os.getresuid():
        raise RunnerError("runner watch does not run as root", hint="start it as its own account, baserunner")
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if any(int(fields[name], 16) for name in _CAPABILITIES):
        raise RunnerError(
            "runner watch must have no capabilities",
            hint="start it without AmbientCapabilities and file capabilities; only runner privexec needs them",
        )


def _raise_descriptor_limit() -> None:
    """Take what the unit allows: each site has its own inotify instance, and a hung one holds what it has open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(options: WatchOptions, config: Config, notifier: Notifier, log_file: LogFile) -> None:
    log = structlog.get_logger()
    loop = asyncio.get_running_loop()

    def unforeseen(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.error("internal error", what=context.get("message"), exc_info=context.get("exception"))

    loop.set_exception_handler(unforeseen)
    watcher = Watcher(options, config, log=log, notifier=notifier)

    def reopen_logs() -> None:
        log_file.reopen_if_rotated()
        watcher.completions.reopen()

    def hangup() -> None:
        reopen_logs()
        watcher.reload.begin()

    def check_logs() -> None:
        log_file.reopen_if_rotated()
        loop.call_later(LOGS_CHECKED_EVERY, check_logs)

    def feed_watchdog(interval: float) -> None:
        notifier.watchdog()
        loop.call_later(interval, feed_watchdog, interval)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, watcher.stop)
    loop.add_signal_handler(signal.SIGUSR1, reopen_logs)
    loop.add_signal_handler(signal.SIGHUP, hangup)
    loop.call_later(LOGS_CHECKED_EVERY, check_logs)
    if notifier.watchdog_interval is not None:
        feed_watchdog(notifier.watchdog_interval)
    await watcher.run()
    log.info("stopped")
