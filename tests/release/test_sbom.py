"""The bill of materials: complete, in the form that CycloneDX 1.5 prescribes, and with licences."""

from __future__ import annotations

import json
import shutil
import sysconfig
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from release import sbom
from tests.needs import need
from tests.release.form import check_form

if TYPE_CHECKING:
    from release.sbom import Component

TOP: Final = Path(__file__).parents[2]
SAID: Final = {"version": "1.2", "commit": "0123456789ab", "python": "3.11.2", "nuitka": "4.3.3"}
LIBRARY: Final = "libz.so.1"


@pytest.fixture
def debian() -> None:
    need(shutil.which("dpkg-query") is not None, "dpkg-query")


def names(components: list[Component]) -> list[str]:
    return [component.name for component in components]


def test_the_bill_has_the_prescribed_form(debian: None) -> None:  # noqa: ARG001 - only for what it decides
    components = [
        sbom.of_distribution(distribution("click")),
        sbom.of_distribution(distribution("cattrs")),
        sbom.of_package("libc6", static=True),
    ]
    bom = json.loads(json.dumps(sbom.bom(SAID, components, 0)))
    check_form(bom)
    assert bom["metadata"]["component"]["version"] == "1.2"
    assert {"name": "basestation-runner:commit", "value": "0123456789ab"} in bom["metadata"]["component"]["properties"]
    assert bom["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"


def test_the_same_program_has_the_same_bill() -> None:
    components = [sbom.of_distribution(distribution("click"))]
    assert sbom.bom(SAID, components, 0) == sbom.bom(SAID, components, 0)
    assert sbom.bom(SAID, components, 0)["serialNumber"] != sbom.bom(SAID, [], 0)["serialNumber"]


def test_a_distribution_has_its_licence_by_expression_by_field_or_by_classifier_and_its_text() -> None:
    click = sbom.of_distribution(distribution("click"))
    assert (click.version, click.purl) == (distribution("click").version, f"pkg:pypi/click@{click.version}")
    assert click.licenses == [{"expression": "BSD-3-Clause"}]
    assert "Redistribution" in click.texts[0].read_text()
    assert sbom.of_distribution(distribution("cattrs")).licenses == [{"license": {"name": "MIT"}}]
    assert sbom.of_distribution(distribution("python-prctl")).licenses == [
        {"license": {"name": "GNU General Public License (GPL)"}}
    ]


def test_a_bundled_library_has_its_packages_version_and_licence(debian: None, tmp_path: Path) -> None:  # noqa: ARG001
    path = Path("/lib", sysconfig.get_config_var("MULTIARCH"), LIBRARY)
    shutil.copy(path, tmp_path / LIBRARY)
    component = sbom.of_library(tmp_path / LIBRARY, [])
    assert component.name == LIBRARY
    assert component.properties["debian-package"] == "zlib1g"
    assert component.properties["debian-source"] == "zlib"
    assert component.licenses[0] == {"license": {"name": "Zlib"}}
    assert component.texts[0].exists()
    assert component.as_json()["hashes"][0]["alg"] == "SHA-256"


def test_a_library_of_a_wheel_is_told_with_what_brought_it(tmp_path: Path) -> None:
    (name,) = (Path(str(file)).name for file in distribution("pyzmq").files or () if "/libzmq-" in str(file))
    (tmp_path / name).write_bytes(b"library")
    component = sbom.of_library(tmp_path / name, [distribution("click"), distribution("pyzmq")])
    assert (component.name, component.licenses) == ("libzmq", [{"license": {"id": "MPL-2.0"}}])
    assert component.properties == {"part-of": "pyzmq"}


def test_a_library_that_nobody_has_brought_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "libunknown.so.1").write_bytes(b"library")
    with pytest.raises(ValueError, match="no Debian package and no Python distribution has brought it"):
        sbom.of_library(tmp_path / "libunknown.so.1", [distribution("click")])


def test_distributions_are_those_that_the_compiler_has_taken_in(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<nuitka-compilation-report><module name="click" distribution="click"/><module name="click.core" '
        'distribution="click"/><module name="attr" distribution="attrs"/><module name="os"/>'
        "</nuitka-compilation-report>"
    )
    assert [found.metadata["Name"] for found in sbom.distributions_in(report)] == ["attrs", "click"]


def test_libraries_are_what_the_compiler_has_taken_along_that_is_no_module(tmp_path: Path) -> None:
    for name in ("_module.so", "inner/_module.so", "liba.so.1", "inner/libb.so"):
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(b"\x7fELF")
    (tmp_path / "folder" / "libtext.so.txt").write_text("no library")
    report = tmp_path / "report.xml"
    report.write_text(
        '<nuitka-compilation-report><included_extension dest_path="_module.so"/>'
        '<included_extension dest_path="inner/_module.so"/></nuitka-compilation-report>'
    )
    found = sbom.libraries_in(tmp_path / "folder", report)
    assert [str(path.relative_to(tmp_path / "folder")) for path in found] == ["inner/libb.so", "liba.so.1"]


def test_each_components_licence_is_written_beside_the_bill(tmp_path: Path) -> None:
    components = [sbom.of_distribution(distribution(name)) for name in ("click", "structlog", "python-prctl")]
    sbom.write_texts(components, tmp_path)
    assert names(components[:2]) == sorted(path.stem for path in tmp_path.iterdir())
    assert "Apache License" in (tmp_path / "structlog.txt").read_text()
