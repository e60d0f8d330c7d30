"""A request's content, parsed: `HOME MISSION_DIR LOG_FILE SCRIPT [ARG …]`, and lines with what the job adds. Pure.

Whoever writes it is not trusted: anything but the accepted form is refused with a reason that is safe to show.
"""

import json
import re
from pathlib import PurePosixPath

from attrs import frozen

from basestation_runner.config import rules
from basestation_runner.config.additions import NOTHING, Additions, AdditionsError, of_lines
from basestation_runner.text import quoted

MAX_BYTES = 65536
FORM = "HOME MISSION_DIR LOG_FILE SCRIPT"

GLIDER_PATTERN = re.compile(r"[A-Za-z]{2}([0-9]{1,3})")


class RequestError(Exception):
    """The request is refused for good; the reason is one line for the people who wrote it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@frozen
class Request:
    """What a request asks for. Paths are absolute and as the client sees them; nothing has been looked up."""

    home: str
    mission_dir: str
    log_file: str
    script: str
    args: tuple[str, ...] = ()
    additions: Additions = NOTHING


def parse(content: bytes) -> Request:
    """Given a request file's bytes, return the request. Raise RequestError if they are not one."""
    line, rest = _lines(content)
    words = line.replace("\t", " ").split()
    if len(words) < len(FORM.split()):
        raise RequestError(f"its first line has {len(words)} of the 4 fields {FORM}")
    home, mission_dir, log_file, script, *args = words
    for name, path in (("HOME", home), ("MISSION_DIR", mission_dir), ("LOG_FILE", log_file)):
        if not path.startswith("/"):
            raise RequestError(f"{name} {quoted(path)} is not an absolute path")
        if len(path.encode()) > rules.MAX_PATH_BYTES:
            raise RequestError(f"{name} {quoted(path)} is too long for a path")
    try:
        rules.script(script)
    except rules.RuleError as error:
        raise RequestError(f"SCRIPT {error.what}") from None
    try:
        additions = of_lines("\n" + rest) if rest.strip() else NOTHING
    except AdditionsError as error:
        raise RequestError(str(error)) from None
    return Request(_plain(home), _plain(mission_dir), log_file, script, tuple(args), additions)


def written(request: Request) -> bytes:
    """Given a request, return the file that says so. Raise RequestError when none can."""
    words = (request.home, request.mission_dir, request.log_file, request.script, *request.args)
    for word in words:
        if not word or word.split() != [word]:
            raise RequestError(f"{quoted(word)} is empty or contains white space, which a request cannot say")
    added = request.additions.data
    if request.additions.application is not None:
        added = {"application": request.additions.application, **added}
    lines = [" ".join(words), *([json.dumps(added, indent=1)] if added else [])]
    try:
        content = ("\n".join(lines) + "\n").encode()
    except UnicodeEncodeError:
        raise RequestError("it is not UTF-8") from None
    if parse(content) != request:
        raise RequestError("a path in it, or what it adds, is not spelt plainly")
    return content


def glider(home: str) -> str:
    """Given a HOME, return the glider's number, three digits; 000 if it does not tell one."""
    found = GLIDER_PATTERN.fullmatch(home.rstrip("/").rpartition("/")[2])
    return found[1].zfill(3) if found else "000"


def _lines(content: bytes) -> tuple[str, str]:
    """Return the first line and the rest."""
    if len(content) > MAX_BYTES:
        raise RequestError(f"it is larger than {MAX_BYTES >> 10} KiB")
    if b"\0" in content:
        raise RequestError("it contains a NUL byte")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError("it is not UTF-8") from None
    line, _, rest = text.partition("\n")
    line = line.removesuffix("\r")
    if not line.replace("\t", " ").isprintable():
        raise RequestError("its first line contains a character that cannot be printed")
    if not line.strip():
        raise RequestError("its first line is empty")
    return line, rest


def _plain(path: str) -> str:
    """Spell a directory in one way, without looking: one mission must not have two queues."""
    return "/" + str(PurePosixPath(path)).lstrip("/")
