"""Gantt charts: what is held over time, one row for each placement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup, escape

from api.pages.parts.charts import SERIES_CLASSES, TEXT_WIDTH, WIDE, Plot, opened
from api.pages.parts.words import moment

LABEL_COLUMN = 230


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a timeline: ``[start, end)`` on a row, ``share`` of the row's height in (0, 1]."""

    start: datetime
    end: datetime
    share: float
    title: str


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One row of a timeline. ``waits`` are spans in which it waits, ``due`` is its deadline."""

    name: str
    detail: str
    series: int
    bars: tuple[Bar, ...]
    waits: tuple[Bar, ...] = ()
    due: datetime | None = None


def timeline(
    rows: Sequence[TimelineRow],
    start: datetime,
    end: datetime,
    title: str,
    width: int = WIDE,
    now: datetime | None = None,
) -> Markup:
    """A Gantt chart with one line per row, bars as tall as their share, days at the top, a line at
    ``now``.

    Names are left of the bars, or above them where the drawing is narrow.
    """
    beside = width > 2 * LABEL_COLUMN
    left = LABEL_COLUMN if beside else 0
    row_height = 34 if beside else 60
    height = 26 + row_height * len(rows) + 6
    plot = Plot(left, 26, width - left - 8, height - 26)
    parts = [opened(width, height, title), *day_axis(plot, start, end)]
    for index, row in enumerate(rows):
        base = plot.top + row_height * (index + 1) - 5
        parts.extend(_row_name(row, base if beside else base - 28, width if not beside else left))
        parts.extend(_wait(plot, wait, base, start, end) for wait in row.waits)
        parts.extend(_bar(plot, bar, row.series, base, start, end) for bar in row.bars)
        if row.due is not None and start <= row.due <= end:
            x = x_of(plot, row.due, start, end)
            parts.append(
                f'<line class="due" x1="{x:.1f}" x2="{x:.1f}" y1="{base - 26:g}" y2="{base + 2:g}">'
                f"<title>{escape(f'deadline of {row.name}: {moment(row.due)}')}</title></line>"
            )
    if now is not None and start < now < end:
        x = x_of(plot, now, start, end)
        parts.append(
            f'<line class="now" x1="{x:.1f}" x2="{x:.1f}" y1="{plot.top:g}" y2="{plot.bottom:g}">'
            "<title>now</title></line>"
        )
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  every text above went through escape


def day_axis(plot: Plot, start: datetime, end: datetime) -> list[str]:
    """Lines at midnight with their dates above, as many as fit."""
    days = max(1, math.ceil((end - start) / timedelta(days=1)))
    every = max(1, math.ceil(days / (plot.width / 72)))
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    parts = []
    for k in range(0, days + 1, every):
        day = midnight + timedelta(days=k)
        if start <= day <= end:
            x = x_of(plot, day, start, end)
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{plot.top:g}" y2="{plot.bottom:g}"/>'
            )
            if x + 40 < plot.left + plot.width + 8:
                parts.append(
                    f'<text class="tick" x="{x + 3:.1f}" y="{plot.top - 8:g}">{day.day} {day:%b}</text>'
                )
    return parts


def _row_name(row: TimelineRow, base: float, room: float) -> list[str]:
    return [
        f'<text class="lane" x="0" y="{base - 13:g}">{_cut(row.name, room / 7.2)}</text>',
        f'<text class="tick" x="0" y="{base:g}">{_cut(row.detail, room / TEXT_WIDTH)}</text>',
    ]


def _cut(text: str, characters: float) -> Markup:
    most = max(4, int(characters))
    return escape(text if len(text) <= most else text[: most - 1] + "…")


def _bar(plot: Plot, bar: Bar, series: int, base: float, start: datetime, end: datetime) -> str:
    tall = max(2.0, 24 * min(1.0, bar.share))
    x = x_of(plot, bar.start, start, end)
    wide = max(1.0, x_of(plot, bar.end, start, end) - x)
    return (
        f'<rect class="s{series % SERIES_CLASSES}" x="{x:.2f}" y="{base - tall:.2f}" '
        f'width="{wide:.2f}" height="{tall:.2f}"><title>{escape(bar.title)}</title></rect>'
    )


def _wait(plot: Plot, wait: Bar, base: float, start: datetime, end: datetime) -> str:
    x = x_of(plot, wait.start, start, end)
    wide = max(1.0, x_of(plot, wait.end, start, end) - x)
    return (
        f'<rect class="wait" x="{x:.2f}" y="{base - 10:.2f}" width="{wide:.2f}" height="6">'
        f"<title>{escape(wait.title)}</title></rect>"
    )


def x_of(plot: Plot, instant: datetime, start: datetime, end: datetime) -> float:
    """The x coordinate of ``instant``, clamped to the plot."""
    inside = min(max(instant, start), end)
    return plot.left + plot.width * ((inside - start) / (end - start))
