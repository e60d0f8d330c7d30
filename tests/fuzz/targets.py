"""What is fuzzed: each target takes any bytes, and gives a result or the error that its documentation names.

A check says whether the input was taken; it raises AssertionError, or whatever else the code under test raises, for an
input that is answered in no such way.
"""

from __future__ import annotations

import json
import re
import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from basestation_runner import protocol, runfile
from basestation_runner.config.additions import of_data
from basestation_runner.config.load import ConfigErrors, Source, load_sources
from tests.fuzz.bounds import bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random
    from typing import Any

    from basestation_runner.config.model import Config
    from basestation_runner.protocol import Message

SECONDS: Final = 2.0
BYTES_A_SECOND: Final = 10_000
"""An input may take SECONDS, and a second more for each so many bytes of it."""

_SAMPLES: Final = Path(__file__).parent.parent / "samples"
_LONGEST_REASON: Final = 500
_SHORT: Final = 1000
_LONGEST: Final = 1 << 20


@frozen
class Target:
    """Something that is fuzzed, and how its inputs are made."""

    make: Callable[[Random], bytes]
    check: Callable[[bytes], bool]
    share: int
    """How many inputs it gets in the time in which another target gets its share."""

    def run(self, content: bytes) -> bool:
        """Check one input, within bounds of time and memory, and return whether it was taken."""
        with bounded(SECONDS + len(content) / BYTES_A_SECOND):
            return self.check(content)


def _require_shown(reason: str) -> None:
    """A reason goes to logs and to whoever made the input."""
    assert reason.isprintable()
    assert len(reason) < _LONGEST_REASON


# Ways to make inputs

_WORD: Final = re.compile(rb"[^\s:,\[\]{}]+")


