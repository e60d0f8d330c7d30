"""Two plots as SVG, legible on light and dark pages: how latencies are distributed, and throughput. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from attrs import frozen

from bench.figures import Aim

_WIDTH: Final = 720
_LEFT: Final = 60
_RIGHT: Final = 20
_TOP: Final = 50
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_HEIGHT: Final = 300  # of the plot itself
_COLOURS: Final = 4
_MOST_POINTS: Final = 200
_STYLE: Final = """\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 15px }
.grid { stroke: #8c959f; stroke-opacity: .35 }
.aim { stroke: #8c959f; stroke-dasharray: 5 4; stroke-width: 1.5 }
.line { fill: none; stroke-width: 2 }
.c0 { stroke: #0969da; fill: #0969da } .c1 { stroke: #bc4c00; fill: #bc4c00 }
.c2 { stroke: #1a7f37; fill: #1a7f37 } .c3 { stroke: #8250df; fill: #8250df }
.line.c0, .line.c1, .line.c2, .line.c3 { fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #d1d7e0 }
.c0 { stroke: #4493f8; fill: #4493f8 } .c1 { stroke: #f0883e; fill: #f0883e }
.c2 { stroke: #3fb950; fill: #3fb950 } .c3 { stroke: #ab7df8; fill: #ab7df8 }
}"""


@frozen
class Bars:
    """One group of bars: a measurement, each program's jobs a second, and what is aimed at."""

    label: str
    values: Mapping[str, float]
    aim: Aim | None


def latency(samples: Mapping[str, Sequence[float]], aims: Mapping[str, float]) -> str:
    """Return the cumulative distribution of each program's latencies; `aims` are times in milliseconds, labelled."""
    longest = _round_up(max([*aims.values(), *(max(values) for values in samples.values())]) * 1.05)
    parts = [*_title("From drop to exec on an idle host: share of jobs (%) by milliseconds", list(samples))]
    parts += [_text(_x(ms / longest), _TOP + _HEIGHT + 20, f"{ms:g}", "middle") for ms in _ticks(longest)]
    for percent in range(0, 101, 25):
        y = _y(percent / 100)
        parts += [_line(_LEFT, y, _LEFT + _PLOT, y, "grid"), _text(_LEFT - 8, y + 4, f"{percent}", "end")]
    for label, ms in aims.items():
        x = _x(ms / longest)
        parts += [_line(x, _TOP, x, _TOP + _HEIGHT, "aim"), _text(x + 4, _TOP + _HEIGHT - 8, label, "start")]
    for colour, values in enumerate(samples.values()):
        points = " ".join(f"{_x(ms / longest):.1f},{_y(share):.1f}" for share, ms in _cumulative(values))
        parts.append(f'<polyline class="line c{colour % _COLOURS}" points="{points}"/>')
    return _document(_TOP + _HEIGHT + 35, parts)


def throughput(groups: Sequence[Bars]) -> str:
    """Return jobs a second as bars, grouped by measurement."""
    names = list(dict.fromkeys(name for group in groups for name in group.values))
    aims = [group.aim.bound for group in groups if group.aim is not None]
    highest = _round_up(max([*aims, *(value for group in groups for value in group.values.values())]) * 1.05)
    parts = [*_title("Throughput in jobs per second; dashed: the aim", names)]
    for value in _ticks(highest):
        y = _y(value / highest)
        parts += [_line(_LEFT, y, _LEFT + _PLOT, y, "grid"), _text(_LEFT - 8, y + 4, f"{value:g}", "end")]
    width = _PLOT / len(groups)
    for index, group in enumerate(groups):
        left = _LEFT + index * width
        parts.append(_text(left + width / 2, _TOP + _HEIGHT + 20, group.label, "middle"))
        parts += _group(group, names, left + width * 0.15, width * 0.7, highest)
    return _document(_TOP + _HEIGHT + 35, parts)


def _group(group: Bars, names: Sequence[str], left: float, width: float, highest: float) -> Iterator[str]:
    bar = width / len(names)
    for place, name in enumerate(names):
        if name in group.values:
            x, y = left + place * bar, _y(group.values[name] / highest)
            size = f'width="{bar * 0.9:.1f}" height="{_TOP + _HEIGHT - y:.1f}"'
            yield f'<rect class="c{place % _COLOURS}" x="{x:.1f}" y="{y:.1f}" {size}/>'
            yield _text(x + bar * 0.45, y - 5, f"{group.values[name]:.0f}", "middle")
    if group.aim is not None:
        y = _y(group.aim.bound / highest)
        yield _line(left - width * 0.1, y, left + width * 1.1, y, "aim")


def _cumulative(values: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield points of the curve: a share, and the value that this share does not exceed."""
    ordered = sorted(values)
    step = max(1, len(ordered) // _MOST_POINTS)
    yield 0.0, ordered[0]
    for index in range(0, len(ordered), step):
        yield (index + 1) / len(ordered), ordered[index]
    yield 1.0, ordered[-1]


def _title(text: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the title and, where there is more than one program, whose colour is whose."""
    yield f'<text class="title" x="{_LEFT}" y="20">{escape(text)}</text>'
    for place, name in enumerate(names if len(names) > 1 else ()):
        x = _LEFT + place * 150
        yield f'<rect class="c{place % _COLOURS}" x="{x}" y="29" width="11" height="11"/>' + _text(x + 16, 39, name)


def _document(height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _x(share: float) -> float:
    return _LEFT + share * _PLOT


def _y(share: float) -> float:
    return _TOP + (1 - share) * _HEIGHT


def _step(span: float) -> float:
    """Return a distance between ticks of which four to ten make up `span`: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** (len(f"{span:.0f}") - 2)
    return next(power * factor for factor in (1, 2, 5, 10, 20, 50) if span / (power * factor) <= 10)  # noqa: PLR2004


def _round_up(span: float) -> float:
    step = _step(span)
    return -(-span // step) * step


def _ticks(span: float) -> Iterator[float]:
    step = _step(span)
    for number in range(round(span / step) + 1):
        yield number * step
