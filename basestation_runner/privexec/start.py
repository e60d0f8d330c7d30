"""The first steps of `runner privexec`: what the process may be, and what can go on while all the rest is loaded.

Imports only what those steps need.
"""

import resource
from pathlib import Path
from signal import SIG_DFL, SIG_SETMASK, SIGALRM, SIGCHLD, pthread_sigmask, signal

from basestation_runner import processes, proctitle, trust
from basestation_runner.config import apart
from basestation_runner.config.location import applications_path
from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.privexec.capabilities import secure_helper
from basestation_runner.privexec.forks import Forks
from basestation_runner.privexec.options import HelperOptions
from basestation_runner.systemd import Notifier


def run(options: HelperOptions) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status. Raises RunnerError when the helper must not start."""
    processes.occupy_standard_descriptors()
    notifier = Notifier()
    proctitle.set_title("runner-privexec")
    _hear_signals()
    _raise_descriptor_limit()
    forks = _fork_server()
    changes = secure_helper()
    with apart.begin(*texts(options, privileged=changes), privileged=changes) as parsing:
        from basestation_runner.privexec import daemon  # noqa: PLC0415 - meanwhile another process parses

        return daemon.run(options, forks, parsing, notifier, changes=changes)


def texts(options: HelperOptions, *, privileged: bool) -> apart.Texts:
    """Return what is in the configuration's files, which root alone must be able to write. Raises RunnerError."""

    def text(path: Path) -> apart.Text:
        try:
            return str(path), trust.read_config(str(path), privileged=privileged)
        except OSError as error:
            raise RunnerError(f"it cannot be read: {error.strerror}", where=str(path)) from error

    applications = applications_path(options.applications_config)
    return text(options.sites_config), text(applications) if applications else None


def _fork_server() -> Forks:
    try:
        return Forks()
    except OSError as error:
        raise TemporaryError(f"the fork server cannot be started: {error.strerror}") from error


def _hear_signals() -> None:
    """Undo what whoever started us has ignored or blocked: keepers could not be waited for, their alarms not ring."""
    for number in (SIGCHLD, SIGALRM):
        signal(number, SIG_DFL)
    pthread_sigmask(SIG_SETMASK, ())


def _raise_descriptor_limit() -> None:
    """Take what the unit allows, for the fork server too: each job needs descriptors. Jobs get limits of their own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
