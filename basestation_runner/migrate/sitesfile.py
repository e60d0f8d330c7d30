"""sites.yaml with one entry more or less, comments and order kept, and replaced in one step."""

import io
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from attrs import fields_dict
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq
from ruamel.yaml.error import YAMLError

from basestation_runner.config.document import Source, parse
from basestation_runner.config.model import Site
from basestation_runner.errors import RunnerError

_WIDTH: Final = 120
_MODE: Final = 0o644


def added(path: Path, text: str, site: str, entry: Mapping[str, Any]) -> str:
    """Given a sites.yaml, return it with an entry at its end. Raises RunnerError or ConfigErrors."""
    before = _data(path, text)
    if site in before:
        raise RunnerError(f"site {site} is there already", where=str(path))
    wanted = before | {site: dict(entry)}
    # A comment at the end is not about this entry, and must not go with it one day.
    apart = "\n" if text.rstrip("\n").rpartition("\n")[2].startswith("#") and not text.endswith("\n\n") else ""
    appended = _ended(text) + apart + _dumped({site: _in_lines(entry)})
    with suppress(RunnerError):  # a file that is not simply one entry below the other
        return _checked(path, appended, wanted)
    try:
        data = _yaml().load(text)
        data[site] = _in_lines(entry)
        return _checked(path, _dumped(data), wanted)
    except YAMLError as error:
        raise RunnerError(f"it cannot be changed: {error}", where=str(path)) from error


def removed(path: Path, text: str, site: str) -> str:
    """Given a sites.yaml, return it without an entry. Raises RunnerError or ConfigErrors.

    The comment directly above the entry goes with it; the file's first comment, and what is above the next entry, stay.
    """
    before = _data(path, text)
    if site not in before:
        return text
    rest = {name: entry for name, entry in before.items() if name != site}
    with suppress(RunnerError):  # a file that is not simply one entry below the other
        return _checked(path, _cut(path, text, site), rest)
    try:
        data = _yaml().load(text)
        del data[site]
        return _checked(path, _dumped(data), rest)
    except YAMLError as error:
        raise RunnerError(f"it cannot be changed: {error}", where=str(path)) from error


def _cut(path: Path, text: str, site: str) -> str:
    """Return the text without the lines from an entry's name to the next one's, but what is above that."""
    keys = parse(Source(str(path), text.encode())).place.keys
    line, column = keys[site]
    lines = text.splitlines(keepends=True)

    def is_above(place: int) -> bool:
        """Tell whether a line is a comment that can be about the entry below it."""
        stripped = lines[place].lstrip(" ")
        return stripped.startswith("#") and len(lines[place]) - len(stripped) < column

    start = line - 1
    end = min((other - 1 for other, _ in keys.values() if other > line), default=len(lines))
    while end > line and (not lines[end - 1].strip() or is_above(end - 1)):
        end -= 1
    first = start
    while first > 0 and is_above(first - 1):
        first -= 1
    start = first or start
    follows = lines[end].strip() if end < len(lines) else ""
    if start > 0 and not lines[start - 1].strip() and not follows:
        start -= 1  # of the empty lines on both sides one is enough, and none at the end
    return "".join([*lines[:start], *lines[end:]])


def with_field(path: Path, text: str, field: str, value: str) -> str:
    """Given a sites.yaml, return it with a field in each entry that has none, unless it is the default anyway."""
    before = _data(path, text)
    if value == fields_dict(Site)[field].default or all(field in (entry or {}) for entry in before.values()):
        return text
    data = _yaml().load(text)
    for entry in data.values():
        entry.setdefault(field, value)
    return _checked(path, _dumped(data), {name: {field: value, **entry} for name, entry in before.items()})


def has_sites(path: Path, text: str) -> bool:
    """Tell whether there is any entry. Raises RunnerError or ConfigErrors."""
    return bool(_data(path, text))


def read(path: Path) -> str | None:
    """Return the file's text, None if there is none. Raises RunnerError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunnerError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)) from error


def replace(path: Path, text: str | None, like: Path | None = None) -> None:
    """Write a file that root alone can change, in one step that is on disk afterwards; without a text remove it.

    It keeps its owner, group and mode, or gets those of another file. A link is followed: what it leads to is replaced.
    Raises RunnerError.
    """
    try:
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path = path.resolve()
            _write(path, text, like or path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise RunnerError(f"cannot be written: {error.strerror}", where=str(path)) from error


def make_directory(path: Path) -> None:
    """Make the configuration's directory, if it is not there. Raises RunnerError."""
    try:
        path.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise RunnerError(f"cannot be made: {error.strerror}", where=str(path)) from error


def _write(path: Path, text: str, like: Path) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            mode = _MODE
            with suppress(FileNotFoundError):
                status = like.stat()
                mode = stat.S_IMODE(status.st_mode)
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, mode)
            file.flush()
            os.fsync(descriptor)
        fresh.rename(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDTH
    return yaml


def _dumped(data: object) -> str:
    found = io.StringIO()
    _yaml().dump(data, found)
    return found.getvalue()


def _in_lines(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry whose lists are written in one line each, as people do."""
    shown = {}
    for field, value in entry.items():
        shown[field] = value
        if isinstance(value, list):
            shown[field] = CommentedSeq(value)
            shown[field].fa.set_flow_style()
    return shown


def _data(path: Path, text: str) -> dict[str, Any]:
    """Return what a file holds. Raises ConfigErrors, or RunnerError for what is no mapping."""
    data = parse(Source(str(path), text.encode())).data
    if data is not None and not isinstance(data, dict):
        raise RunnerError("it holds no sites", where=str(path))
    return data or {}


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _checked(path: Path, text: str, wanted: dict[str, Any]) -> str:
    """Return the text if it says just what it should, whatever happened to its form."""
    if _data(path, text) != wanted:
        raise RunnerError("it cannot be changed without changing more", where=str(path), hint="write it more simply")
    return text
