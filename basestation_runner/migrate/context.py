"""What every step of a migration works with: the host, the journal, and the daemons that it asks."""

import time
from collections.abc import Callable
from contextlib import suppress

from attrs import frozen

from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.migrate import finding
from basestation_runner.migrate.asother import Identity
from basestation_runner.migrate.journal import Journal
from basestation_runner.migrate.setting import Setting
from basestation_runner.migrate.unit import Unit
from basestation_runner.operate.change import RELOAD_PATIENCE
from basestation_runner.operate.client import Client, Facts


@frozen
class Context:
    """One migration. `is_now`: nothing is waited for but what must be."""

    setting: Setting
    journal: Journal
    say: Callable[[str], None]
    is_now: bool = False

    @property
    def site(self) -> str:
        """The site's name."""
        return str(self.journal.facts["site"])

    @property
    def sites(self) -> list[str]:
        """The names of all sites that it is about."""
        return list(self.journal.facts.get("sites", [self.site]))

    @property
    def unit_name(self) -> str:
        """The legacy unit's name."""
        return str(self.journal.facts["unit"])

    @property
    def watch_dir(self) -> str:
        """The site's rundir."""
        return str(self.journal.facts["entry"]["watch_dir"])

    @property
    def owner(self) -> Identity:
        """Whom looks at the rundir are made as. Raises RunnerError."""
        return Identity.of(str(self.journal.facts["entry"]["runner_user"]))

    def unit(self, name: str | None = None) -> Unit:
        """Return the legacy unit, or another one, as it is now. Raises RunnerError."""
        return finding.read(self.setting.systemctl, name or self.unit_name)

    def is_running(self, name: str) -> bool:
        """Tell whether a unit runs; one that is not there does not. Raises RunnerError."""
        return self.setting.systemctl.is_active(name)

    def client(self) -> Client:
        """Return the watcher that can be asked. Raises TemporaryError."""
        return Client(self.setting.control_socket)

    def reload(self) -> None:
        """Have both daemons go by the files as they are. Raises RunnerError with what is wrong with them."""
        with Client(self.setting.control_socket, RELOAD_PATIENCE) as client:
            faults = client.ask("reload")["faults"]
        if faults:
            raise RunnerError(f"the configuration is refused: {faults[0]}")

    def ask_site(self, site: str) -> Facts | None:
        """Return what the watcher says of a site; None when it does not know it. Raises TemporaryError."""
        with self.client() as client:
            try:
                return client.ask("site", site=site)
            except TemporaryError:
                raise
            except RunnerError:
                return None

    def wait(self, is_so: Callable[[], bool], seconds: float | None, waiting_for: Callable[[], str]) -> bool:
        """Look again and again until something is so, and tell now and then; return whether it came to be in time."""
        patience = self.setting.patience
        end = None if seconds is None else time.monotonic() + seconds
        tell_at = time.monotonic() + min(patience.tell, 2.0)
        while not is_so():
            now = time.monotonic()
            if end is not None and now > end:
                return False
            if now > tell_at:
                tell_at = now + patience.tell
                self.say(waiting_for())
            time.sleep(patience.look)
        return True

    def wait_for_watcher(self) -> None:
        """Wait until the watcher can be asked. Raises RunnerError when it cannot."""

        def answers() -> bool:
            with suppress(TemporaryError), self.client() as client:
                client.ask("status", since=0.0)
                return True
            return False

        if not self.wait(answers, self.setting.patience.watched, lambda: "waiting for the watcher to answer"):
            raise RunnerError("the watcher does not answer", where=str(self.setting.control_socket))
