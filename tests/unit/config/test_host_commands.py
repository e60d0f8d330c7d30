"""Whether a host has the programs that profiles name: there, executable for the account, changed by root alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from basestation_runner.config import hostfacts
from basestation_runner.config.document import parse
from basestation_runner.config.host import judge
from basestation_runner.config.hostfacts import Absent, Command
from basestation_runner.config.load import Source, load_sources
from basestation_runner.errors import RunnerError
from tests.unit.config.facts import FILE, GOOD, HUNG, directory

if TYPE_CHECKING:
    from pathlib import Path

    from basestation_runner.config.probes import Unseen

SITES = b"one:\n  watch_dir: /srv/one\n  runner_user: runner-one\n  applications: [solver]\n"
PROFILES = b"applications: [{name: solver, command: /opt/solve}]"
ABOVE = "(look at its owner and mode, and at those of the directories above)"
MENDED = "(chown it to root, and chmod go-w it)"
LOOSE = RunnerError("others can write it", where="/opt")


def found(commands: dict[str, Command] | Unseen) -> list[str]:
    source = Source("s.yaml", SITES)
    config = load_sources(source, Source("a.yaml", PROFILES))
    facts = evolve(GOOD, sites={"one": evolve(GOOD.sites["one"], scripts={}, commands=commands)})
    return [str(finding) for finding in judge(parse(source), config, facts) if ": one.applications" in str(finding)]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (
            Command(Absent("/opt/solve"), None),
            "/opt/solve does not exist, the command of solver (create it, or mend the path)",
        ),
        (Command(directory(0, 7), None), "/opt/solve is not a file, the command of solver"),
        (
            Command(evolve(FILE, may=False), None),
            f"account runner-one cannot execute /opt/solve {ABOVE}",
        ),
        (
            Command(FILE, LOOSE),
            f"others than root could change /opt, and /opt/solve is the command of solver {MENDED}",
        ),
        (Command(HUNG, None), "/opt/solve does not answer within 10 s"),
        (Command(FILE, HUNG), "who can change /opt/solve does not answer within 10 s"),
    ],
    ids=["absent", "a directory", "not executable", "not root's", "hangs", "hangs later"],
)
def test_what_is_wrong_with_a_command_is_told_at_the_sites_applications(command: Command, answer: str) -> None:
    assert found({"/opt/solve": command}) == [f"s.yaml:4:17: one.applications: {answer}"]


def test_a_good_command_is_no_finding_and_a_look_that_hangs_is_one() -> None:
    assert found({"/opt/solve": Command(FILE, None)}) == []
    assert len(found(HUNG)) == 1


def test_a_command_is_looked_at_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "solve"
    path.write_text("")
    path.chmod(0o777)
    looked_at = hostfacts._look_at_commands([str(path)], None)[str(path)]
    assert isinstance(looked_at.seen, hostfacts.Entry)
    assert isinstance(looked_at.trusted, RunnerError)


def test_steps_launcher_and_sandbox_are_programs_of_a_profile_too() -> None:
    profiles = (
        b"applications: [{name: solver, scripts: [a], mode: sandbox, launch_type: mpich, pre_exec: [/a, x],"
        b" post_exec: [/b]}]"
    )
    source = Source("s.yaml", SITES)
    config = load_sources(source, Source("a.yaml", profiles))
    assert config.applications["solver"].programs == {
        "/a": "the pre_exec",
        "/b": "the post_exec",
        "/usr/bin/bwrap": "the sandbox",
        "/usr/bin/mpirun.mpich": "the launcher",
    }
    commands = {path: Command(Absent(path), None) for path in ("/a", "/usr/bin/bwrap")}
    facts = evolve(GOOD, sites={"one": evolve(GOOD.sites["one"], scripts={}, commands=commands)})
    told = [str(finding) for finding in judge(parse(source), config, facts) if ": one.applications: " in str(finding)]
    assert [line.partition("applications: ")[2] for line in told] == [
        "/a does not exist, the pre_exec of solver (create it, or mend the path)",
        "/usr/bin/bwrap does not exist, the sandbox of solver (install Debian's bubblewrap)",
    ]
