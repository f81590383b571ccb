"""A plan in a notebook: what it costs, a chart of the nodes held over time, and a table. Pure, no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from html import escape

from api.plan_words import STATUS_WORDS
from broker.domain.basics.window import Segment, Window
from broker.domain.planning.plan import Placement, Plan

WIDTH, LABELS, ROW, BAR, AXIS = 760, 170, 30, 22, 20
"""Of the chart, in pixels."""
COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")
"""One for each workload; readable on light and dark pages."""
HEADERS = ("workload", "capacity", "where", "held (UTC)", "cost")
LEAST_LABEL_PX = 62
DAYS = (1, 2, 3, 5, 7, 10, 14, 28, 56, 112, 10_000)


def plan_html(plan: Plan, holding: str = "") -> str:
    """The plan as one element of HTML. Everything that a seller or a document said is escaped.

    ``holding``: what is held of it, in words.
    """
    parts = (_headline(plan, holding), _chart(plan.placements), _table(plan.placements), _unplaced(plan))
    return f"<div>{''.join(part for part in parts if part)}</div>"


def _usd(amount: Decimal) -> str:
    return f"${amount:,.2f}"


def _headline(plan: Plan, holding: str) -> str:
    told = [f"<b>{_usd(plan.cost_usd)}</b>", escape(STATUS_WORDS[plan.status])]
    if plan.gap is not None:
        told.append(f"within {plan.gap:.1%} of the best possible")
    if holding:
        told.append(escape(holding))
    return f"<p>{', '.join(told)} <code>{escape(plan.plan_id)}</code></p>"


def _span(placements: Sequence[Placement]) -> Window | None:
    edges = [edge for one in placements for segment in one.segments for edge in (segment.start, segment.end)]
    return Window(min(edges), max(edges)) if edges else None


def _chart(placements: Sequence[Placement]) -> str:
    """One row for each placement: the height is the share of its most nodes that is held."""
    span = _span(placements)
    if span is None:
        return ""
    height = len(placements) * ROW + AXIS
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(dict.fromkeys(_names(placements)))}
    rows = "".join(_row(one, i * ROW, span, colors[one.workload]) for i, one in enumerate(placements))
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" font-family="sans-serif" '
        f'font-size="12" fill="currentColor"><title>Nodes held over time</title>{rows}'
        f"{_axis(span, height)}</svg>"
    )


def _names(placements: Sequence[Placement]) -> Iterator[str]:
    return (one.workload for one in placements)


def _row(placement: Placement, top: int, span: Window, color: str) -> str:
    most = max(segment.nodes for segment in placement.segments)
    bars = "".join(_bar(segment, most, top, span, color) for segment in placement.segments)
    label = placement.workload if len(placement.workload) <= 24 else f"{placement.workload[:23]}…"
    return f'<text x="0" y="{top + BAR - 5}">{escape(label)}</text>{bars}'


def _bar(segment: Segment, most: int, top: int, span: Window, color: str) -> str:
    left, right = _x(segment.start, span), _x(segment.end, span)
    tall = BAR * segment.nodes / most
    said = f"{_nodes(segment.nodes)}, {_time(segment.start)} to {_time(segment.end)}"
    return (
        f'<rect x="{left:.1f}" y="{top + BAR - tall:.1f}" width="{max(right - left, 1):.1f}" '
        f'height="{tall:.1f}" fill="{color}"><title>{escape(said)}</title></rect>'
    )


def _x(at: datetime, span: Window) -> float:
    return LABELS + (WIDTH - LABELS) * ((at - span.start) / span.duration)


def _axis(span: Window, height: int) -> str:
    """Midnights, as many as have room for their label."""
    room = (WIDTH - LABELS) / LEAST_LABEL_PX
    every = next(days for days in DAYS if span.duration / timedelta(days=days) <= room)
    at = span.start.replace(hour=0, minute=0, second=0, microsecond=0)
    marks = []
    while at <= span.end:
        x = _x(at, span)
        if at >= span.start and x + LEAST_LABEL_PX <= WIDTH + 20:
            marks.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - AXIS}" stroke="currentColor" '
                f'stroke-opacity="0.2"/><text x="{x:.1f}" y="{height - 6}">{at.day} {at:%b}</text>'
            )
        at += timedelta(days=every)
    return "".join(marks)


def _table(placements: Sequence[Placement]) -> str:
    if not placements:
        return ""
    head = "".join(f"<th>{name}</th>" for name in HEADERS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(one)) + "</tr>" for one in placements
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(placement: Placement) -> tuple[str, ...]:
    start = min(segment.start for segment in placement.segments)
    end = max(segment.end for segment in placement.segments)
    least, most = (pick(segment.nodes for segment in placement.segments) for pick in (min, max))
    nodes = _nodes(most) if least == most else f"{least} to {_nodes(most)}"
    per_node = placement.gpus // placement.nodes
    return (
        placement.workload,
        f"{nodes} × {per_node} {placement.gpu}",
        f"{placement.provider} {placement.zone or placement.region}, {str(placement.tier).replace('_', ' ')}",
        f"{_time(start)} to {_time(end)}",
        _usd(placement.cost_usd),
    )


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _time(at: datetime) -> str:
    return f"{at.day} {at:%b %H:%M}"


def _unplaced(plan: Plan) -> str:
    return "".join(
        f"<p><b>{escape(one.workload)}</b> is not placed ({escape(str(one.reason))}): "
        f"{escape(one.nearest_fix)}</p>"
        for one in plan.unplaced
    )
