"""The status page of a watcher that runs, with everything hostile that a job can have in it."""

from __future__ import annotations

import html.parser
import re
import socket
import urllib.request
from typing import TYPE_CHECKING

import pytest

from basestation_runner.config.model import Application
from basestation_runner.watch import page, web
from basestation_runner.watch.states import State
from basestation_runner.watch.web import Address

if TYPE_CHECKING:
    from pathlib import Path

    from tests.watch.conftest import Bench

HOSTILE = "<script>alert(1)</script>\"'><img/src=x>&amp;\u202e"
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "table", "thead", "tbody", "tr", "th"),
    *("td", "span", "svg", "line", "rect", "pre", "br"),
}


class Seen(html.parser.HTMLParser):
    """The tags and attributes of a document, and whether they are closed in their order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(web, "FRESH", -1.0)
    bench.http = Address(host="127.0.0.1")
    return bench


def read(bench: Bench) -> tuple[str, dict[str, str]]:
    """Return the page and the headers that it comes with."""
    assert bench.watcher is not None
    (served,) = bench.watcher.webs
    assert bench.http is not None
    if bench.http.path is None:
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/", timeout=20) as answer:
            return answer.read().decode(), dict(answer.headers)
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(20)
        link.connect(str(bench.http.path))
        link.sendall(b"GET / HTTP/1.1\r\nHost: anything.example\r\n\r\n")
        data = b"".join(iter(lambda: link.recv(1 << 16), b""))
    head, _, body = data.decode().partition("\r\n\r\n")
    return body, dict(line.split(": ", 1) for line in head.split("\r\n")[1:])


def hostile_jobs(bench: Bench) -> Path:
    """Have a job fail and another run, all of whose words are hostile."""
    script = "<b>" + "x" * 20 + ".py"
    bench.applications["odd"] = Application(name="odd", scripts=(script,))
    rundir = bench.site("alpha", applications=("odd",))
    bench.site("beta", make=False)
    bench.helper.on_dispatch = bench.helper.hold
    bench.start()
    words = HOSTILE.removesuffix("\u202e")
    for number in (1, 2):
        mission = f"/home/sg123/{words}{number}"
        bench.drop(rundir, f"{number}.run", f"/home/sg123 {mission} {mission}/log {script} --secret={words}\n")
    bench.until(lambda: list(bench.states().values()) == ["running"] * 2)
    first = bench.helper.dispatched[0]["job_id"]
    bench.helper.finish(first, 3, log_tail=f"said by it\n{HOSTILE}\n")
    bench.until(lambda: bench.states()["1.run"] == "failed")
    return rundir


@pytest.mark.parametrize("is_private", [False, True], ids=["port", "socket"])
def test_nothing_that_a_job_is_called_becomes_anything_but_text(shown: Bench, is_private: bool) -> None:  # noqa: FBT001 - a parameter
    bench = shown
    if is_private:
        bench.http = Address(path=bench.directory / "page.sock")
    hostile_jobs(bench)
    text, _ = read(bench)
    seen = Seen(text)
    assert {tag for tag, _ in seen.tags} <= ALLOWED
    names = {name for _, attributes in seen.tags for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in {"style", "href", "src", "id"}}
    assert "&lt;b&gt;xxx" in text
    assert "\u202e" not in text
    assert ("&lt;script&gt;alert(1)" in text) is is_private


def test_a_port_shows_no_reasons_arguments_paths_or_log_lines_and_a_socket_does(shown: Bench) -> None:
    bench = shown
    rundir = hostile_jobs(bench)
    private = ("--secret", "said by it", "/home/sg123", "it does not exist", "exit code 3")
    text, _ = read(bench)
    assert not [word for word in private if word in text]
    bench.stop()
    bench.http = Address(path=bench.directory / "page.sock")
    bench.start()
    text, _ = read(bench)
    assert [word for word in private if word in text] == list(private)
    assert rundir.exists()


def test_a_browser_is_told_to_run_and_load_nothing(shown: Bench) -> None:
    shown.site("alpha")
    shown.start()
    text, headers = read(shown)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert re.findall(r"<style>(.*)</style>", text, re.DOTALL) == [page.STYLE]
    assert headers["X-Frame-Options"] == "DENY"
    assert "http://" not in text
    assert "https://" not in text


def test_it_shows_sites_what_runs_when_and_how_it_ended(shown: Bench) -> None:
    bench = shown
    hostile_jobs(bench)
    text, _ = read(bench)
    assert '<td>alpha</td><td><span class="watching">' in text
    assert '<td>beta</td><td><span class="pending">' in text
    seen = Seen(text)
    assert sorted(str(found["class"]) for tag, found in seen.tags if tag == "rect") == ["failed", "running"]
    assert 'content="width=device-width' in text
    assert "prefers-color-scheme:dark" in text


def test_a_host_without_sites_and_jobs_has_a_sentence_for_each(shown: Bench) -> None:
    shown.start()
    text, _ = read(shown)
    for sentence in ("No site is configured.", "No job has run.", "No job is running.", "No job has failed."):
        assert sentence in text


def test_every_state_has_a_colour() -> None:
    for state in State:
        assert state is State.QUEUED or re.search(rf"\.{state}\b", page.STYLE)
