"""What every command has in common: how it is found, what it imports, how it ends."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click
import pytest

from basestation_runner import __version__, cli
from basestation_runner.commands import common
from basestation_runner.commands.jobs import STATES
from basestation_runner.config import location
from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.watch.history import FAILURES
from basestation_runner.watch.states import FINAL, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[2]
HEAVY = (
    "asyncio",
    "attrs",
    "cattrs",
    "ruamel",
    "structlog",
    "prctl",
    "pyinotify",
    "cgroupspy",
    "rich",
    "sqlite3",
    "zmq",
)

SAME_PROGRAM = {
    "the console script": [str(Path(sys.executable).with_name("runner"))],
    "the package": [sys.executable, "-m", "basestation_runner"],
    "the compiled program's entry point": [sys.executable, str(ROOT / "cmd" / "runner")],
}


def run(program: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*program, *arguments], capture_output=True, text=True, check=False, cwd="/")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Make `runner do` call a function."""

    def make(function: Callable[[], object]) -> None:
        module = SimpleNamespace(do=click.command("do")(function))
        monkeypatch.setitem(sys.modules, "commands_of_this_test", module)
        monkeypatch.setitem(cli.COMMANDS, "do", ("commands_of_this_test:do", ""))

    return make


def fail(error: BaseException) -> Callable[[], object]:
    def function() -> object:
        raise error

    return function


@pytest.fixture
def options_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, object]]:
    """Run a command whose callee is replaced, and return what the callee gets."""

    def call(callee: str, *arguments: str) -> dict[str, object]:
        seen: list[object] = []

        def take(*given: object) -> int:
            seen.extend(given)
            return 0

        monkeypatch.setitem(sys.modules, callee, SimpleNamespace(run=take))
        assert cli.main(arguments) == 0
        if len(seen) > 1:
            return dict(enumerate(seen))  # type: ignore[arg-type]
        return {name: getattr(seen[0], name) for name in seen[0].__slots__ if not name.startswith("_")}  # type: ignore[attr-defined]

    return call


@pytest.mark.parametrize("program", SAME_PROGRAM.values(), ids=SAME_PROGRAM.keys())
def test_every_way_to_start_it_is_the_same_program(program: list[str]) -> None:
    assert run(program, "--version").stdout == f"runner {__version__} (Python {platform.python_version()})\n"
    assert run(program, "--help").stdout == run(SAME_PROGRAM["the console script"], "--help").stdout
    assert run(program, "no-such-command").returncode == 2


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_asking_for_help_or_version_imports_nothing_heavy(argument: str) -> None:
    program = f"""
import sys
from basestation_runner.cli import main
status = main([{argument!r}])
loaded = {set(HEAVY)!r} & sys.modules.keys()
sys.exit(f"loaded: {{loaded}}" if loaded else status)
"""
    done = run([sys.executable, "-c", program])
    assert (done.returncode, done.stderr) == (0, "")


def test_asking_for_the_version_alone_loads_no_command_line() -> None:
    program = """
import sys
from basestation_runner.__main__ import main
sys.argv = ["runner", "--version"]
status = main()
sys.exit("click is loaded" if "click" in sys.modules else status)
"""
    done = run([sys.executable, "-c", program])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run(SAME_PROGRAM["the package"], "--debug", "--version").stdout


