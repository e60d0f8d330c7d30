"""A host with a legacy unit, a stand-in for its system manager, and `runner migrate-site` in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from basestation_runner.operate.client import Client
from basestation_runner.sandbox.installation import WATCHER
from basestation_runner.sandbox.process import Identity
from basestation_runner.watch.lockfile import NAME
from tests.migrate.manager import Manager, Unit, legacy_unit
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from basestation_runner.nss import Account
    from basestation_runner.sandbox import Installation
    from basestation_runner.sandbox.process import Daemon
ROOT: Final = Path(__file__).parents[2]
DAEMON: Final = Path(__file__).with_name("legacy_daemon.py")
UNIT: Final = "baserunner-alpha@runner-alpha.service"

DRIVER: Final = """
import json, os, signal, sys
from pathlib import Path
from basestation_runner import cli, errors
from basestation_runner.migrate import journal, run, setting, systemctl, watcher
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
told = json.loads(sys.argv[1])
left = told["kill_after"]

def count():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

append = journal.Journal._append
def counted(self, entry):
    append(self, entry)
    count()
    if entry.get("step") == told["kill_at"] and entry["what"] == "done":
        os.kill(os.getpid(), signal.SIGKILL)
journal.Journal._append = counted

execute = systemctl.execute
def executed(command, *rest):
    answer = execute(command, *rest)
    if not {"show", "cat", "list-units", "list-unit-files"} & set(map(str, command)):
        count()
    return answer
systemctl.execute = watcher.execute = executed

top = Path(told["top"])
real = setting.Setting
def made(**given):
    return real(**{
        **given,
        "journals": top / "journals",
        "systemctl": systemctl.Systemctl(top / "bin/systemctl"),
        "usermod": top / "bin/usermod",
        "gpasswd": top / "bin/gpasswd",
        "cgroups": tuple(map(Path, told["cgroups"])),
        "units": top / "units",
        "rotations": top / "logrotate.d",
        "logs": top / "log-of-daemons",
        "patience": setting.Patience(look=0.02, quiet=0.1, unsure=0.05, multi=0.1, gone=10, watched=20, tell=0.2),
    })
