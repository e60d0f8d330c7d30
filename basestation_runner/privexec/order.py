"""The dispatch record: what one job was started with, frozen when it is started, and what may stop that."""

from dataclasses import dataclass
from typing import Any

from basestation_runner.config.model import Application, Site


class RefusedError(Exception):
    """The job must not run, now or later; the text says why to whoever dropped the request."""


class NotNowError(Exception):
    """The job cannot be started at this moment; the same order may be tried again.

    `absent`: the account or its effective group was not found, which a directory service that is late looks like.
    """

    def __init__(self, reason: str, *, absent: bool = False) -> None:
        """Keep the reason and whether something was not found."""
        super().__init__(reason)
        self.absent = absent


@dataclass(frozen=True)
class Order:
    """One job to start: the site and the application from the helper's own config, the rest from the request."""

    job_id: str
    site: Site
    application: Application
    home: str
    mission_dir: str
    log_file: str
    script: str
    args: tuple[str, ...]
    queue_length: int
    on_host: bool = False  # from a watcher that has made paths and arguments the host's by itself

    @property
    def request(self) -> dict[str, Any] | None:
        """What our own watcher can make its entry of the job from, should it have lost it; None for a legacy one's."""
        if self.on_host:
            return None
        return {
            "site": self.site.name,
            "application": self.application.name,
            "home": self.home,
            "mission_dir": self.mission_dir,
            "log_file": self.log_file,
            "script": self.script,
            "args": list(self.args),
        }

    @property
    def jailed(self) -> bool:
        """Whether its paths are as seen inside the site's jail."""
        return self.site.jailed and not self.on_host

    @property
    def program(self) -> tuple[str, str]:
        """The interpreter and the script's path: from config and a bare name, never from a path in a request."""
        return self.site.python_version, f"{self.site.basestation_dir}/{self.script}"

    @property
    def own_args(self) -> tuple[str, ...]:
        """The request's arguments without those that the application strips; jailed paths still as in the jail."""
        if self.on_host:
            return self.args
        return tuple(word for word in self.args if word not in self.application.strip_args)

    @property
    def appended_args(self) -> tuple[str, ...]:
        """The application's own arguments."""
        if self.on_host:
            return ()
        return tuple(
            word.replace("{job_id}", self.job_id).replace("{queue_length}", str(self.queue_length))
            for word in self.application.append_args
        )