def test_a_version_that_cannot_be_written_is_a_fault() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*SAME_PROGRAM["the package"], "--version"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 70
    assert b"No space left on device" in done.stderr


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_commands_own_help_needs_no_daemons_libraries(name: str) -> None:
    blocked = "\n".join(f"sys.modules[{module!r}] = None" for module in (*HEAVY, "asyncore"))
    done = run(
        [sys.executable, "-c", f"import sys\n{blocked}\nfrom basestation_runner import cli\nsys.exit(cli.main())"],
        name,
        "--help",
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_table_names_each_command_as_it_is_called(name: str) -> None:
    module, _, function = cli.COMMANDS[name][0].partition(":")
    found = getattr(import_module(module), function)
    assert isinstance(found, click.Command)
    assert found.name == name


def test_every_module_of_commands_is_in_the_table() -> None:
    modules = {path.stem for path in (ROOT / "basestation_runner" / "commands").glob("*.py")}
    known = {target.partition(":")[0].rpartition(".")[2] for target, _ in cli.COMMANDS.values()}
    assert modules - {"__init__", "common"} == known


@pytest.mark.parametrize("status", [0, 1, 75])
def test_the_exit_status_is_what_the_command_returns(
    status: int, command: Callable[[Callable[[], object]], None]
) -> None:
    command(lambda: status)
    assert cli.main(["do"]) == status


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (RunnerError("bad", where="sites.yaml", hint="better"), 1, "runner: sites.yaml: bad (better)\n"),
        (TemporaryError("not yet"), 75, "runner: not yet\n"),
        (KeyError("k\n"), 70, "runner: internal error: KeyError: 'k\\n' (runner --debug shows where it happened)\n"),
        (BrokenPipeError("a socket"), 70, None),
        (EOFError("x"), 70, None),
        (ModuleNotFoundError("no prctl", name="prctl"), 1, None),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_a_command_raises_becomes_one_line_and_a_status(
    error: BaseException,
    status: int,
    line: str | None,
    command: Callable[[Callable[[], object]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(fail(error))
    assert cli.main(["do"]) == status
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert shown == line if line is not None else shown.count("\n") == 1


def test_debug_shows_where_it_happened(
    command: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(fail(RunnerError("bad")))
    assert cli.main(["--debug", "do"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):\n")
    assert shown.endswith("\nrunner: bad\n")


def test_a_missing_library_is_named_with_the_extra_that_brings_it(
    command: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(fail(ModuleNotFoundError("No module named 'prctl'", name="prctl")))
    cli.main(["do"])
    assert "pip install 'basestation-runner[daemon]'" in capsys.readouterr().err


def test_a_command_that_forgets_its_status_is_an_internal_error(
    command: Callable[[Callable[[], object]], None],
) -> None:
    command(lambda: None)
    assert cli.main(["do"]) == 70


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["watch", "--no-such-option"], ["watch", "--max-running=0"]]
)
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert "Error: " in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_a_reader_that_has_had_enough_is_not_an_internal_error(argument: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*SAME_PROGRAM["the package"], argument], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_shell_can_complete_commands() -> None:
    environment = {**os.environ, "_RUNNER_COMPLETE": "bash_complete", "COMP_WORDS": "runner val", "COMP_CWORD": "1"}
    done = subprocess.run(
        SAME_PROGRAM["the console script"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "plain,validate-config\n"


def test_the_existing_daemons_spellings_work(options_of: Callable[..., dict[str, object]]) -> None:
    watch = options_of(
        "basestation_runner.watch.start",
        "watch",
        "--sites_config=/a",
        "--priv_exec_socket=/b",
        "--base_log=/c",
        "--job_completions_log=/d",
    )
    assert [watch[name] for name in ("sites_config", "priv_exec_socket", "base_log", "job_completions_log")] == [
        Path("/a"),
        Path("/b"),
        Path("/c"),
        Path("/d"),
    ]
    helper = options_of("basestation_runner.privexec.start", "privexec", "--cgroup_root=/e", "--sites_config", "/f")
    assert (helper["cgroup_root"], helper["sites_config"]) == (Path("/e"), Path("/f"))


def test_defaults_are_the_installed_paths(options_of: Callable[..., dict[str, object]]) -> None:
    assert options_of("basestation_runner.watch.start", "watch") == {
        "sites_config": Path("/etc/baserunner/sites.yaml"),
        "applications_config": None,
        "priv_exec_socket": Path("/run/baserunner/priv_exec.sock"),
        "control_socket": Path("/run/baserunner-watch/control.sock"),
        "state_dir": Path("/var/lib/baserunner"),
        "base_log": None,
        "log_format": "text",
        "max_running": 4 * len(os.sched_getaffinity(0)),
        "max_queued": 50_000,
        "absent_patience": 600.0,
        "job_completions_log": None,
        "on_failure": None,
        "metrics": None,
        "http": None,
        "debug": False,
    }
    assert options_of("basestation_runner.privexec.start", "--debug", "privexec") == {
        "sites_config": Path("/etc/baserunner/sites.yaml"),
        "applications_config": None,
        "priv_exec_socket": Path("/run/baserunner/priv_exec.sock"),
        "state_dir": Path("/var/lib/baserunner-exec"),
        "cache_dir": Path("/var/cache/baserunner-exec"),
        "cgroup_root": None,
        "watcher_user": None,
        "base_log": None,
        "log_format": "text",
        "debug": True,
    }


def test_the_default_profiles_are_taken_only_where_they_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(location, "APPLICATIONS_CONFIG", tmp_path / "applications.yaml")
    assert location.applications_path(None) is None
    (tmp_path / "applications.yaml").symlink_to("a dangling link is a fault to show, not an absent file")
    assert location.applications_path(None) is not None


def test_profiles_that_were_asked_for_are_never_silently_left_out(
    options_of: Callable[..., dict[str, object]],
) -> None:
    given = options_of("basestation_runner.watch.start", "watch", "--applications-config", "/nowhere/a.yaml")
    assert given["applications_config"] == Path("/nowhere/a.yaml")


def test_relative_paths_are_taken_from_the_working_directory(
    options_of: Callable[..., dict[str, object]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert options_of("basestation_runner.watch.start", "watch", "--state-dir", "s")["state_dir"] == tmp_path / "s"


def test_an_empty_path_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "--base-log", ""]) == 2
    assert "a path is expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "ago"), [("90s", 90), ("30m", 1800), ("24h", 86400), ("7d", 604_800), ("999999999d", None)]
)
def test_a_time_may_be_given_as_how_long_ago_it_was(text: str, ago: int | None) -> None:
    before = time.time()
    found = common.Since().convert(text, None, None)
    assert found == 0 if ago is None else before - ago <= found <= time.time() - ago


def test_a_time_may_be_given_as_a_date() -> None:
    assert common.Since().convert("2026-11-30T12:00:00+00:00", None, None) == 1796040000.0
    assert common.Since().convert("2026-11-30", None, None) == datetime(2026, 11, 30).astimezone().timestamp()


@pytest.mark.parametrize("text", ["", "yesterday", "-1h", "1w", "12"])
def test_what_is_no_time_is_wrong_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--since", text]) == 2
    assert "is neither like 30m" in capsys.readouterr().err


def test_jobs_can_be_asked_for_in_every_state_that_there_is() -> None:
    assert list(STATES) == list(State)
    assert set(FAILURES) == FINAL - {State.SUCCEEDED, State.CANCELLED}
