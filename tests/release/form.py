"""The form of a bill of materials, as the schema of CycloneDX 1.5 has it, of what is used of that."""

from __future__ import annotations

import re
from typing import Any


def check_form(bom: dict[str, Any]) -> None:
    """Assert what the schema of CycloneDX 1.5 demands of what is used of it."""
    assert (bom["bomFormat"], bom["specVersion"], bom["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bom["serialNumber"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", bom["metadata"]["timestamp"])
    assert bom.keys() == {
        "bomFormat", "specVersion", "version", "serialNumber", "metadata", "components", "dependencies",
    }  # fmt: skip
    components = [bom["metadata"]["component"], *bom["components"]]
    for component in components:
        assert component["type"] in {"application", "library", "platform"}
        assert all(isinstance(component[key], str) and component[key] for key in ("name", "version", "bom-ref"))
        assert component.keys() <= {
            "type", "bom-ref", "name", "version", "purl", "licenses", "hashes", "properties",
        }  # fmt: skip
        assert re.fullmatch(r"pkg:(pypi|deb/debian|generic)/[^@\s]+@[^@\s]+", component["bom-ref"])
        _check_licenses(component["licenses"])
        for each in component.get("hashes", ()):
            assert each["alg"] == "SHA-256"
            assert re.fullmatch("[0-9a-f]{64}", each["content"])
        for each in component.get("properties", ()):
            assert each.keys() == {"name", "value"}
    references = [component["bom-ref"] for component in components]
    assert len(references) == len(set(references))
    (dependency,) = bom["dependencies"]
    assert dependency["ref"] == references[0]
    assert dependency["dependsOn"] == references[1:]


def _check_licenses(licenses: list[dict[str, Any]]) -> None:
    assert licenses
    if "expression" in licenses[0]:  # then it is the only one
        assert [each.keys() for each in licenses] == [{"expression"}]
        return
    for each in licenses:
        assert each.keys() == {"license"}
        assert each["license"].keys() in ({"id"}, {"name"})
        assert all(each["license"].values())
