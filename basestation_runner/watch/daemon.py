"""`runner watch` as a process: signals, logs, systemd, and the loop that everything runs on."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final

import structlog

from basestation_runner import logs, proctitle
from basestation_runner.errors import EXIT_OK
from basestation_runner.watch.watcher import Watcher

if TYPE_CHECKING:
    from basestation_runner.config.apart import Parsing
    from basestation_runner.config.model import Config
    from basestation_runner.logs import LogFile
    from basestation_runner.systemd import Notifier
    from basestation_runner.watch.options import WatchOptions

LOGS_CHECKED_EVERY: Final = 60.0


def run(options: WatchOptions, parsing: Parsing, notifier: Notifier) -> int:
    """Serve all sites until SIGTERM or SIGINT; return the exit status. Raises RunnerError."""
    log_file = logs.configure(
        name=proctitle.WATCHER, path=options.base_log, fmt=options.log_format, debug=options.debug
    )
    config = parsing.config()
    proctitle.set_title(proctitle.WATCHER)
    asyncio.run(_serve(options, config, notifier, log_file))
    return EXIT_OK


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
