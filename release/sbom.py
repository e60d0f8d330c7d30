"""What is inside the compiled program, as CycloneDX, and the licences: `python -m release.sbom FOLDER REPORT OUTPUT`.

FOLDER is the program's, REPORT Nuitka's on how it was compiled, with the libraries of the Python that runs this.
Whatever is in the folder and has no known origin is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
import uuid
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from release import elf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NAME: Final = "basestation-runner"
OUTPUT: Final = "sbom.cdx.json"
LICENSES: Final = "licenses"
"""The folder beside it that holds each component's licence text."""

VENDORED: Final[Mapping[str, str]] = {"libzmq": "MPL-2.0", "libsodium": "ISC"}
"""Libraries that wheels bring along, by name, and their licences, which no metadata tells."""

STATIC: Final = ("libc6-dev", "libzstd-dev")
"""Debian packages of which the one-file program has a part in it."""

_VERSION: Final = re.compile(
    r"runner (?P<version>\S+) \(commit (?P<commit>\S+), Python (?P<python>\S+), Nuitka (?P<nuitka>\S+)\)"
)
_NAMED_LIBRARY: Final = re.compile(r"(?P<name>lib[a-z0-9_+]+)(-[0-9a-f]+)?\.so\.(?P<version>[0-9.]+)")
_PLACES: Final = ("/usr/lib", "/lib")


@dataclass(frozen=True)
class Component:
    """One thing that is inside, and the files with its licence."""

    name: str
    version: str
    purl: str
    licenses: list[dict[str, Any]]
    texts: tuple[Path, ...] = ()
    kind: str = "library"
    file: Path | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return what CycloneDX calls a component."""
        found: dict[str, Any] = {
            "type": self.kind,
            "bom-ref": self.purl,
            "name": self.name,
            "version": self.version,
            "purl": self.purl,
            "licenses": self.licenses,
        }
        if self.file is not None:
            found["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(self.file.read_bytes()).hexdigest()}]
        if self.properties:
            found["properties"] = [{"name": f"{NAME}:{key}", "value": value} for key, value in self.properties.items()]
        return found


def of_distribution(found: Distribution) -> Component:
    """Given an installed Python distribution, return the component that it is."""
    name, version = found.metadata["Name"], found.version
    files = found.files or ()
    texts = tuple(Path(str(found.locate_file(file))) for file in files if _is_license(str(file)))
    purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
    return Component(name, version, purl, list(_licenses(found)), texts)


def _is_license(file: str) -> bool:
    directory, _, name = file.rpartition("/")
    return ".dist-info" in directory and re.match(r"(LICEN[CS]E|COPYING|NOTICE)", name) is not None


def _licenses(found: Distribution) -> Iterator[dict[str, Any]]:
    """What the metadata says, from the newest field to the oldest."""
    metadata = found.metadata
    classifiers = [
        line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier", ()) if line.startswith("License ::")
    ]
    expressions = metadata.get_all("License-Expression", ())
    texts = [text for text in metadata.get_all("License", ()) if text and "\n" not in text]
    if expressions:
        yield {"expression": expressions[0]}
    elif texts:
        yield {"license": {"name": texts[0]}}
    elif classifiers:
        yield from ({"license": {"name": name}} for name in classifiers)
    else:
        raise ValueError(f"{found.metadata['Name']}: its metadata names no licence")


def of_package(package: str, *, file: Path | None = None, static: bool = False) -> Component:
    """Given an installed Debian package, return the component that it is, or a file of it; `static` if that is in the
    one-file program alone.
    """
    form = "${Version} ${Architecture} ${source:Package}"
    version, architecture, source = _output("dpkg-query", "-W", "-f", form, package).split()
    package = package.partition(":")[0]
    copyright_file = Path("/usr/share/doc", package, "copyright")
    quoted = version.replace("+", "%2B").replace("~", "%7E").replace(":", "%3A")
    purl = f"pkg:deb/debian/{package}@{quoted}?arch={architecture}" + (f"#{file.name}" if file else "")
    properties = {"debian-package": package, "debian-source": source}
    if static:
        properties["linked"] = "statically, into the C programs"
    return Component(
        file.name if file else package,
        version,
        purl,
        _debian_licenses(copyright_file),
        (copyright_file,),
        file=file,
        properties=properties,
    )


def _debian_licenses(file: Path) -> list[dict[str, Any]]:
    """Given a package's copyright file, return the licences of its files; where that cannot be read by programs, where
    the text is.
    """
    text = file.read_text(encoding="utf-8", errors="replace")
    paragraphs = [paragraph for paragraph in text.split("\n\n") if re.search(r"^Files:", paragraph, re.MULTILINE)]
    names = [
        name for paragraph in paragraphs for name in re.findall(r"^License:[ \t]*(\S.*)$", paragraph, re.MULTILINE)
    ]
    unique = list(dict.fromkeys(name.strip() for name in names)) or [f"see {LICENSES}/{file.parent.name}.txt"]
    return [{"license": {"name": name}} for name in unique]


def of_library(file: Path, distributions: Iterable[Distribution]) -> Component:
    """Given a shared library of the folder, return the component that it is: of a Debian package, or out of a wheel.

    Raises ValueError if it is of neither.
    """
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for place in _PLACES:
        path = Path(place, multiarch, file.name)
        if path.exists() and (package := _owner(path)):
            return of_package(package, file=file)
    for found in distributions:
        if any(Path(str(each)).name == file.name for each in found.files or ()):
            return _vendored(file, found)
    raise ValueError(f"{file}: no Debian package and no Python distribution has brought it")


def _vendored(file: Path, found: Distribution) -> Component:
    parts = _NAMED_LIBRARY.fullmatch(file.name)
    if parts is None or parts["name"] not in VENDORED:
        raise ValueError(f"{file}: {found.metadata['Name']} brings it; add its licence to VENDORED in {__file__}")
    purl = f"pkg:generic/{parts['name']}@{parts['version']}"
    return Component(
        parts["name"],
        parts["version"],  # of the library's file, not the project's
        purl,
        [{"license": {"id": VENDORED[parts["name"]]}}],
        file=file,
        properties={"part-of": found.metadata["Name"]},
    )


def _owner(path: Path) -> str | None:
    done = subprocess.run(["dpkg-query", "-S", str(path)], capture_output=True, text=True, check=False)
    return done.stdout.partition(": ")[0] if done.returncode == 0 else None


def _output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def distributions_in(report: Path) -> list[Distribution]:
    """Given Nuitka's report, return the distributions whose modules were compiled in, or taken along."""
    modules = ET.parse(report).getroot().iter("module")  # noqa: S314 - the compiler has just written it
    names = {name for module in modules for name in module.get("distribution", "").split(",") if name}
    return [distribution(name) for name in sorted(names, key=str.lower)]


