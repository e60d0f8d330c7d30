"""The status page: what the watcher knows, as one HTML document without scripts, forms or anything from elsewhere.

Everything that is shown may have been written by somebody who means harm: it is made printable, cut and escaped here.
On a port, which any process of the host can reach, the page has no reasons, paths, arguments or log lines.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from basestation_runner.errors import printable
from basestation_runner.watch.callers import Caller
from basestation_runner.watch.web import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from basestation_runner.watch.history import Facts
    from basestation_runner.watch.report import Report

EVERY: Final = 10
"""Seconds after which a browser asks again."""
HOURS: Final = 6
MOST_SITES: Final = 500
MOST_LANES: Final = 4
"""Jobs of one site beside each other in its timeline; further ones lie upon the last."""
LONGEST: Final = 200
_WIDTH: Final = 1000
_LANE: Final = 10
_EVERYTHING: Final = Caller(0, None)

STYLE: Final = """\
:root{color-scheme:light dark;--b:#fff;--f:#1b1f24;--m:#59636e;--l:#d1d9e0;--ok:#1a7f37;--bad:#cf222e;--run:#0969da;\
--odd:#9a6700}
@media (prefers-color-scheme:dark){:root{--b:#0d1117;--f:#e6edf3;--m:#9198a1;--l:#3d444d;--ok:#3fb950;--bad:#f85149;\
--run:#58a6ff;--odd:#d29922}}
body{background:var(--b);color:var(--f);font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:72rem;padding:1rem}
h1{font-size:1.3rem;margin:0}h2{font-size:1.05rem;margin:1.5rem 0 .4rem}p{margin:.2rem 0;overflow-wrap:anywhere}
div.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--l);vertical-align:top}
th{color:var(--m);font-weight:600}td:last-child{overflow-wrap:anywhere;min-width:13rem}pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0}
.m{color:var(--m)}.succeeded,.watching,.ok{color:var(--ok);fill:var(--ok)}
.failed,.lost,.refused,.timed_out,.out_of_memory,.pending,.bad{color:var(--bad);fill:var(--bad)}
.running{color:var(--run);fill:var(--run)}.cancelled,.starting,.held{color:var(--odd);fill:var(--odd)}
svg{display:block;width:100%;height:1.6rem;background:color-mix(in srgb,var(--l) 35%,transparent)}
line{stroke:var(--l);stroke-width:1;vector-effect:non-scaling-stroke}
"""
_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
}


def page(report: Report, *, is_private: bool) -> Page:
    """Return the page; only one that is private has what jobs and people have written."""
    return Page("text/html; charset=utf-8", StatusPage(report, is_private).make, HEADERS)


@frozen
class StatusPage:
    """Asks, and shows the answers."""

    report: Report
    is_private: bool

    async def make(self) -> bytes:
        """Return the document. Raises what Report raises when the ledger does not answer."""
        now = time.time()
        status = await self.report.status(_EVERYTHING, now - 24 * 3600)
        sites: list[Facts] = []
        has_more = True
        while has_more and len(sites) < MOST_SITES:
            portion = await self.report.some_sites(_EVERYTHING, sites[-1]["site"] if sites else "")
            sites += portion["sites"]
            has_more = portion["more"]
        ran = await self.report.ran_since(now - HOURS * 3600)
        details = await self.report.details([job["id"] for job in status["failures"]]) if self.is_private else {}
        text = document(status, sites, ran, details, now, is_private=self.is_private)
        return text.encode("utf-8", "backslashreplace")


def document(  # noqa: PLR0913 - what is shown
    status: Facts,
    sites: Sequence[Facts],
    ran: Sequence[Facts],
    details: dict[str, Facts],
    now: float,
    *,
    is_private: bool,
) -> str:
    """Given what the watcher says, return the page."""
    shown = [
        _headline(status, now, is_private=is_private),
        "<h2>Sites</h2>",
        _table(_site_columns(is_private=is_private), sites, now, "No site is configured."),
        f"<h2>The last {HOURS} hours</h2>",
        _timeline(ran, now),
        "<h2>Running</h2>",
        _table(_job_columns(is_private=is_private), status["jobs_running"], now, "No job is running."),
        "<h2>Failures of the last 24 hours</h2>",
        _table(_failure_columns(details, is_private=is_private), status["failures"], now, "No job has failed."),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="refresh" content="{EVERY}">'
        f"<title>runner</title><style>{STYLE}</style></head><body>" + "\n".join(shown) + "</body></html>\n"
    )


def escaped(value: object, longest: int = LONGEST) -> str:
    """Return any text so that a browser shows it and does nothing else with it."""
    text = printable(str(value))
    return html.escape(text if len(text) <= longest else f"{text[: longest - 1]}…")


def _headline(status: Facts, now: float, *, is_private: bool) -> str:
    watcher, helper = status["watcher"], status["helper"]
    counts = f"{status['running']} running, {status['queued']} waiting"
    since = f"Watcher {escaped(watcher['program'])}, for {_age(now - watcher['started_at'])}"
    lines = ["<h1>runner</h1>", f'<p class="m">{since}; {counts}; as of {_when(now)}</p>']
    if not helper["reachable"]:
        lines.append('<p class="bad">The helper is not reachable: jobs wait, running ones go on.</p>')
    elif helper["same_config"] is False:
        lines.append('<p class="bad">The daemons go by different configurations: runner reload.</p>')
    if watcher["trouble"]:
        why = f": {escaped(watcher['trouble'])}" if is_private else ""
        lines.append(f'<p class="bad">Nothing goes on{why}.</p>')
    if watcher["hold"]:
        lines.append('<p class="held">The host is held: nothing is started.</p>')
    if status["stuck"]["jobs"]:
        lines.append(f'<p class="bad">{status["stuck"]["jobs"]} cannot be started for a reason that may last.</p>')
    return "\n".join(lines)


Column = tuple[str, "Callable[[Any, float], str]"]


def _site_columns(*, is_private: bool) -> list[Column]:
    def state(site: Facts, _: float) -> str:
        shown = "held" if site["hold"] else site["state"]
        return f'<span class="{escaped(shown)}">{escaped(shown)}</span>'

    def oldest(site: Facts, now: float) -> str:
        waiting = site["oldest_waiting"]
        return _age(now - waiting["accepted_at"]) if waiting else ""

    def why(site: Facts, _: float) -> str:
        return escaped("; ".join([*([site["reason"]] if site["reason"] else []), *site["remarks"]]))

    columns: list[Column] = [
        ("Site", lambda site, _: escaped(site["site"])),
        ("State", state),
        ("Running", lambda site, _: escaped(site["running"])),
        ("Waiting", lambda site, _: escaped(site["queued"])),
        ("Longest", oldest),
    ]
    return [*columns, ("Why", why)] if is_private else columns


def _job_columns(*, is_private: bool) -> list[Column]:
    columns: list[Column] = [
        ("Job", lambda job, _: escaped(job["id"][:8])),
        ("Site", lambda job, _: escaped(job["site"])),
        ("Script", lambda job, _: escaped(job["script"])),
        ("For", lambda job, now: _age(now - (job["started_at"] or now))),
    ]
    if is_private:
        columns.append(("Mission directory", lambda job, _: escaped(job["mission_dir"])))
    return columns


def _failure_columns(details: dict[str, Facts], *, is_private: bool) -> list[Column]:
    def why(job: Facts, _: float) -> str:
        known = details.get(job["id"], {})
        arguments = " ".join(json.loads(known.get("args") or "[]"))
        tail = (json.loads(known.get("record") or "null") or {}).get("log_tail") or ""
        shown = [job["reason"] or (f"exit code {job['exit_code']}" if job["exit_code"] is not None else ""), arguments]
        lines = "\n".join(escaped(line) for line in str(tail).splitlines()[-5:])
        return "<br>".join(escaped(each) for each in shown if each) + (f"<pre>{lines}</pre>" if lines else "")

    columns: list[Column] = [
        ("Ended", lambda job, _: _when(job["ended_at"])),
        ("Job", lambda job, _: escaped(job["id"][:8])),
        ("Site", lambda job, _: escaped(job["site"])),
        ("Script", lambda job, _: escaped(job["script"])),
        ("State", lambda job, _: f'<span class="{escaped(job["state"])}">{escaped(job["state"])}</span>'),
    ]
    return [*columns, ("Why", why)] if is_private else columns


def _table(columns: Sequence[Column], rows: Sequence[Facts], now: float, empty: str) -> str:
    if not rows:
        return f'<p class="m">{escaped(empty)}</p>'
    head = "".join(f"<th>{escaped(name)}</th>" for name, _ in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{cell(row, now)}</td>" for _, cell in columns) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _timeline(ran: Sequence[Facts], now: float) -> str:
    """Return a strip for each site: who ran when, coloured by how it ended."""
    if not ran:
        return '<p class="m">No job has run.</p>'
    begin = now - HOURS * 3600
    of_site: dict[str, list[Facts]] = {}
    for job in sorted(ran, key=lambda job: float(job["started_at"])):
        of_site.setdefault(job["site"], []).append(job)
    strips = [f"<p>{escaped(site)}</p>{_strip(jobs, begin, now)}" for site, jobs in sorted(of_site.items())]
    return f'{"".join(strips)}<p class="m">{_when(begin)} to {_when(now)}, a line each hour</p>'


def _strip(jobs: Iterable[Facts], begin: float, now: float) -> str:
    scale = _WIDTH / (now - begin)
    until = [begin] * MOST_LANES
    marks = [f'<line x1="{x}" x2="{x}" y1="0" y2="{_LANE * MOST_LANES}"/>' for x in range(0, _WIDTH, _WIDTH // HOURS)]
    for job in jobs:
        start, end = max(begin, job["started_at"]), min(now, job["ended_at"] or now)
        lane = next((each for each, free in enumerate(until) if free <= start), MOST_LANES - 1)
        until[lane] = end
        left, width = (start - begin) * scale, max(2.0, (end - start) * scale)
        what = f"{escaped(job['script'])} {escaped(job['id'][:8])}: {escaped(job['state'])}, {_when(job['started_at'])}"
        marks.append(
            f'<rect class="{escaped(job["state"])}" x="{left:.1f}" width="{width:.1f}" y="{lane * _LANE + 1}"'
            f' height="{_LANE - 2}"><title>{what}, {_age(end - job["started_at"])}</title></rect>'
        )
    size = f"0 0 {_WIDTH} {_LANE * MOST_LANES}"
    return f'<svg viewBox="{size}" preserveAspectRatio="none" role="img">{"".join(marks)}</svg>'


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _age(seconds: float) -> str:
    whole = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= 2 * size:
            return f"{whole // size} {unit}"
    return f"{whole} s"
