"""The list of what was installed: what is written is read again, and what is not ours leads nowhere."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basestation_runner.errors import RunnerError
from basestation_runner.install import manifest
from basestation_runner.install.manifest import Manifest

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.text("ab0.-~ ", min_size=1, max_size=4).filter(lambda name: name not in {".", ".."})
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
DIGESTS = st.sampled_from([hashlib.sha256(content).hexdigest() for content in (b"one", b"two")])
MANIFESTS = st.builds(Manifest, st.dictionaries(PATHS, DIGESTS, max_size=3), st.frozensets(PATHS, max_size=3))


@given(MANIFESTS)
def test_what_is_written_is_read_again(written: Manifest) -> None:
    assert manifest.loads(manifest.dumps(written)) == written


@given(MANIFESTS, st.data())
def test_a_manifest_that_is_cut_is_not_taken_for_a_whole_one_with_other_lines(
    written: Manifest, data: st.DataObject
) -> None:
    text = manifest.dumps(written)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    try:
        found = manifest.loads(cut)
    except ValueError:
        return
    assert found.files.items() <= written.files.items()
    assert found.directories <= written.directories


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../etc/passwd", "usr/../../etc/passwd", "usr//lib", "usr/lib/", "", "."]
)
def test_a_path_that_leads_elsewhere_is_refused(path: str, tmp_path: Path) -> None:
    for manifest_with_it in (Manifest({path: "0" * 64}), Manifest({}, frozenset({path}))):
        (tmp_path / "manifest").write_text(manifest.dumps(manifest_with_it))
        with pytest.raises(RunnerError) as error:
            manifest.load(tmp_path / "manifest")
        assert error.value.where == str(tmp_path / "manifest")
        assert error.value.hint


def test_there_may_be_none(tmp_path: Path) -> None:
    assert manifest.load(tmp_path / "manifest") is None


def test_sha256sum_finds_what_has_been_changed(tmp_path: Path) -> None:
    digests = {}
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        digests[name] = hashlib.sha256(name.encode()).hexdigest()
    (tmp_path / "manifest").write_text(manifest.dumps(Manifest(digests, frozenset({"three"}))))
    assert shutil.which("sha256sum") is not None
    command = ["sha256sum", "--check", "--quiet", "manifest"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    (tmp_path / "two").write_text("other")
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "two: FAILED\n")
