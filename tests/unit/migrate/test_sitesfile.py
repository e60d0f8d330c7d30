"""sites.yaml gets an entry, or loses it, and all else in it stays as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.config.document import Source, parse
from basestation_runner.errors import RunnerError
from basestation_runner.migrate import sitesfile

FILE = Path("sites.yaml")
ENTRY = {"watch_dir": "/r", "groups": ["a", 7], "jailed": False, "env": {"A": "true", "B": "010"}}
TEXT = """\
# ours
one:                     # the first
    watch_dir:   "/one"  # quoted, indented by four
    groups: [x,   y]

# before two
two: {watch_dir: /two}
three:
  groups:
  - a
  - b
# at the end
"""


def test_an_entry_is_added_at_the_end_and_taken_out_again() -> None:
    new = sitesfile.added(FILE, TEXT, "alpha", ENTRY)
    assert new.startswith(TEXT)
    assert new.removeprefix(TEXT).splitlines()[:4] == ["", "alpha:", "  watch_dir: /r", "  groups: [a, 7]"]
    assert sitesfile.removed(FILE, new, "alpha") == TEXT


def test_what_was_written_after_an_entry_stays_with_its_comments() -> None:
    new = sitesfile.added(FILE, TEXT, "alpha", ENTRY) + "# of beta\nbeta: {watch_dir: /b}\n"
    assert sitesfile.removed(FILE, new, "alpha") == TEXT + "\n# of beta\nbeta: {watch_dir: /b}\n"
    assert sitesfile.removed(FILE, TEXT, "three") == TEXT.partition("three:")[0] + "# at the end\n"
    assert sitesfile.removed(FILE, TEXT, "nobody") == TEXT


@pytest.mark.parametrize(
    "text", ["", "# nothing yet\n", "# no line end", "{}\n", "{one: {watch_dir: /one}}  # in one line\n"]
)
def test_a_file_of_any_form_gets_an_entry(text: str) -> None:
    new = sitesfile.added(FILE, text, "alpha", ENTRY)
    assert parse(Source("", new.encode())).data["alpha"] == ENTRY
    assert text.rpartition("#")[2].strip("{}\n ") in new


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("z: {}\na:\n  x: /a\n# y: 60 was too slow\n  y: 2\nb:\n  x: /b\n", "z: {}\nb:\n  x: /b\n"),
        ("z: {}\na:\n  x: 'one\n\ntwo'\nb: {}\n", "z: {}\nb: {}\n"),
        ("z: {}\n\na:\n  x: /a\n\n# about b\nb: {}\n", "z: {}\n\n# about b\nb: {}\n"),
        ("z: {}\na: {}\n\nb: {}\n", "z: {}\n\nb: {}\n"),
        ("z: {}\n\n# about a\n# and more\na: {}\nb: {}\n", "z: {}\n\nb: {}\n"),
        ("# of this file\na: {}\nb: {}\n", "# of this file\nb: {}\n"),
        ("z: {}\n\na: {}\n", "z: {}\n"),
        ("a: {\n  x: /a\n}\nb: {}\n", "b: {}\n"),
        ("  a:\n    x: /a\n  # about b\n  b:\n    x: /b\n", "  # about b\n  b:\n    x: /b\n"),
        ("{a: {x: /a}, b: {x: /b}}\n", "{b: {x: /b}}\n"),
        ("a: &d\n  x: {y: 1}\nb: *d\n", "b:\n  x: {y: 1}\n"),
    ],
)
def test_an_entry_of_any_form_is_taken_out_with_what_is_about_it_alone(text: str, rest: str) -> None:
    assert sitesfile.removed(FILE, text, "a") == rest


def test_an_entry_that_is_there_is_not_written_again() -> None:
    with pytest.raises(RunnerError, match="there already"):
        sitesfile.added(FILE, TEXT, "one", ENTRY)
    with pytest.raises(RunnerError, match="holds no sites"):
        sitesfile.added(FILE, "- one\n", "alpha", ENTRY)


NAMES = st.sampled_from(["one", "two", "a.b", "5x", "no", "true-1"])
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_characters="\x7f\u2028\u2029")).filter(
    lambda text: all(not 0x7F <= ord(letter) < 0xA0 for letter in text)
)


@given(st.lists(NAMES, unique=True, min_size=1), st.dictionaries(st.sampled_from(["env", "x", "y"]), VALUES))
def test_whatever_is_added_is_read_as_meant_and_can_be_taken_out(names: list[str], fields: dict[str, str]) -> None:
    text = "# top\n"
    texts = [text]
    for name in names:
        text = sitesfile.added(FILE, text, name, {"watch_dir": "/r", **fields})
        texts.append(text)
        assert parse(Source("", text.encode())).data[name] == {"watch_dir": "/r", **fields}
    for name, before in zip(reversed(names), reversed(texts[:-1]), strict=True):
        text = sitesfile.removed(FILE, text, name)
        assert text == before


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "sites.yaml"
    sitesfile.replace(path, "a: 1\n")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("a: 1\n", 0o644)
    path.chmod(0o640)
    sitesfile.replace(path, "b: 1\n")
    assert (sitesfile.read(path), path.stat().st_mode & 0o777) == ("b: 1\n", 0o640)
    assert [each.name for each in tmp_path.iterdir()] == ["sites.yaml"]
    link = tmp_path / "link"
    link.symlink_to(path)
    sitesfile.replace(link, "c: 1\n")
    assert (link.is_symlink(), sitesfile.read(path)) == (True, "c: 1\n")
    link.unlink()
    sitesfile.replace(path, None)
    assert sitesfile.read(path) is None
    with pytest.raises(RunnerError, match="cannot be written"):
        sitesfile.replace(tmp_path / "none/sites.yaml", "a: 1\n")
