"""A plan over time: one row for each placement, one column for each slice of time, height by nodes held."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from api.cli.figures import day
from broker.domain.basics.window import Segment, Window
from broker.domain.planning.plan import Placement

LEVELS = "▁▂▃▄▅▆▇█"
EMPTY = "·"


def span_of(placements: Sequence[Placement], horizon: Window | None) -> Window | None:
    """The horizon, widened to hold every segment; None when there is nothing to show."""
    edges = [edge for p in placements for s in p.segments for edge in (s.start, s.end)]
    if horizon is not None:
        edges += [horizon.start, horizon.end]
    return Window(min(edges), max(edges)) if edges else None


def bar(segments: Sequence[Segment], span: Window, width: int) -> str:
    """``width`` characters: the most nodes held in each slice, relative to the peak."""
    peak = max((segment.nodes for segment in segments), default=0)
    step = span.duration / width
    cells = []
    for column in range(width):
        start = span.start + column * step
        nodes = max((s.nodes for s in segments if s.start < start + step and start < s.end), default=0)
        cells.append(LEVELS[max(1, round(nodes / peak * len(LEVELS))) - 1] if nodes else EMPTY)
    return "".join(cells)


def axis(span: Window, width: int) -> str:
    """Days under the bars, as many as fit with a gap between them."""
    days = span.duration / timedelta(days=1)
    every = next(n for n in (1, 2, 3, 5, 7, 10, 14, 28, 56, 112, 10_000) if width / max(days, 1) * n >= 8)
    line = [" "] * width
    at = _midnight_after(span.start)
    while at < span.end:
        column = round((at - span.start) / span.duration * width)
        label = day(at)
        if column + len(label) <= width:
            line[column : column + len(label)] = label
        at += timedelta(days=every)
    return "".join(line)


def _midnight_after(instant: datetime) -> datetime:
    midnight = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight if midnight == instant else midnight + timedelta(days=1)
