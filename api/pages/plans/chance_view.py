"""Pure functions from a plan's chances and costs to what the pages show of them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from markupsafe import Markup, escape

from api.figures import percent
from api.pages.parts.charts import (
    NARROW,
    Charts,
    Plot,
    both_widths,
    money_axis,
    opened,
    scale_over,
    short_usd,
)
from api.pages.parts.words import usd
from api.plan_words import share_words
from api.sections import Card
from broker.domain.planning.plan import ConfidencePrice, Plan
from broker.domain.planning.simulation import CostShare, Simulation

DOT = 4.5
LABEL_WIDTH = 64


def price_chart(plan: Plan) -> Markup | None:
    """Cost against confidence: what is held, and what is paid on average as a dashed line. None where fewer
    than two confidences have a price.
    """
    rows = [row for row in plan.confidence_prices if row.cost_usd is not None]
    return _price_curve(rows) if len(rows) > 1 else None


def _price_curve(rows: Sequence[ConfidencePrice], width: int = NARROW, height: int = 190) -> Markup:
    plot = Plot(52, 14, width - 52 - 22, height - 14 - 28)
    held = [float(row.cost_usd or 0) for row in rows]
    paid = [float(row.expected_cost_usd or row.cost_usd or 0) for row in rows]
    scale = scale_over(min(*held, *paid), max(*held, *paid))
    least, span = rows[0].confidence, rows[-1].confidence - rows[0].confidence
    across = [plot.left + plot.width * (row.confidence - least) / span for row in rows]
    parts = [opened(width, height, "Cost against confidence"), *money_axis(plot, scale)]
    for costs, look in ((paid, "line dashed thin"), (held, "line")):
        points = " ".join(f"{x:.1f},{scale.y(plot, cost):.1f}" for x, cost in zip(across, costs, strict=True))
        parts.append(f'<polyline class="{look}" points="{points}"/>')
    for row, x, cost in zip(rows, across, held, strict=True):
        average = f", {usd(row.expected_cost_usd)} paid on average" if row.expected_cost_usd else ""
        note = escape(f"{percent(row.confidence)}: {usd(row.cost_usd)}{average}")
        parts.append(
            f'<circle class="s0" cx="{x:.1f}" cy="{scale.y(plot, cost):.1f}" r="{DOT:g}">'
            f"<title>{note}</title></circle>"
        )
    for row, x in zip(rows, across, strict=True):
        label = percent(row.confidence) if row is rows[-1] else f"{100 * row.confidence:.0f}"
        parts.append(f'<text class="tick mid" x="{x:.1f}" y="{plot.bottom + 18:.1f}">{label}</text>')
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  every text above went through escape


def simulation_cards(found: Simulation) -> tuple[Card, ...]:
    """What is paid in the end: the median, eight of ten cases, and the mean."""
    cost = found.cost_usd
    return (
        Card("Paid in the end, on average", usd(cost.mean), f"over {found.draws:,} draws", lead=True),
        Card("In half of the cases at most", usd(cost.p50)),
        Card("In eight of ten cases", f"{usd(cost.p10)} to {usd(cost.p90)}"),
    )


def cost_histogram(found: Simulation) -> Charts | None:
    """The shares of draws by cost, as bars; the table of quantiles is beside it. None where all cost the
    same.
    """
    steps = found.cost_shares
    return both_widths(lambda width: _bars(steps, width)) if len(steps) > 1 else None


def _bars(steps: Sequence[CostShare], width: int, height: int = 200) -> Markup:
    plot = Plot(18, 12, width - 36, height - 12 - 28)
    highest = max(step.share for step in steps)
    slot = plot.width / len(steps)
    parts = [opened(width, height, "Share of draws by what is paid in the end")]
    parts.append(
        f'<line class="axis" x1="{plot.left:g}" x2="{plot.left + plot.width:g}" '
        f'y1="{plot.bottom:g}" y2="{plot.bottom:g}"/>'
    )
    every = max(1, -(-LABEL_WIDTH // int(slot)))
    for i, step in enumerate(steps):
        x, tall = plot.left + slot * i, plot.height * step.share / highest
        told = escape(f"{usd(step.from_usd)} to {usd(step.to_usd)}: {share_words(step.share)} of draws")
        if step.share:
            parts.append(
                f'<rect class="s0" x="{x + 1:.1f}" y="{plot.bottom - tall:.1f}" width="{slot - 2:.1f}" '
                f'height="{tall:.1f}"><title>{told}</title></rect>'
            )
        if i % every == 0:
            label = escape(short_usd(float(step.from_usd)))
            parts.append(f'<text class="tick" x="{x:.1f}" y="{plot.bottom + 18:.1f}">{label}</text>')
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  every text above went through escape


def late_words(p50: float | None, p90: float | None) -> str:
    """The lateness of a run in nine of ten draws and in half of them; a dash for services."""
    if p50 is None or p90 is None:
        return "–"
    if p90 <= 0:
        return "in nine of ten cases not at all"
    half = "not at all" if p50 <= 0 else f"up to {p50:.1f}\u00a0h"
    return f"in half of the cases {half}, in nine of ten up to {p90:.1f}\u00a0h"


def span_words(low: Decimal, high: Decimal) -> str:
    """Two amounts as a span; one where they are equal."""
    return usd(low) if low == high else f"{usd(low)} to {usd(high)}"
