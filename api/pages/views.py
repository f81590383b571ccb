"""From domain objects to what the templates show: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from markupsafe import Markup

from api.pages.charts import Bar, Lane, Series, stacked_bars, timeline
from broker.domain.market import FeedHealth
from broker.domain.money import ZERO
from broker.domain.plan import Placement, Plan
from broker.domain.spend import Interval, SpendRow
from broker.domain.window import Window
from broker.domain.workload import WorkloadKind
from broker.ports import PlanRecord

SERIES_OF_KIND = {WorkloadKind.TRAINING: 0, WorkloadKind.SERVING: 1, WorkloadKind.BATCH: 2}
SPLIT_BASELINE = "single_shape"
DASH = "–"


@dataclass(frozen=True, slots=True)
class Card:
    """One figure with its name and a note."""

    label: str
    figure: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One plan in a list."""

    plan_id: str
    team: str
    created_at: datetime
    state: str
    cost_usd: Decimal | None
    gap: float | None
    saved_usd: Decimal | None


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """One habit against the plan."""

    name: str
    cost_usd: Decimal | None
    saving_usd: Decimal | None
    why: str


@dataclass(frozen=True, slots=True)
class SpendTableRow:
    """One period: a value for each group, and their sum."""

    label: str
    values: tuple[Decimal, ...]
    sum: Decimal


@dataclass(frozen=True, slots=True)
class SpendTable:
    """Spend as periods × groups, the largest group first."""

    names: tuple[str, ...]
    rows: tuple[SpendTableRow, ...]
    sums: tuple[Decimal, ...]
    total: Decimal
    chart: Markup


def usd(amount: Decimal | None) -> str:
    """``$1,234.56``, or a dash."""
    return DASH if amount is None else f"{'-' if amount < 0 else ''}${abs(amount):,.2f}"


def instant(at: datetime | None) -> str:
    """``2026-11-23 11:30``, or a dash."""
    return DASH if at is None else f"{at:%Y-%m-%d %H:%M}"


def share(ratio: float | None) -> str:
    """A percentage with two digits, or a dash."""
    return DASH if ratio is None else f"{100 * ratio:.2f} %"


def expected(placement: Placement) -> str:
    """The figures of an estimate that say most."""
    told = placement.estimate
    if placement.kind is WorkloadKind.TRAINING:
        return f"{told['hours']:.1f} h, {told['tokens_per_s']:,.0f} tokens/s, MFU {100 * told['mfu']:.0f} %"
    text = f"{told['requests_per_s_per_replica']:.2f} requests/s a replica"
    if placement.kind is WorkloadKind.SERVING:
        text += f", TTFT p95 {told['ttft_p95_ms']:.0f} ms, ITL p95 {told['itl_p95_ms']:.0f} ms"
    return text


def saved_usd(plan: Plan) -> Decimal | None:
    """What the plan saves against one shape for both phases; None when that could not run."""
    for baseline in plan.baselines:
        if baseline.name == SPLIT_BASELINE and baseline.cost_usd is not None:
            return baseline.cost_usd - plan.cost_usd
    return None


def plan_row(record: PlanRecord) -> PlanRow:
    """A record as a row of a list."""
    plan = record.plan
    state = plan.status if plan is not None else record.state
    return PlanRow(
        plan_id=record.plan_id,
        team=record.team,
        created_at=record.created_at,
        state=str(state),
        cost_usd=plan.cost_usd if plan else None,
        gap=plan.gap if plan else None,
        saved_usd=saved_usd(plan) if plan else None,
    )


def baseline_rows(plan: Plan) -> tuple[BaselineRow, ...]:
    """Each baseline with what the plan saves against it."""
    return tuple(
        BaselineRow(
            b.name.replace("_", " "),
            b.cost_usd,
            None if b.cost_usd is None else b.cost_usd - plan.cost_usd,
            b.why,
        )
        for b in plan.baselines
    )


