"""The command that a launcher is given."""

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.privexec.launch import ADDED, LAUNCHERS, launched

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
names = st.from_regex(r"\A[A-Z]{3,8}\Z").filter(
    lambda name: name not in {"PATH", "PWD", "OLDPWD", "IFS", "PPID", "SHLVL"}
)


def test_each_launcher_starts_the_number_of_tasks_of_the_job_as_it_is() -> None:
    for name, command in LAUNCHERS.items():
        argv, environment = launched(name, 7, ["/bin/a", "b"], {"X": "1"}, ())
        assert argv == [*command, "7", "/bin/a", "b"]
        assert environment == {"X": "1"}


@given(st.dictionaries(names, texts, min_size=1, max_size=4))
def test_whatever_a_job_adds_reaches_its_ranks_unchanged_and_no_command_line(added: dict[str, str]) -> None:
    environment = {"PATH": "/usr/bin:/bin", **added}
    argv, own = launched("mpich", 2, ["/usr/bin/env", "-0"], environment, tuple(added))
    assert own.keys() == {"PATH", ADDED}
    rank = argv[len(LAUNCHERS["mpich"]) + 1 :]
    assert not any(value in word for value in added.values() if len(value) > 9 for word in argv)
    done = subprocess.run(rank, env=own, capture_output=True, check=True)
    seen = dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if line)
    assert {name: seen[name] for name in added} == added
    assert ADDED not in seen
