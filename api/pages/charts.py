"""Charts as SVG text: pure functions from numbers to markup, styled by classes of ``style.css``.

Series carry a class ``s0`` … ``s7`` (colour-blind-safe in light and dark); each mark has a
``<title>`` for pointer and screen reader, and every page puts the same numbers in a table beside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup, escape

SERIES_CLASSES = 8


@dataclass(frozen=True, slots=True)
class Series:
    """One stacked series: a value for each period."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a timeline: ``[start, end)`` on a lane, ``share`` of the lane's height in (0, 1]."""

    start: datetime
    end: datetime
    share: float
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a timeline."""

    name: str
    detail: str
    series: int
    bars: tuple[Bar, ...]


def nice_step(largest: float, ticks: int = 4) -> float:
    """A round step (1, 2, 2.5 or 5 times a power of ten) that covers ``largest`` in about ``ticks``."""
    if largest <= 0:
        return 1.0
    raw = largest / ticks
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)


def short_usd(usd: float) -> str:
    """``$1.2k``-like labels for axes."""
    for limit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(usd) >= limit:
            return f"${usd / limit:.3g}{suffix}"
    return f"${usd:.3g}"


def stacked_bars(
    labels: Sequence[str], series: Sequence[Series], title: str, width: int = 960, height: int = 300
) -> Markup:
    """Stacked bars, one a label, lowest series first; values in USD, not negative."""
    left, right, top, bottom = 56, 8, 12, 34
    plot_width, plot_height = width - left - right, height - top - bottom
    totals = [sum(s.values[i] for s in series) for i in range(len(labels))]
    step = nice_step(max(totals, default=0.0))
    ceiling = max(step, math.ceil(max(totals, default=0.0) / step - 1e-9) * step)
    slot = plot_width / max(1, len(labels))
    parts = [_open(width, height, title)]
    for k in range(round(ceiling / step) + 1):
        y = top + plot_height * (1 - k * step / ceiling)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{left - 6}" y="{y + 4:.1f}">{short_usd(k * step)}</text>')
    every = max(1, math.ceil(len(labels) / 12))
    for i, text in enumerate(labels):
        x = left + slot * i
        base = float(top + plot_height)
        for number, one in enumerate(series):
            tall = plot_height * one.values[i] / ceiling
            if tall <= 0:
                continue
            base -= tall
            note = escape(f"{text} · {one.name}: ${one.values[i]:,.2f}")
            parts.append(
                f'<rect class="s{number % SERIES_CLASSES}" x="{x + slot * 0.1:.2f}" y="{base:.2f}" '
                f'width="{slot * 0.8:.2f}" height="{tall:.2f}"><title>{note}</title></rect>'
            )
        if i % every == 0:
            middle, low = x + slot / 2, height - bottom + 16
            parts.append(f'<text class="tick mid" x="{middle:.1f}" y="{low}">{escape(text)}</text>')
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  every text above went through escape


def timeline(lanes: Sequence[Lane], start: datetime, end: datetime, title: str, width: int = 960) -> Markup:
    """A Gantt chart: a lane each, bars as tall as their share, days on top."""
    left, right, top, lane_height = 230, 8, 26, 34
    height = top + lane_height * len(lanes) + 6
    plot_width = width - left - right
    whole = (end - start) / timedelta(seconds=1)

    def x_of(instant: datetime) -> float:
        inside = min(max(instant, start), end)
        return left + plot_width * ((inside - start) / timedelta(seconds=1)) / whole

    parts = [_open(width, height, title)]
    days = max(1, math.ceil((end - start) / timedelta(days=1)))
    every = max(1, math.ceil(days / 10))
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    for k in range(0, days + 1, every):
        day = midnight + timedelta(days=k)
        if start <= day <= end:
            x = x_of(day)
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height}"/>')
            parts.append(f'<text class="tick" x="{x + 3:.1f}" y="{top - 8}">{day:%d %b}</text>')
    for row, lane in enumerate(lanes):
        base = top + lane_height * (row + 1) - 5
        parts.append(f'<text class="lane" x="0" y="{base - 13}">{escape(lane.name)}</text>')
        parts.append(f'<text class="tick" x="0" y="{base}">{escape(lane.detail)}</text>')
        for bar in lane.bars:
            tall = max(2.0, (lane_height - 10) * min(1.0, bar.share))
            x, wide = x_of(bar.start), max(1.0, x_of(bar.end) - x_of(bar.start))
            parts.append(
                f'<rect class="s{lane.series % SERIES_CLASSES}" x="{x:.2f}" y="{base - tall:.2f}" '
                f'width="{wide:.2f}" height="{tall:.2f}"><title>{escape(bar.title)}</title></rect>'
            )
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  every text above went through escape


def _open(width: int, height: int, title: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}" preserveAspectRatio="xMidYMid meet">'
    )