@frozen
class Kit:
    """What inputs of one kind are made from: good ones, pieces of syntax, and words that are rarely taken well."""

    seeds: Sequence[bytes]
    pieces: Sequence[bytes]
    words: Sequence[bytes]

    def mutated(self, random: Random) -> bytes:
        """Return a good input with a few changes, most often a single one."""
        content = random.choice(self.seeds)
        for _ in range(random.choice([1, 1, 1, 1, 2, 5])):
            content = self._changed(random, content)
        return content

    def soup(self, random: Random) -> bytes:
        """Return pieces and words one after the other, some of them many times."""
        content = b""
        for piece in random.choices([*self.pieces, *self.words], k=random.randint(0, 40)):
            times = random.randint(2, 2000) if random.random() < 0.05 else 1
            content += piece * min(times, 1 + _LONGEST // max(1, len(piece)))
        return content[:_LONGEST]

    def _changed(self, random: Random, content: bytes) -> bytes:
        if (words := list(_WORD.finditer(content))) and random.random() < 0.5:
            start, end = random.choice(words).span()
            return content[:start] + random.choice([*self.words, random.choice(words)[0]]) + content[end:]
        start = random.randint(0, len(content))
        end = start + random.randint(0, 40)
        head, part, tail = content[:start], content[start:end], content[end:]
        piece = random.choice(self.pieces) if random.random() < 0.8 else random.randbytes(random.randint(1, 4))
        goes = random.randint(0, len(head))
        return random.choice(
            [
                head + tail,
                head + part * random.choice([2, 3, 300]) + tail,
                head[:goes] + part + head[goes:] + tail,
                head + piece + tail,
                head + piece + part + tail,
                head + part.upper() + tail,
            ]
        )


# Requests

REQUESTS: Final = Kit(
    seeds=[
        *(path.read_bytes() for path in sorted((_SAMPLES / "requests").glob("*.run"))),
        b"/h /m /l s a\napplication: a\nenv: {A: b}\nlimits: {runtime: 1h, memory: 2G}\ngroups: [a, 5]\ntasks: 2\n",
        b"/h /m /l s\nresreq: select[a && (b || c == 'x')] rusage[d=1] order[-e]\ninputs:\n- /a\npre_exec: [/a, b]\n",
    ],
    pieces=[
        *(b" ", b"\t", b"\n", b"\r", b"\r\n", b"\0", b"\x0b", b"\x1b[2J", b"\xff", b"\xc2\xa0", b"\xe2\x80\xa8"),
        *(b"\xed\xa0\x80", b"/", b"//", b"/.", b"/..", b"-", b"~", b"'", b'"', b"\\", b";", b"|", b"\njob_id: x\n"),
        *(
            b"\ntasks: ",
            b"\nenv: {A: ",
            b"}",
            b"[",
            b"]",
            b"{",
            b"&a ",
            b"*a",
            b"!a ",
            b": ",
            b"\n- ",
            b"&&",
            b"||",
            b"#",
        ),
    ],
    words=[
        *(b"", b"/", b"//", b"/.", b"/..", b"..", b".", b"-", b"--", b"$HOME", b"*", b"Base.py", b"../Base.py", b"a/b"),
        *(b"/home/sg123", b"/home/sg123/mission1", b"/a" * 3000, b"x" * 300, b"\xf0\x9f\x90\xa0", b"--mission_dir"),
    ],
)


def check_request(content: bytes) -> bool:
    """A request is refused in one line, or asks for something that can be sent to the helper."""
    try:
        request = runfile.parse(content)
    except runfile.RequestError as error:
        _require_shown(error.reason)
        return False
    for path in (request.home, request.mission_dir, request.log_file):
        assert path.startswith("/")
    assert "/" not in request.script
    assert len(runfile.glider(request.home)) == 3
    message = {
        "request": "dispatch",
        "job_id": "0",
        "site": "one",
        "digest": "",
        "application": "base",
        "home": request.home,
        "mission_dir": request.mission_dir,
        "log_file": request.log_file,
        "script": request.script,
        "args": list(request.args),
        "queue_length": 0,
        "additions": request.additions.data,
    }
    assert protocol.FrameDecoder().feed(protocol.encode(message)) == [message]
    assert protocol.check_request(message) == "dispatch"
    assert evolve(of_data(request.additions.data), application=request.additions.application) == request.additions
    return True


# Frames

MESSAGES: Final[Sequence[Mapping[str, Any]]] = [
    {"request": "hello", "version": 1},
    {"request": "inquire", "job_ids": ["a", "b"]},
    {"request": "settled", "job_ids": []},
    {"site": "one", "argv": ["/p", "/s"], "log_file": "/l", "job_id": "0"},
    {"query": "status", "pid": 1},
]
FRAMES: Final = Kit(
    seeds=[json.dumps(message).encode() for message in MESSAGES],
    pieces=[
        *(b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\0", b"\xff", b"\\ud800", b"\\u0000", b"\xef\xbb\xbf"),
        *(b'{"a":', b'"request"', b'"pid"', b'{"query":"status","pid":', b"[" * 500),
    ],
    words=[
        *(
            b"NaN",
            b"-Infinity",
            b"1e999",
            b"-0",
            b"0.5",
            b"true",
            b"null",
            b"9" * 5000,
            b'""',
            b'"\\ud800"',
            b'"\\u0000"',
        ),
        *(b'"request"', b'"settled"', b'"query"', b'"pid"', b'"job_id"', b'"/"', b"[]", b"{}", b'"' + b"a" * 65 + b'"'),
    ],
)


def _framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def frames(random: Random) -> bytes:
    """Return a few frames, most of them whole, some of whose bodies are a message."""
    return b"".join(_frame(random) for _ in range(random.randint(0, 6)))


def _frame(random: Random) -> bytes:
    match random.randint(0, 9):
        case 0:
            return random.randbytes(random.randint(0, 8))
        case 1:
            return struct.pack(">I", random.getrandbits(random.randint(1, 32)))
        case 2 | 3 | 4:
            return protocol.encode(random.choice(MESSAGES))
        case 5:
            return _framed(FRAMES.soup(random))
    return _framed(FRAMES.mutated(random))


def check_frames(content: bytes) -> bool:
    """However a stream is cut, it gives the same messages or ends as malformed; each is a request or is not."""
    whole = _decoded([content])
    assert _decoded(content[start : start + 7] for start in range(0, len(content), 7)) == whole
    if len(content) < _SHORT:
        assert _decoded(content[start : start + 1] for start in range(len(content))) == whole
    return sum(map(_is_request, whole or ())) > 0


def _is_request(message: Message) -> bool:
    try:
        name = protocol.check_request(message)
    except protocol.ProtocolError as error:
        _require_shown(str(error))
        return False
    assert name in {*protocol.REQUESTS, *protocol.LEGACY_REQUESTS}
    return True


def _decoded(parts: Iterable[bytes]) -> list[Message] | None:
    decoder = protocol.FrameDecoder()
    messages: list[Message] = []
    try:
        for part in parts:
            messages += decoder.feed(part)
    except protocol.ProtocolError as error:
        _require_shown(str(error))
        return None
    return messages


# Configuration

SITES: Final = b"""\
# Two sites, and one in another style.
seaglider:
  watch_dir: &rundir /home/seaglider/home/rundir
  jail_root: "/home/sea\\x67lider"
  runner_user: ioprunner
  groups: [ioptest, 4711]   # effective group first
  applications: all
  env: {RUNDIR: *rundir, LEVEL: '3'}
'iop.test': {watch_dir: /srv/ioptest, runner_user: b, archive: true, cpu_quota_pct: 60, tasks_max: 0x40}
third:
  watch_dir: >-
    /srv/third
  runner_user: |-
    third
  ? docker_mount
  : - /data:/data
"""
APPLICATIONS: Final = b"""\
default_application: extra
applications:
  - name: extra
    description: one more
    scripts: [Extra.py, Other.py]
    append_args: ["--id={job_id}"]
    env: {A: b}
  - {name: base, scripts: [Base.py], timing_line: true, priority: interactive}
"""
YAML_PIECES: Final = [
    *(b"\t", b" ", b"  ", b"\n", b"\n  ", b"\r", b"\0", b"\xff", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\x1b", b" #"),
    *(b":", b": ", b"- ", b"? ", b"[", b"]", b"{", b"}", b",", b", ", b"'", b'"', b"\\", b"|\n", b">+9\n", b"|-\n "),
    *(b"%", b"@", b"`", b"!", b"&a ", b"*a", b"*a, ", b"&a [*b, *b]\n", b"&b {x: *a}\n", b"<<: *a\n", b"!!str ", b"!<"),
    *(b"\n---\n", b"\n...\n", b"%YAML 1.1\n---\n", b"%TAG ! x\n", b"\nx: y", b"\n  x: y", b"\nthird: {}", b"[" * 40),
    *(b"{a: " * 30, b"a: {watch_dir: /a, runner_user: b}\n", b"applications:\n  - ", b"name: base", b"groups: "),
]
YAML_WORDS: Final = [
    *(
        b'"\\ud800"',
        b'"\\U0010FFFF"',
        b'"\\UFFFFFFFF"',
        b'"\\N"',
        b'"\\0"',
        b"''",
        b"\xc3\xa9",
        b"&a x",
        b"*a",
        b"*rundir",
    ),
    *(b"5", b"-1", b"0", b"0o7", b"1e999", b".nan", b"9" * 5000, b"4294967295", b"true", b"yes", b"~", b"null", b"<<"),
    *(
        b"root",
        b"all",
        b"base",
        b"..",
        b"/",
        b"/..",
        b"//",
        b"[]",
        b"{}",
        b"[a, a]",
        b"{a: b}",
        b"!!x y",
        b"x" * 40_000,
    ),
    *(
        b"default_application",
        b"applications",
        b"watch_dir",
        b"env",
        b"docker_image",
        b"'{job_id}'",
        b"'{'",
        b"RUNNER_SITE",
    ),
]
YAML_SCALARS: Final = [b"/srv/a", b"/srv/b", b"root", b"5", b"true", b"base", b"all", b"''", b"~", b'"A"', b"1.5"]
YAML_KEYS: Final = [
    *(b"watch_dir", b"runner_user", b"groups", b"jail_root", b"jailed", b"applications", b"env", b"max_running", b"a"),
    *(b"name", b"scripts", b"append_args", b"default_application", b"priority", b"*a", b"<<", b"[a]", b"5", b'"b"'),
]


def document(random: Random) -> bytes:
    """Return a few top-level entries whose values are nested and share anchors."""
    entries = (random.choice(YAML_KEYS) + b"%d: " % random.randint(0, 5) + _flow(random, 0) for _ in range(4))
    return b"\n".join(entries)


def _flow(random: Random, depth: int) -> bytes:
    name = random.choice([b"a", b"b", b"c"])
    kind = random.random() + depth / 10
    if random.random() < 0.1:
        return b"*" + name + b" "
    anchor = b"&" + name + b" " if random.random() < 0.2 else b""
    if kind > 0.8:
        return anchor + random.choice(YAML_SCALARS)
    values = [_flow(random, depth + 1) for _ in range(random.randint(0, 4))]
    if kind > 0.5:
        return anchor + b"[" + b", ".join(values) + b"]"
    return anchor + b"{" + b", ".join(random.choice(YAML_KEYS) + b": " + value for value in values) + b"}"


def bomb(random: Random) -> bytes:
    """Return a document in which each line doubles what the one before stands for."""
    twice = random.choice([b"[*%d, *%d]", b"{a: *%d, b: *%d}", b"{? *%d : *%d}", b"[[[*%d]], *%d]"])
    lines = [b"x0: &0 " + _flow(random, 0)]
    lines += [b"x%d: &%d " % (n, n) + twice % (n - 1, n - 1) for n in range(1, random.randint(2, 60))]
    return b"\n".join(lines)


def check_sites(content: bytes) -> bool:
    return check_config(content, APPLICATIONS)


def check_applications(content: bytes) -> bool:
    return check_config(SITES, content)


def check_config(sites: bytes, applications: bytes) -> bool:
    """The files are a Config that answers everything, or have faults that each stand somewhere in one of them."""
    files = {"sites.yaml": sites, "applications.yaml": applications}
    try:
        config = load_sources(*(Source(name, content) for name, content in files.items()))
    except ConfigErrors as errors:
        assert errors.faults  # noqa: PT017 - everything else that is raised is found
        lines = {name: content.decode(errors="replace").split("\n") for name, content in files.items()}
        for fault in errors.faults:
            assert 1 <= fault.line <= len(lines[fault.file])
            assert 1 <= fault.column <= len(lines[fault.file][fault.line - 1]) + 1
            assert str(fault).isprintable()
        return False
    assert config.sites
    assert all(len(config.digest(name)) == 64 for name in config.sites)
    assert all(_is_known(config, name) for name in config.sites)
    return True


def _is_known(config: Config, name: str) -> bool:
    site = config.sites[name]
    found = config.application_for(site, "Base.py")
    return site.name == name and (found is None or found.name in site.applications)


def _noise(random: Random) -> bytes:
    return random.randbytes(random.randint(0, 30))


def requests(random: Random) -> bytes:
    """Return something that a client might write."""
    return random.choices([REQUESTS.mutated, REQUESTS.soup, _noise], [6, 3, 1])[0](random)


def yaml(random: Random, kit: Kit) -> bytes:
    """Return something that a parser may take for a configuration."""
    return random.choices([kit.mutated, kit.soup, document, bomb, _noise], [8, 2, 2, 2, 1])[0](random)


TARGETS: Final = {
    "request": Target(requests, check_request, share=1000),
    "frames": Target(frames, check_frames, share=1000),
    "sites": Target(partial(yaml, kit=Kit([SITES], YAML_PIECES, YAML_WORDS)), check_sites, share=100),
    "applications": Target(
        partial(yaml, kit=Kit([APPLICATIONS], YAML_PIECES, YAML_WORDS)), check_applications, share=100
    ),
}