def plan_cards(plan: Plan) -> tuple[Card, ...]:
    """Cost, bound, gap, saving and effort of a plan."""
    saved = saved_usd(plan)
    part = (
        "" if saved is None or not plan.cost_usd else f"{share(float(saved / (saved + plan.cost_usd)))} less"
    )
    return (
        Card("Cost", usd(plan.cost_usd), f"plus {usd(plan.penalty_usd)} penalties"),
        Card("No plan costs less than", usd(plan.bound_usd), "proven bound"),
        Card("Gap", share(plan.gap), f"solved in {plan.solve_seconds:.1f} s"),
        Card("Saved against one shape", usd(saved), part),
        Card("Candidates", f"{plan.candidates.evaluated:,}", f"{plan.candidates.kept:,} passed the gates"),
    )


def plan_chart(plan: Plan) -> Markup:
    """The plan over time: a lane for each placement, bars as tall as the nodes held."""
    if not plan.placements:
        return Markup("")
    start = min(s.start for p in plan.placements for s in p.segments)
    end = max(s.end for p in plan.placements for s in p.segments)
    lanes = [
        Lane(
            name=p.workload,
            detail=f"{p.nodes} × {p.sku} · {p.provider}"[:40],
            series=SERIES_OF_KIND[p.kind],
            bars=tuple(
                Bar(
                    s.start,
                    s.end,
                    s.nodes / p.nodes,
                    f"{s.nodes} nodes, {instant(s.start)} to {instant(s.end)}",
                )
                for s in p.segments
            ),
        )
        for p in plan.placements
    ]
    return timeline(lanes, start, end, "Nodes held over time, one lane a placement")


def period_label(period: datetime, interval: Interval) -> str:
    """``2026-11`` or ``11-23``-like labels, unambiguous within a year's window."""
    return f"{period:%Y-%m}" if interval is Interval.MONTH else f"{period:%Y-%m-%d}"


def spend_table(rows: Sequence[SpendRow], interval: Interval) -> SpendTable:
    """Rows of spend as a table and its chart; groups ordered by size."""
    totals: dict[str, Decimal] = {}
    cells: dict[tuple[datetime, str], Decimal] = {}
    for row in rows:
        totals[row.group] = totals.get(row.group, ZERO) + row.usd
        cells[row.period, row.group] = cells.get((row.period, row.group), ZERO) + row.usd
    names = tuple(sorted(totals, key=lambda name: (-totals[name], name)))
    periods = sorted({row.period for row in rows})
    table = []
    for period in periods:
        values = tuple(cells.get((period, name), ZERO) for name in names)
        table.append(SpendTableRow(period_label(period, interval), values, sum(values, ZERO)))
    series = [Series(name, tuple(float(row.values[i]) for row in table)) for i, name in enumerate(names)]
    chart = stacked_bars([row.label for row in table], series, f"Spend by {interval}, stacked by group")
    sums = tuple(totals[name] for name in names)
    return SpendTable(names, tuple(table), sums, sum(sums, ZERO), chart)


def spend_cards(table: SpendTable, window: Window) -> tuple[Card, ...]:
    """Total, the largest group, the dearest period."""
    days = max(1.0, window.hours / 24)
    dearest = max(table.rows, key=lambda row: row.sum, default=None)
    largest = table.names[0] if table.names else DASH
    return (
        Card("Projected", usd(table.total), f"{instant(window.start)[:10]} to {instant(window.end)[:10]}"),
        Card("A day, on average", usd(table.total / Decimal(days))),
        Card("Largest share", largest, usd(table.sums[0]) if table.sums else ""),
        Card("Dearest period", dearest.label if dearest else DASH, usd(dearest.sum) if dearest else ""),
    )


def overview_cards(
    offers: int, feeds: Sequence[FeedHealth], plans: Sequence[PlanRecord], held: int
) -> tuple[Card, ...]:
    """What the product knows, plans and holds now."""
    stale = sum(feed.stale_since is not None for feed in feeds)
    cost = sum((p.plan.cost_usd for p in plans if p.plan), ZERO)
    saved = [s for p in plans if p.plan and (s := saved_usd(p.plan)) is not None]
    return (
        Card("Offers now", f"{offers:,}", f"from {len(feeds)} providers, {stale} stale"),
        Card("Current plans", str(len(plans)), usd(cost)),
        Card("Saved against one shape", usd(sum(saved, ZERO)) if saved else DASH, "sum over current plans"),
        Card("Reservations open", str(held)),
    )
