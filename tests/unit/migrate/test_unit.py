"""A legacy unit is read as systemd has read it, however it was written."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.errors import RunnerError
from basestation_runner.migrate import unit as units
from basestation_runner.migrate.unit import Directive, EnvironmentFile
from tests.unit.migrate import samples

PLAIN_TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_characters="\"'\\"), min_size=1)


def quoted(word: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def test_a_command_keeps_its_words_over_lines_comments_and_quotes() -> None:
    unit = units.parse(samples.shown(samples.PLAIN_ARGV, **samples.PLAIN_VALUES), samples.PLAIN)
    assert unit.argv == (
        "/usr/bin/python3",
        "/usr/local/base station/BaseRunner.py",
        "--archive",
        "--no-archive",
        "/srv/train/run dir",
    )
    assert unit.supplementary == ("instruments", "secretive")
    assert unit.variables == {"GREETING": "hello there", "CASE": "8"}
    assert unit.environment_files == (EnvironmentFile("/etc/default/train", is_optional=True),)
    assert unit.cpu_quota_us == 2_500_000
    assert (unit.memory_high, unit.memory_max, unit.tasks_max) == (2 << 30, 3 << 30, 100)
    assert unit.is_active
    assert unit.is_enabled


def test_directives_are_told_with_their_files_and_what_a_drop_in_takes_back_is_not() -> None:
    found = list(units.directives(samples.PLAIN))
    drop_in = "/etc/systemd/system/baserunner-train.service.d/limits.conf"
    assert [each for each in found if each.name == "Nice"] == [Directive("Service", "Nice", "7", drop_in)]
    assert Directive("Unit", "Description", "A plain unit without a jail", samples.PLAIN.split()[1]) in found


def test_a_drop_in_can_replace_the_command() -> None:
    text = samples.JAILED + (
        "\n# /etc/systemd/system/baserunner-alpha@.service.d/override.conf\n[Service]\nExecStart=\n"
        "ExecStart=-/usr/bin/python3 /x/BaseRunner.py %h/rundir\n"
    )
    unit = units.parse(samples.shown("/usr/bin/python3 /x/BaseRunner.py /home/me/rundir"), text)
    assert unit.argv == ("/usr/bin/python3", "/x/BaseRunner.py", "/home/me/rundir")


def test_a_command_that_systemd_has_not_read_like_this_is_refused() -> None:
    with pytest.raises(RunnerError, match="not what its files say"):
        units.parse(samples.shown("/usr/bin/python3 /x/BaseRunner.py /y"), samples.JAILED)
    with pytest.raises(RunnerError, match="several commands"):
        units.parse(samples.shown("/a b") + "ExecStart={ path=/b ; argv[]=/b ; ignore_errors=no ; }\n", samples.JAILED)


@pytest.mark.parametrize(
    ("written", "told", "found"),
    [
        ("/bin/x --%i-%% %n", "/bin/x --me-% a@me.service", ("/bin/x", "--me-%", "a@me.service")),
        ("@/bin/x zero one", "zero one", ("zero", "one")),
        ("-!/bin/x 'a b' c", "/bin/x a b c", ("/bin/x", "a b", "c")),
        (r"/bin/x a\x20b \u00e4", "/bin/x a b ä", ("/bin/x", "a b", "ä")),
        ('/bin/x ""', "/bin/x ", ("/bin/x", "")),
        ("/bin/x a", "/bin/x b", None),
    ],
)
def test_specifiers_become_what_systemd_tells(written: str, told: str, found: tuple[str, ...] | None) -> None:
    assert units.resolved(written, told) == found


@given(st.lists(PLAIN_TEXT | st.text(st.characters(min_codepoint=32, max_codepoint=126)), min_size=1, max_size=6))
def test_any_words_in_quotes_are_found_again(words: list[str]) -> None:
    assert units.words(" ".join(map(quoted, words))) == words
    command = ["/bin/x", *words]
    assert units.resolved(" ".join(quoted(word).replace("%", "%%") for word in command), " ".join(command)) == tuple(
        command
    )


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), st.text("ab $`\"'\\=#;\t", max_size=12)))
def test_any_variables_of_a_file_are_found_again(variables: dict[str, str]) -> None:
    text = "".join(f"{name}=" + '"' + re.sub(r'(["\\`$])', r"\\\1", value) + '"\n' for name, value in variables.items())
    assert units.variables_of(f"# a comment\n; another\n{text}") == variables


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=b c \n", {"A": "b c"}),
        ("A='b \\\" c' # no comment\n", {"A": 'b \\" c # no comment'}),
        ("A=b\\\nc\nB=d", {"A": "bc", "B": "d"}),
        ('A="b\nc"\nB=d\n', {"A": "b\nc", "B": "d"}),
        ("export A=b\n9=c\nnonsense\n", {}),
        ("A=\n", {"A": ""}),
    ],
)
def test_a_file_of_variables_is_read_as_systemd_does(text: str, found: dict[str, str]) -> None:
    assert units.variables_of(text) == found


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    units.words(text)
    units.listed(text)
    units.variables_of(text)
    list(units.directives(text))
    units.properties(text)


@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126)), max_size=5))
def test_a_list_is_found_again_as_systemctl_shows_it(entries: list[str]) -> None:
    def shown(entry: str) -> str:
        if entry and not set(entry) & set(" \"'\\`$*?[]();&<>|~#{}=!^"):
            return entry
        return '"' + re.sub(r'(["\\`$])', r"\\\1", entry) + '"'

    assert units.listed(" ".join(map(shown, entries))) == entries


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("600ms", 600_000), ("1s", 10**6), ("1.500000s", 1_500_000), ("1min 40s", 100 * 10**6), ("5us", 5)],
)
def test_time_spans_are_understood(text: str, microseconds: int) -> None:
    assert units.timespan(text) == microseconds


def test_what_is_no_time_span_is_refused() -> None:
    with pytest.raises(RunnerError, match="no time span"):
        units.timespan("soon")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("${DIR}/x", ["/srv/a b/x"]),
        ("$DIR", ["/srv/a", "b"]),
        ("$NONE", []),
        ("${NONE}", [""]),
        ("$$DIR", ["$DIR"]),
        ("a$DIR", ["a$DIR"]),
    ],
)
def test_variables_in_a_command_are_replaced_as_when_it_is_executed(word: str, found: list[str]) -> None:
    assert list(units.expand(["$DIR", word], {"DIR": "/srv/a b"})) == ["$DIR", *found]
