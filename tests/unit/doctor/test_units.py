"""What of a unit is not as shipped, as systemd reads unit files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner import program
from basestation_runner.config.probes import Unseen
from basestation_runner.doctor import units
from basestation_runner.doctor.facts import SLICE, UNITS, Systemd
from tests.unit.doctor.good import unit

TOP = Path(__file__).parents[3]
NAMES = (*UNITS.values(), SLICE)
HELPER = unit(UNITS["helper"])
DROP_IN = "/etc/systemd/system/baserunner-exec.service.d/x.conf"


def differing(text: str) -> list[tuple[str, tuple[str, ...], str]]:
    found = units.differences(evolve(HELPER, drop_ins={DROP_IN: text}))
    return [(each.setting, each.found, each.file) for each in found]


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_is_as_it_was_shipped(name: str) -> None:
    assert list(units.differences(unit(name))) == []


def test_a_clone_knows_the_units_that_are_shipped() -> None:
    assert units.shipped().keys() == set(NAMES)
    assert all(text == unit(name).shipped for name, text in units.shipped().items())


def test_the_compiled_program_knows_the_units_from_where_its_build_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build compiles a copy of the source, and files beside a module stay beside it."""
    build = (TOP / "packaging/nuitka/build").read_text().splitlines()
    (copying,) = (line for line in build if line.startswith("cp ") and "packaging/systemd" in line)
    module = tmp_path / "source" / Path(units.__file__).relative_to(TOP)
    module.parent.mkdir(parents=True)
    subprocess.run(["/bin/bash", "-euc", copying], env={"here": str(TOP), "work": str(tmp_path)}, check=True)
    monkeypatch.setattr(units, "__file__", str(module))
    monkeypatch.setattr(program, "COMPILED", True)
    assert units.shipped() == {name: unit(name).shipped for name in NAMES}


@given(st.sampled_from(NAMES), st.data())
def test_neither_comments_nor_blanks_nor_continued_lines_make_a_difference(name: str, data: st.DataObject) -> None:
    whole = unit(name)
    written = []
    for line in whole.text.splitlines():
        extra = data.draw(st.sampled_from(["", "# KillMode=none\n", "; x\n", "\n"]))
        if "=" in line and not line.startswith("#"):
            setting, _, value = line.partition("=")
            blank = data.draw(st.sampled_from(["", " "]))
            broken = value.replace(" ", data.draw(st.sampled_from([" ", " \\\n", " \\\n# in between\n", "  "])))
            written.append(f"{extra}{blank}{setting}{blank}={blank}{broken}{blank}")
        else:
            written.append(extra + line)
    assert list(units.differences(evolve(whole, text="\n".join(written)))) == []


def test_a_drop_in_changes_adds_and_takes_back() -> None:
    assert differing("[Service]\nRestartSec=5\n") == [("RestartSec", ("5",), DROP_IN)]
    assert differing("[Service]\nNice=5\n") == [("Nice", ("5",), DROP_IN)]
    assert differing("[Service]\nKillMode=\n") == [("KillMode", (), DROP_IN)]
    assert differing("[Service]\nAmbientCapabilities=CAP_KILL\n") == [
        ("AmbientCapabilities", ("CAP_SETUID CAP_SETGID", "CAP_KILL"), DROP_IN)
    ]
    assert differing("[Service]\nAmbientCapabilities=\nAmbientCapabilities=CAP_SETUID CAP_SETGID\n") == []


def test_a_setting_counts_in_its_section_alone() -> None:
    assert differing("[Unit]\nKillMode=none\n") == [("KillMode", ("none",), DROP_IN)]
    assert differing("[Unit]\nKillMode=process\n[Service]\nKillMode=process\n") == [("KillMode", ("process",), DROP_IN)]


def test_what_a_file_lacks_is_told_without_a_file() -> None:
    text = "".join(line for line in HELPER.text.splitlines(keepends=True) if not line.startswith("KillMode="))
    (found,) = units.differences(evolve(HELPER, text=text))
    assert (found.setting, found.shipped, found.found, found.file) == ("KillMode", ("process",), (), "")


