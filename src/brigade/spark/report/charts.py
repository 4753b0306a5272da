"""Charts as SVG, drawn by hand: lines and stacked areas over time, and bars. They take their colours from the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

__all__ = ["Line", "bar", "chart", "short"]

WIDTH, HEIGHT = 420, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 26


class Line(NamedTuple):
    """One series: its name, the number of its colour, and its points; None is a gap."""

    name: str
    colour: int
    points: Sequence[tuple[int, float | None]]


def short(value: float) -> str:
    """A number for an axis."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _ticks(top: float) -> list[float]:
    """Round numbers from nothing to the top."""
    if top <= 0:
        return [0.0, 1.0]
    step = 10.0 ** len(str(int(top))) / 10 if top >= 1 else 0.1
    while top / step < 2:
        step /= 2
    while top / step > 5:
        step *= 2
    count = int(top / step) + 1
    return [step * number for number in range(count + 1)]


def _moment(ms: int, span: int) -> str:
    form = "%H:%M:%S" if span < 600_000 else "%H:%M" if span < 2 * 86_400_000 else "%d %b"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)


def chart(title: str, lines: Sequence[Line], unit: str, *, filled: bool = False) -> str:
    """A chart over time, with a legend. Every point tells its value when the pointer rests on it."""
    times = sorted({at for line in lines for at, _ in line.points})
    if not times:
        return ""
    low, high = times[0], max(times[-1], times[0] + 1)
    top = max((value for line in lines for _, value in line.points if value is not None), default=0.0)
    ticks = _ticks(top)

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at - low) / (high - low)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / ticks[-1]

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    for number in range(4):
        at = low + (high - low) * number // 3
        anchor = ("start", "middle", "middle", "end")[number]
        label = _moment(at, high - low)
        parts.append(f'<text class="tick" x="{x(at):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{label}</text>')
    for line in lines:
        parts += _drawn(line, x, y, filled=filled, unit=unit, span=high - low)
    parts.append("</svg>")
    legend = "".join(f'<li><i class="s{line.colour}"></i>{escape(line.name)}</li>' for line in lines)
    caption = f"<figcaption>{escape(title)} <span>{escape(unit)}</span></figcaption>"
    return f"<figure>{caption}{''.join(parts)}<ul>{legend}</ul></figure>"


Scale = Callable[[float], float]


def _drawn(line: Line, x: Scale, y: Scale, *, filled: bool, unit: str, span: int) -> list[str]:
    made: list[str] = []
    for run in _runs(line.points):
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in run)
        if filled and len(run) > 1:
            floor = f"{x(run[-1][0]):.1f},{y(0):.1f} {x(run[0][0]):.1f},{y(0):.1f}"
            made.append(f'<polygon class="fill s{line.colour}" points="{path} {floor}"/>')
        if len(run) == 1:
            made.append(f'<circle class="lone s{line.colour}" cx="{x(run[0][0]):.1f}" cy="{y(run[0][1]):.1f}" r="3"/>')
        else:
            made.append(f'<polyline class="line s{line.colour}" points="{path}"/>')
    for at, value in line.points:
        if value is not None:
            told = f"{line.name}, {_moment(at, span)}: {short(value)} {unit}"
            place = f'cx="{x(at):.1f}" cy="{y(value):.1f}" r="2.5"'
            made.append(f'<circle class="dot s{line.colour}" {place}><title>{escape(told)}</title></circle>')
    return made


def _runs(points: Sequence[tuple[int, float | None]]) -> list[list[tuple[int, float]]]:
    """Points between gaps."""
    runs: list[list[tuple[int, float]]] = [[]]
    for at, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]


def bar(share: float, colour: int = 0) -> str:
    """A bar that fills its cell by that share."""
    width = max(0.0, min(1.0, share)) * 100
    return f'<span class="bar"><i class="s{colour}" style="width:{width:.1f}%"></i></span>'
