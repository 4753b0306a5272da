"""The standings as a picture: one bar each, to the right of the line where Brigade is ahead, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.standing import Standing

__all__ = ["chart"]

ROW, TOP, LABELS, WIDTH, RIGHT = 24, 44, 340, 420, 220
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .small { font-size: 11px; fill: #57606a; }
  .ahead { fill: #2da44e; } .behind { fill: #bc4c00; }
  line { stroke: #d0d7de; } .even { stroke: #57606a; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } line { stroke: #3d444d; } .even { stroke: #9198a1; }
  }
"""


def chart(standings: Sequence[Standing]) -> str:
    """An SVG that needs nothing else."""
    powers = [math.log10(one.ratio) for one in standings]
    low, high = math.floor(min([*powers, -0.3])), math.ceil(max([*powers, 1.0]))
    height = TOP + ROW * len(standings) + 12

    def across(power: float) -> float:
        return LABELS + (power - low) / (high - low) * WIDTH

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LABELS + WIDTH + RIGHT} {height}" role="img">',
        "<title>How many times as fast as the best other one Brigade is</title>",
        f"<style>{STYLE}</style>",
        f'<text class="small" x="{across(0):.0f}" y="14" text-anchor="middle">as fast as the best other one</text>',
    ]
    for power in range(low, high + 1):
        kind = ' class="even"' if power == 0 else ""
        x = f"{across(power):.0f}"
        label = f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"
        parts.append(f'<line{kind} x1="{x}" x2="{x}" y1="36" y2="{height - 8}"/>')
        parts.append(f'<text class="small" x="{x}" y="30" text-anchor="middle">{label} ×</text>')
    for place, (one, power) in enumerate(zip(standings, powers, strict=True)):
        y = TOP + ROW * place
        start, end = sorted((across(0), across(power)))
        kind = "ahead" if power >= 0 else "behind"
        said = f"{one.told} × {one.who}, {one.ours:,.0f} a second"
        parts += [
            f'<text x="{LABELS - 12}" y="{y + 14}" text-anchor="end">{escape(f"{one.ground}: {one.work}")}</text>',
            f'<rect class="{kind}" x="{start:.1f}" y="{y + 3}" width="{max(end - start, 1):.1f}" height="14" rx="2"/>',
            f'<text class="small" x="{max(end, across(0)) + 8:.0f}" y="{y + 14}">{escape(said)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