def libraries_in(folder: Path, report: Path) -> list[Path]:
    """Given the folder and Nuitka's report, return the shared libraries that are no Python modules."""
    modules = ET.parse(report).getroot().iter("included_extension")  # noqa: S314 - as above
    extensions = {folder / module.attrib["dest_path"] for module in modules}
    return [path for path in sorted(folder.rglob("*.so*")) if path not in extensions and elf.is_elf(path)]


def components_of(folder: Path, report: Path, said: Mapping[str, str]) -> list[Component]:
    """Given the folder, the report and the versions that the program tells, return all that is inside."""
    if said["python"] != platform.python_version():
        raise ValueError(f"{folder} was compiled with Python {said['python']}, and this is {platform.python_version()}")
    distributions = distributions_in(report)
    nuitka = of_distribution(distribution("nuitka"))
    runtime = [text for text in nuitka.texts if "RUNTIME" in text.name]
    exception = {"license": {"name": "AGPL-3.0-only with the Nuitka Runtime Library Exception 1.0"}}
    owner = _owner(Path(sys.executable).resolve())
    if owner is None:
        raise ValueError(f"{sys.executable} is of no Debian package")
    python = of_package(owner)
    licenses = [{"license": {"id": "PSF-2.0"}}]
    return [
        Component(
            "CPython", said["python"], python.purl, licenses, python.texts, "platform", properties=python.properties
        ),
        Component("Nuitka", nuitka.version, nuitka.purl, [exception], (*runtime, *nuitka.texts), "application"),
        *map(of_distribution, distributions),
        *(of_library(path, distributions) for path in libraries_in(folder, report)),
        *(of_package(package, static=True) for package in STATIC),
    ]


def bom(said: Mapping[str, str], components: Iterable[Component], timestamp: float) -> dict[str, Any]:
    """Return the whole as CycloneDX 1.5."""
    top = {
        "type": "application",
        "bom-ref": f"pkg:generic/{NAME}@{said['version']}",
        "name": NAME,
        "version": said["version"],
        "licenses": [{"license": {"id": "BSD-3-Clause"}}],
        "properties": [{"name": f"{NAME}:commit", "value": said["commit"]}],
    }
    parts = [component.as_json() for component in components]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([top, parts, timestamp]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(timestamp)), "component": top},
        "components": parts,
        "dependencies": [{"ref": top["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def write_texts(components: Iterable[Component], directory: Path) -> None:
    """Write each component's licence into a file of the component's name."""
    directory.mkdir(parents=True, exist_ok=True)
    for component in components:
        texts = [text.read_text(encoding="utf-8", errors="replace") for text in component.texts]
        if texts:
            name = component.properties.get("debian-package", component.name)
            (directory / f"{name}.txt").write_text("\n\n".join(texts), encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Write the bill of materials, and the licences beside it."""
    folder, report, output = map(Path, arguments)
    said = _VERSION.match(_output(str(folder / "runner"), "--version"))
    if said is None:
        raise ValueError(f"{folder}/runner does not say what it was made of")
    components = components_of(folder, report, said.groupdict())
    write_texts(components, output / LICENSES)
    whole = bom(said.groupdict(), components, float(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    (output / OUTPUT).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