SYSTEMCTL = """\
#!/bin/sh
if [ "$1" = --version ]; then
  echo "systemd 252 (252.39-1~deb12u1)"
  exit
fi
if [ "$3" = --value ]; then
  [ "$5" = of.service ] && echo 4242 || echo 0
  exit
fi
shift 2
for unit; do
  cat <<END
Id=$unit
LoadState=loaded
ActiveState=active
UnitFileState=enabled
NeedDaemonReload=no
FragmentPath=@/$unit
DropInPaths=@/$unit.conf @/gone.conf

END
done
"""


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemd that has all units from a directory."""
    program = tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.replace("@", str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(units, "BOOTED", tmp_path)
    monkeypatch.setattr(units, "_FOLDERS", (str(tmp_path),))
    return program


def test_units_are_read_from_where_systemd_says(systemctl: Path) -> None:
    folder = systemctl.parent
    (folder / UNITS["helper"]).write_text("[Service]\nType=notify\n")
    (folder / f"{UNITS['helper']}.conf").write_text("[Service]\nNice=1\n")
    (folder / f"{UNITS['watcher']}.d").mkdir()
    (folder / f"{UNITS['watcher']}.d" / "new.conf").touch()
    found = units.look()
    assert isinstance(found, Systemd)
    assert found.version == 252
    assert isinstance(found.units, dict)
    assert found.units.keys() == set(NAMES)
    helper = found.units[UNITS["helper"]]
    assert (helper.text, helper.fragment) == ("[Service]\nType=notify\n", str(folder / UNITS["helper"]))
    assert helper.drop_ins == {f"{helper.fragment}.conf": "[Service]\nNice=1\n", str(folder / "gone.conf"): ""}
    assert (helper.load_state, helper.active_state, helper.file_state) == ("loaded", "active", "enabled")
    assert helper.shipped == unit(UNITS["helper"]).shipped
    assert not helper.needs_reload
    assert found.units[UNITS["watcher"]].needs_reload


def test_a_drop_in_that_another_of_its_name_hides_need_not_be_read(
    systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = systemctl.parent
    etc, run = folder / "etc", folder / "run"
    monkeypatch.setattr(units, "_FOLDERS", (str(etc), str(run)))
    systemctl.write_text(SYSTEMCTL.replace("@/$unit.conf", f"{etc}/$unit.d/same.conf").replace("@", str(folder)))
    for name in NAMES:
        for place in (etc, run):
            (place / f"{name}.d").mkdir(parents=True)
            (place / f"{name}.d" / "same.conf").touch()
    (etc / f"{UNITS['helper']}.d" / "none.conf").symlink_to("/dev/null")
    (run / f"{UNITS['watcher']}.d" / "other.conf").touch()
    found = units.look()
    assert isinstance(found, Systemd)
    assert isinstance(found.units, dict)
    assert [name for name in NAMES if found.units[name].needs_reload] == [UNITS["watcher"]]


def test_a_systemd_that_fails_is_told(systemctl: Path) -> None:
    systemctl.write_text("#!/bin/sh\nexit 1\n")
    found = units.look()
    assert isinstance(found, Systemd)
    assert isinstance(found.units, Unseen)


def test_without_systemd_nothing_is_asked(systemctl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "BOOTED", systemctl.parent / "gone")
    systemctl.unlink()
    assert units.look() is None


@pytest.mark.usefixtures("systemctl")
def test_systemd_says_which_process_is_a_units_main_one() -> None:
    assert units.main_process("of.service") == 4242
    assert units.main_process("without.service") is None


def test_where_systemd_does_not_say_so_no_process_is_a_units(systemctl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systemctl.write_text("#!/bin/sh\necho what\n")
    assert units.main_process("of.service") is None
    systemctl.unlink()
    assert units.main_process("of.service") is None
    systemctl.write_text("#!/bin/sh\necho 4242\n")
    monkeypatch.setattr(units, "BOOTED", systemctl.parent / "gone")
    assert units.main_process("of.service") is None