setting.Setting = made
sys.exit(cli.main(["migrate-site", *told["words"]]))
"""


class Host:
    """An installation with one site that a legacy daemon serves, and one that we do."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.manager = Manager(installation)
        self.manager.add_daemons()
        self.program = installation.top / "legacy_daemon.py"
        self.program.write_text(DAEMON.read_text())
        installation.write(installation.scripts / "BaseRunner.py", "")
        self.units = installation.make_directory(installation.top / "units")
        self.rotations = installation.make_directory(installation.top / "logrotate.d")
        self.logs = installation.top / "log-of-daemons"
        self.other = installation.add_site("other", "other")
        self.site = installation.add_site("alpha", "alpha", layout="jailed")
        self.homes = self.site.homes
        installation.make_directory(self.homes, self.site.account, mode=0o2770)
        del installation.sites["alpha"]
        installation.write_config()
        installation.accounts.leave(WATCHER, self.group)
        self.unit = self.legacy("--jail_root", str(self.site.jail))
        self.cgroups: list[Path] = []
        self._drops = 0

    @property
    def group(self) -> str:
        assert self.site.group is not None
        return self.site.group

    def legacy(self, *options: str, name: str = UNIT, **directives: str) -> Unit:
        python = self.installation.program.python
        return legacy_unit(
            self.manager, name, self.site, self.program, "--python_version", python, *options, **directives
        )

    def add_legacy_site(self, name: str, account: Account | None = None) -> Unit:
        """Make another site, which a legacy daemon may serve; its account is its own unless given."""
        site = self.installation.add_site(name, name, account=account)
        del self.installation.sites[name]
        assert site.group is not None
        self.installation.accounts.leave(WATCHER, site.group)
        self.installation.sites_config.unlink()
        options = ("--python_version", self.installation.program.python)
        return legacy_unit(self.manager, f"baserunner-{name}.service", site, self.program, *options)

    def start(self, *, daemons: bool = True) -> None:
        """Have the legacy daemon serve its site, and our daemons the other one."""
        self.unit.is_enabled = True
        self.unit.start()
        if daemons:
            for name in ("baserunner-exec.service", "baserunner-watch.service"):
                self.manager.units[name].is_enabled = True
                self.manager.units[name].start()

    def begin(self, *words: str, kill_after: int = 0, kill_at: str = "") -> subprocess.Popen[str]:
        """Start `runner migrate-site`.

        It kills itself after so many marks in its journal and changes of the host, or when a step is done.
        """
        paths = {
            "--sites-config": self.installation.sites_config,
            "--applications-config": self.installation.applications_config,
            "--control-socket": self.installation.control_socket,
            "--state-dir": self.installation.watcher_state,
        }
        options = [str(word) for pair in paths.items() for word in pair]
        told = {
            "top": str(self.installation.top),
            "kill_after": kill_after,
            "kill_at": kill_at,
            "cgroups": list(map(str, self.cgroups)),
            "words": [*words, *options],
        }
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )

    def run(self, *words: str, kill_after: int = 0, kill_at: str = "") -> tuple[int, str]:
        """Run `runner migrate-site`; return how it ended and what it said."""
        process = self.begin(*words, kill_after=kill_after, kill_at=kill_at)  # its stdin ends with communicate()
        out, _ = process.communicate(timeout=120)
        return process.returncode, out

    def drop(self, *options: str, by: Account | None = None) -> str:
        """Hand in a request as the site's account, or another one; return its tag."""
        self._drops += 1
        tag = f"t{self._drops}"
        mission = self.homes / "mission"
        self.installation.make_directory(mission, self.site.account, mode=0o2770)
        paths = [self.site.seen(path) for path in (self.homes, mission, mission / "log")]
        text = " ".join([*paths, "Base.py", "--tag", tag, *options])
        self.installation.drop(self.site, f"{text}\n", by=by or self.site.account, name=f"{tag}.run")
        return tag

    def drop_while_drained(self, *, by: Account, mode: int) -> str:
        """Hand in a request as somebody else while none are taken; return its tag."""
        with Client(self.installation.control_socket) as client:
            client.ask("hold", site="alpha", closed=True)
        tag = self.drop(by=by)
        (self.site.watch_dir / f"{tag}.run").chmod(mode)
        return tag

    def write_gated_script(self) -> Path:
        """Have our jobs wait for a file if their request says so; return it."""
        script = self.installation.scripts / "Base.py"
        wait = 'import os, sys, time\nif "--gate" in sys.argv:\n    while not os.path.exists(sys.argv[-5]):\n'
        self.installation.write(script, f"{script.read_text()}\n{wait}        time.sleep(0.02)\n")
        return self.homes / "gate"

    def hold_lock(self) -> Daemon:
        """Have another process of the site hold the lock."""
        code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(300)"
        command = [self.installation.program.python, "-IS", "-c", code, str(self.site.watch_dir / NAME)]
        process = self.installation.start("baserunner", command, Identity(self.site.account))
        until(lambda: self.lock() == process.pid)
        return process

    # What became of it

    def ran_by_legacy(self) -> list[str]:
        return self._lines("ran-by-legacy")

    def ended_by_legacy(self) -> list[str]:
        return self._lines("ended-by-legacy")

    def _lines(self, name: str) -> list[str]:
        path = self.homes / name
        return path.read_text().split() if path.exists() else []

    def ran_by_us(self) -> list[str]:
        """Return the tags of the jobs that our helper has run."""
        reports = (self.homes / "mission").glob("report-*.json")
        argv: list[list[str]] = [json.loads(path.read_text())["argv"] for path in reports]
        return sorted(words[words.index("--tag") + 1] for words in argv)

    def ran(self) -> list[str]:
        return sorted([*self.ran_by_legacy(), *self.ran_by_us()])

    def requests(self) -> list[str]:
        return sorted(path.name for path in self.site.watch_dir.glob("*.run"))

    def lock(self) -> int:
        try:
            return int((self.site.watch_dir / NAME).read_text())
        except (OSError, ValueError):
            return 0

    def pid(self, name: str) -> int:
        daemon = self.manager.units[name].daemon
        assert daemon is not None
        return daemon.pid

    def is_member(self) -> bool:
        text = Path("/etc/group").read_text()
        found = re.search(rf"^{re.escape(self.group)}:.*:(.*)$", text, re.MULTILINE)
        assert found is not None
        return WATCHER in found[1].split(",")

    def config(self) -> str:
        return self.installation.sites_config.read_text()

    def is_migrated(self) -> bool:
        return (
            not self.unit.is_active
            and not self.unit.is_enabled
            and "alpha:" in self.config()
            and self.is_member()
            and self.lock() == self.pid("baserunner-watch.service")
        )

    def is_as_before(self, *, is_member: bool = False) -> bool:
        """Whether the legacy daemon has the site, and nothing of ours is left."""
        daemon = self.unit.daemon
        return (
            daemon is not None
            and self.unit.is_active
            and self.unit.is_enabled
            and "alpha" not in self.config()
            and self.is_member() == is_member
            and self.lock() == daemon.pid
        )

    def journal(self) -> list[dict[str, Any]]:
        (path,) = (self.installation.top / "journals").glob("alpha.*")
        return [json.loads(line) for line in path.read_text().split("\n") if line]


@pytest.fixture
def host(installation: Installation) -> Iterator[Host]:
    made = Host(installation)
    yield made
    made.manager.close()
