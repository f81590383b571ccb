"""Charts as SVG text: pure functions from numbers to markup, styled by classes of ``style.css``.

Series carry a class ``s0`` … ``s7`` (colour-blind-safe in light and dark); each mark has a
``<title>`` for pointer and screen reader, and every page puts the same numbers in a table beside.
Each chart is drawn twice, for a wide and a narrow window, so that its text stays legible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup, escape

SERIES_CLASSES = 8
WIDE, NARROW = 1080, 340
LABEL_COLUMN = 230
WIDEST_BAR = 64.0
TEXT_WIDTH = 6.2
"""Mean width of a character of 11-pixel text."""


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


@dataclass(frozen=True, slots=True)
class Charts:
    """One chart for each width; the style sheet shows the one that fits."""

    wide: Markup
    narrow: Markup


@dataclass(frozen=True, slots=True)
class _Plot:
    """The part of a drawing that the marks fill, in pixels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        return self.top + self.height


def both_widths(draw: Callable[[int], Markup]) -> Charts:
    """What ``draw`` makes of either width in pixels."""
    return Charts(draw(WIDE), draw(NARROW))


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
    labels: Sequence[str],
    series: Sequence[Series],
    title: str,
    width: int = WIDE,
    height: int = 300,
    ticks: Sequence[str] | None = None,
) -> Markup:
    """Stacked bars, one a label, lowest series first; values in USD, not negative.

    ``ticks`` are shorter words for the axis; as many are written as fit.
    """
    plot = _Plot(52, 12, width - 52 - 18, height - 12 - 34)
    totals = [sum(s.values[i] for s in series) for i in range(len(labels))]
    step = nice_step(max(totals, default=0.0))
    ceiling = max(step, math.ceil(max(totals, default=0.0) / step - 1e-9) * step)
    parts = [_open(width, height, title), *_money_axis(plot, step, ceiling)]
    slot = plot.width / max(1, len(labels))
    for i, text in enumerate(labels):
        parts.extend(_stack(plot, slot, i, text, series, ceiling))
    parts.extend(_label_axis(plot, slot, ticks or labels))
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  every text above went through escape


def _money_axis(plot: _Plot, step: float, ceiling: float) -> list[str]:
    parts = []
    for k in range(round(ceiling / step) + 1):
        y = plot.top + plot.height * (1 - k * step / ceiling)
        parts.append(
            f'<line class="grid" x1="{plot.left:g}" x2="{plot.left + plot.width:g}" '
            f'y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick end" x="{plot.left - 6:g}" y="{y + 4:.1f}">{short_usd(k * step)}</text>'
        )
    return parts


def _stack(
    plot: _Plot, slot: float, i: int, label: str, series: Sequence[Series], ceiling: float
) -> list[str]:
    wide = min(slot * 0.8, WIDEST_BAR)
    x = plot.left + slot * i + (slot - wide) / 2
    parts, base = [], plot.bottom
    for number, one in enumerate(series):
        tall = plot.height * one.values[i] / ceiling
        if tall <= 0:
            continue
        base -= tall
        note = escape(f"{label} · {one.name}: ${one.values[i]:,.2f}")
        parts.append(
            f'<rect class="s{number % SERIES_CLASSES}" x="{x:.2f}" y="{base:.2f}" '
            f'width="{wide:.2f}" height="{tall:.2f}"><title>{note}</title></rect>'
        )
    return parts


def _label_axis(plot: _Plot, slot: float, ticks: Sequence[str]) -> list[str]:
    longest = max((len(text) for text in ticks), default=0) * TEXT_WIDTH + 14
    every = max(1, math.ceil(longest / slot))
    return [
        f'<text class="tick mid" x="{plot.left + slot * (i + 0.5):.1f}" y="{plot.bottom + 18:.1f}">'
        f"{escape(text)}</text>"
        for i, text in enumerate(ticks)
        if i % every == 0
    ]


def timeline(lanes: Sequence[Lane], start: datetime, end: datetime, title: str, width: int = WIDE) -> Markup:
    """A Gantt chart: a lane each, bars as tall as their share, days on top.

    Names stand left of the bars, or above them where the drawing is narrow.
    """
    beside = width > 2 * LABEL_COLUMN
    left = LABEL_COLUMN if beside else 0
    lane_height = 34 if beside else 60
    height = 26 + lane_height * len(lanes) + 6
    plot = _Plot(left, 26, width - left - 8, height - 26)
    parts = [_open(width, height, title), *_day_axis(plot, start, end)]
    for row, lane in enumerate(lanes):
        base = plot.top + lane_height * (row + 1) - 5
        parts.extend(_lane_name(lane, base if beside else base - 28, width if not beside else left))
        parts.extend(_bar(plot, bar, lane.series, base, start, end) for bar in lane.bars)
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  every text above went through escape


def _day_axis(plot: _Plot, start: datetime, end: datetime) -> list[str]:
    days = max(1, math.ceil((end - start) / timedelta(days=1)))
    every = max(1, math.ceil(days / (plot.width / 72)))
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    parts = []
    for k in range(0, days + 1, every):
        day = midnight + timedelta(days=k)
        if start <= day <= end:
            x = _x_of(plot, day, start, end)
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{plot.top:g}" y2="{plot.bottom:g}"/>'
            )
            if x + 40 < plot.left + plot.width + 8:
                parts.append(
                    f'<text class="tick" x="{x + 3:.1f}" y="{plot.top - 8:g}">{day.day} {day:%b}</text>'
                )
    return parts


def _lane_name(lane: Lane, base: float, room: float) -> list[str]:
    return [
        f'<text class="lane" x="0" y="{base - 13:g}">{_cut(lane.name, room / 7.2)}</text>',
        f'<text class="tick" x="0" y="{base:g}">{_cut(lane.detail, room / TEXT_WIDTH)}</text>',
    ]


def _cut(text: str, characters: float) -> Markup:
    most = max(4, int(characters))
    return escape(text if len(text) <= most else text[: most - 1] + "…")


def _bar(plot: _Plot, bar: Bar, series: int, base: float, start: datetime, end: datetime) -> str:
    tall = max(2.0, 24 * min(1.0, bar.share))
    x = _x_of(plot, bar.start, start, end)
    wide = max(1.0, _x_of(plot, bar.end, start, end) - x)
    return (
        f'<rect class="s{series % SERIES_CLASSES}" x="{x:.2f}" y="{base - tall:.2f}" '
        f'width="{wide:.2f}" height="{tall:.2f}"><title>{escape(bar.title)}</title></rect>'
    )


def _x_of(plot: _Plot, instant: datetime, start: datetime, end: datetime) -> float:
    inside = min(max(instant, start), end)
    return plot.left + plot.width * ((inside - start) / (end - start))


def _open(width: int, height: float, title: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height:g}" role="img" '
        f'aria-label="{escape(title)}" preserveAspectRatio="xMidYMid meet">'
    )
