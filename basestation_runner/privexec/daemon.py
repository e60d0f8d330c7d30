"""`runner privexec`: from its first steps to a helper that serves, and to its end. Jobs outlive it."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1
from typing import Final

import structlog

from basestation_runner import logs, nss, trust
from basestation_runner.config.apart import Parsing
from basestation_runner.config.model import Config, Site, changed
from basestation_runner.errors import EXIT_OK, RunnerError, TemporaryError
from basestation_runner.privexec import accounts, support
from basestation_runner.privexec.accounts import Caller
from basestation_runner.privexec.cgroups import Cgroups, delegated_root
from basestation_runner.privexec.claims import Claims
from basestation_runner.privexec.forks import Forks
from basestation_runner.privexec.jobs import Jobs
from basestation_runner.privexec.keeper import Post
from basestation_runner.privexec.loop import Loop
from basestation_runner.privexec.options import HelperOptions
from basestation_runner.privexec.order import NotNowError, RefusedError
from basestation_runner.privexec.probes import Probes
from basestation_runner.privexec.reload import Reload
from basestation_runner.privexec.requests import Requests
from basestation_runner.privexec.server import Server, hold
from basestation_runner.privexec.start import texts
from basestation_runner.systemd import Notifier

_ACCOUNT_PATIENCE: Final = 60.0  # seconds; directory services come up late
_ACCOUNT_INTERVAL: Final = 5.0  # seconds; a name service gives no event to wait for
_ROTATION_INTERVAL: Final = 60.0  # seconds
_SWEEP_INTERVAL: Final = 600.0  # seconds
_PRUNING_AFTER: Final = 3600.0  # seconds in which a watcher has come and asked for all that it knows
_PRUNING_INTERVAL: Final = 24 * 3600.0  # seconds

log = structlog.get_logger()


def run(options: HelperOptions, forks: Forks, parsing: Parsing, notifier: Notifier, *, changes: bool) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status. Raises RunnerError when the helper must not start.

    `changes`: it has the capabilities to change identity.
    """
    log_file = logs.configure(
        name="runner-privexec", path=options.base_log, fmt=options.log_format, debug=options.debug
    )
    config = parsing.config()
    if changes:
        trust.check_program()
    caller = accounts.caller(changes=changes, watcher_user=options.watcher_user)
    _check_accounts(config, caller)
    claims = Claims(options.state_dir)
    locks = hold([f"{options.priv_exec_socket}.lock", str(options.state_dir / "lock")])

    missing = support.missing()
    events = Loop()
    lost: list[str] = []

    def on_lost() -> None:
        lost.append("the fork server has ended")
        events.stop()

    cgroups = _cgroups(options.cgroup_root, config)
    table = Jobs(events, claims, cgroups, forks)
    table.adopt()
    forks.begin(events, Post(caller, claims, str(options.cache_dir)), on_lost)

    read = partial(texts, options, privileged=changes)
    reload = Reload(events, read, caller, lambda new: _use(new, requests, cgroups))
    requests = Requests(config, table, events, reload.ask, probes=Probes(events, forks, cgroups), missing=missing)
    server = Server(events, requests.take, caller.watcher_uid)
    server.listen(str(options.priv_exec_socket), caller.watcher_gid)

    def status() -> str:
        return f"{len(requests.config.sites)} sites, {table.alive} jobs running"

    events.on_signals(
        {
            SIGTERM: events.stop,
            SIGINT: events.stop,
            SIGUSR1: log_file.reopen_if_rotated,
            SIGHUP: partial(_hangup, log_file, reload),
        }
    )

    def alive() -> None:
        notifier.watchdog()
        notifier.status(status())

    _repeat(events, notifier.watchdog_interval, alive)
    _repeat(events, _ROTATION_INTERVAL, log_file.reopen_if_rotated)
    _repeat(events, _SWEEP_INTERVAL, table.sweep_cgroups)
    events.call_later(_PRUNING_AFTER, lambda: _repeat(events, _PRUNING_INTERVAL, table.prune))
    log.info(
        "helper ready",
        sites=len(config.sites),
        socket=str(options.priv_exec_socket),
        watcher=options.watcher_user or "the helper's own account",
        mode="CAP_SETUID and CAP_SETGID" if changes else "single-account mode",
        **{f"no_{what.partition(' ')[2]}": why for what, why in missing.items()},
    )
    notifier.ready(status())
    events.run()

    notifier.stopping()
    server.close()
    forks.close()
    log.info("helper stopped", jobs_running=table.alive)
    for lock in locks:
        lock.close()
    if lost:
        raise RunnerError(lost[0], hint="jobs run on, and the next helper takes them up: start it again")
    return EXIT_OK


def _hangup(log_file: logs.LogFile, reload: Reload) -> None:
    log_file.reopen_if_rotated()
    reload.ask()


def _check_accounts(config: Config, caller: Caller) -> None:
    """Look every site's account up. Raises RunnerError for one that is absent after a minute, or that no job may have.

    In single-account mode a site of another account is not a fault: its jobs are refused one by one.
    """
    deadline = time.monotonic() + _ACCOUNT_PATIENCE
    for site in config.sites.values():
        _await_account(site, deadline)
        try:
            accounts.resolve(site, caller)
        except NotNowError as error:
            log.warning("site cannot run jobs at present", site=site.name, reason=str(error))
        except RefusedError as error:
            if caller.changes:
                raise RunnerError(f"site {site.name}: {error}", hint="mend runner_user or groups") from error
            log.warning("site cannot run jobs", site=site.name, reason=str(error))


def _await_account(site: Site, deadline: float) -> None:
    """Wait until the site's account is known. Raises RunnerError, or TemporaryError when the name service is silent."""
    fault: RunnerError | None = None
    while time.monotonic() <= deadline or fault is None:
        if fault is not None:
            log.warning("account is waited for", site=site.name, account=site.runner_user, reason=fault.what)
            time.sleep(_ACCOUNT_INTERVAL)
        try:
            if nss.account(site.runner_user) is not None:
                return
            what = f"site {site.name}: account {site.runner_user} is not known"
            fault = RunnerError(what, hint="create it or mend runner_user")
        except nss.LookupFailedError as error:
            fault = TemporaryError(f"site {site.name}: the name service does not answer: {error}")
    raise fault


def _cgroups(root: Path | None, config: Config) -> Cgroups:
    path = str(root) if root is not None else delegated_root()
    if path is None:
        log.warning("no cgroup is delegated to the helper: sites' limits are not applied")
    groups = Cgroups(path)
    _prepare(groups, config.sites.values())
    return groups


def _use(new: Config, requests: Requests, groups: Cgroups) -> dict[str, list[str]]:
    """Go by another configuration; return which sites it adds, removes and changes."""
    changes = changed(requests.config, new)
    _prepare(groups, [new.sites[name] for name in changes["added"] + changes["changed"]])
    requests.use(new)
    return changes


def _prepare(groups: Cgroups, sites: Iterable[Site]) -> None:
    for site in sites:
        warning = groups.prepare(site)
        if warning is not None:
            log.warning(warning, site=site.name)


def _repeat(events: Loop, seconds: float | None, action: Callable[[], object]) -> None:
    """Do it now and again after each interval; never without an interval."""
    if seconds is None:
        return

    def again() -> None:
        action()
        events.call_later(seconds, again)

    again()
