"""From domain objects to what the templates show: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from api.pages.charts import Bar, Charts, Lane, both_widths, timeline
from broker.domain.market import FeedHealth
from broker.domain.money import ZERO
from broker.domain.offer import Offer
from broker.domain.plan import Placement, Plan
from broker.domain.reservation import Reservation
from broker.domain.workload import WorkloadKind
from broker.ports import PlanRecord

SERIES_OF_KIND = {WorkloadKind.TRAINING: 0, WorkloadKind.SERVING: 1, WorkloadKind.BATCH: 2}
SPLIT_BASELINE = "single_shape"
DASH = "–"
TONES: Mapping[str, str] = {
    **dict.fromkeys(("optimal", "done", "active", "held", "fresh", "applied", "approved"), "good"),
    **dict.fromkeys(("feasible", "queued", "running", "pending", "scheduled", "releasing"), "warn"),
    **dict.fromkeys(("proposed", "stale", "waiting"), "warn"),
    **dict.fromkeys(("infeasible", "failed", "unknown"), "bad"),
}
METRICS: Mapping[WorkloadKind, tuple[tuple[str, str, float], ...]] = {
    WorkloadKind.TRAINING: (
        ("hours", "{:,.1f} h", 1),
        ("tokens_per_s", "{:,.0f} tokens/s", 1),
        ("mfu", "MFU {:.0f} %", 100),
        ("goodput", "goodput {:.0f} %", 100),
    ),
    WorkloadKind.SERVING: (
        ("requests_per_s_per_replica", "{:,.2f} requests/s a replica", 1),
        ("ttft_p95_ms", "TTFT p95 {:,.0f} ms", 1),
        ("itl_p95_ms", "ITL p95 {:,.0f} ms", 1),
        ("usd_per_million_tokens", "${:,.2f} per million tokens", 1),
    ),
    WorkloadKind.BATCH: (
        ("requests_per_s_per_replica", "{:,.2f} requests/s a replica", 1),
        ("usd_per_million_tokens", "${:,.2f} per million tokens", 1),
    ),
}
"""Metric of an estimate, how it reads, and what it is multiplied by."""


@dataclass(frozen=True, slots=True)
class Card:
    """One figure with its name and a note; ``lead`` marks the one to read first."""

    label: str
    figure: str
    note: str = ""
    tone: str = ""
    lead: bool = False


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One plan in a list."""

    plan_id: str
    team: str
    created_at: datetime
    state: str
    workloads: tuple[str, ...]
    cost_usd: Decimal | None
    gap: float | None
    saved_usd: Decimal | None


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """One habit against the plan; ``share`` of the dearest cost in [0, 1]."""

    name: str
    cost_usd: Decimal | None
    saving_usd: Decimal | None
    share: float
    why: str


@dataclass(frozen=True, slots=True)
class Filter:
    """One choice of the market page: its values and the one that is chosen."""

    name: str
    label: str
    chosen: str
    values: tuple[str, ...]


def usd(amount: Decimal | None) -> str:
    """``$1,234.56``, or a dash."""
    return DASH if amount is None else f"{'-' if amount < 0 else ''}${abs(amount):,.2f}"


def instant(at: datetime | None) -> str:
    """``2026-11-23 11:30``, or a dash."""
    return DASH if at is None else f"{at:%Y-%m-%d %H:%M}"


def share(ratio: float | None) -> str:
    """A percentage with two digits, or a dash."""
    return DASH if ratio is None else f"{100 * ratio:.2f} %"


def words(name: str) -> str:
    """A name of ours as words: ``on_demand`` → ``on demand``."""
    return str(name).replace("_", " ")


def place(at: Offer | Placement) -> str:
    """Region and zone; the zone alone where its name begins with the region's."""
    if at.zone is None or at.zone == at.region:
        return at.region
    return at.zone if at.zone.startswith(at.region) else f"{at.region} · {at.zone}"


def tone(state: str) -> str:
    """Whether a state is good news, a wait, or bad news; empty for others."""
    return TONES.get(str(state), "")


def figures(placement: Placement) -> list[str]:
    """The figures of an estimate that say most."""
    told = placement.estimate.value
    return [
        form.format(told[name] * factor) for name, form, factor in METRICS[placement.kind] if name in told
    ]


def saved_usd(plan: Plan) -> Decimal | None:
    """What the plan saves against one shape for both phases; None when that could not run."""
    for baseline in plan.baselines:
        if baseline.name == SPLIT_BASELINE and baseline.cost_usd is not None:
            return baseline.cost_usd - plan.cost_usd
    return None


def plan_row(record: PlanRecord) -> PlanRow:
    """A record as a row of a list."""
    plan = record.plan
    proposed = record.state == "proposed"
    state = record.state if plan is None or proposed else plan.status
    return PlanRow(
        plan_id=record.plan_id,
        team=record.team,
        created_at=record.created_at,
        state=str(state),
        workloads=tuple(dict.fromkeys(p.workload for p in plan.placements)) if plan else (),
        cost_usd=plan.cost_usd if plan else None,
        gap=plan.gap if plan else None,
        saved_usd=saved_usd(plan) if plan else None,
    )


def baseline_rows(plan: Plan) -> tuple[BaselineRow, ...]:
    """The plan, then each habit with what the plan saves against it."""
    costs = [plan.cost_usd, *(b.cost_usd for b in plan.baselines if b.cost_usd is not None)]
    dearest = max(costs) or Decimal(1)
    this = BaselineRow("this plan", plan.cost_usd, None, float(plan.cost_usd / dearest), "")
    others = (
        BaselineRow(
            words(b.name),
            b.cost_usd,
            None if b.cost_usd is None else b.cost_usd - plan.cost_usd,
            0.0 if b.cost_usd is None else float(b.cost_usd / dearest),
            b.why,
        )
        for b in plan.baselines
    )
    return (this, *others)


def plan_cards(plan: Plan) -> tuple[Card, ...]:
    """Cost, saving, bound, unused and effort of a plan."""
    unused = sum((p.paid_unused_usd for p in plan.placements), ZERO)
    penalty = f"plus {usd(plan.penalty_usd)} penalties" if plan.penalty_usd else "no penalties"
    return (
        Card("Cost", usd(plan.cost_usd), penalty, lead=True),
        _saving_card(plan),
        Card("No plan costs less than", usd(plan.bound_usd), f"proven; gap {share(plan.gap)}"),
        Card("Paid but unused", usd(unused), "windows and minimum terms"),
        Card(
            "Ways considered",
            f"{plan.candidates.evaluated:,}",
            f"{plan.candidates.kept:,} passed every gate, in {plan.solve_seconds:.1f} s",
        ),
    )


def _saving_card(plan: Plan) -> Card:
    """Against one shape for both phases; where that cannot run, against the cheapest habit that can."""
    ran = {b.name: b.cost_usd for b in plan.baselines if b.cost_usd is not None}
    if not ran:
        return Card("Saved against other habits", DASH, "none of them could run")
    habit = SPLIT_BASELINE if SPLIT_BASELINE in ran else min(ran, key=lambda name: ran[name])
    before = ran[habit]
    saved = before - plan.cost_usd
    part = f"{share(float(saved / before))} less" if saved > 0 else "this habit costs no more"
    name = "one shape" if habit == SPLIT_BASELINE else f"“{words(habit)}”"
    return Card(f"Saved against {name}", usd(saved), part, tone="good" if saved > 0 else "")


def kinds_of(plan: Plan) -> list[tuple[int, str]]:
    """Kinds of workload that the plan's chart shows, with their colours."""
    shown = {p.kind for p in plan.placements}
    return [(number, str(kind)) for kind, number in SERIES_OF_KIND.items() if kind in shown]


def plan_charts(plan: Plan) -> Charts | None:
    """The plan over time: a lane for each placement, bars as tall as the nodes held."""
    if not plan.placements:
        return None
    start = min(s.start for p in plan.placements for s in p.segments)
    end = max(s.end for p in plan.placements for s in p.segments)
    lanes = [_lane(placement) for placement in plan.placements]
    title = "Nodes held over time, one lane a placement"
    return both_widths(lambda width: timeline(lanes, start, end, title, width))


def _lane(placement: Placement) -> Lane:
    most = max((s.nodes for s in placement.segments), default=placement.nodes)
    bars = tuple(
        Bar(
            s.start,
            s.end,
            s.nodes / most,
            f"{placement.workload}: {s.nodes} nodes, {instant(s.start)} to {instant(s.end)}",
        )
        for s in placement.segments
    )
    detail = f"{placement.nodes} × {placement.sku} · {placement.provider}"
    return Lane(placement.workload, detail, SERIES_OF_KIND[placement.kind], bars)


def matching_offers(offers: Iterable[Offer], wanted: Mapping[str, str]) -> tuple[Offer, ...]:
    """Offers with every wished word; an empty wish takes all."""
    return tuple(
        offer
        for offer in offers
        if all(not word or _word(offer, name) == word for name, word in wanted.items())
    )


def market_filters(offers: Sequence[Offer], wanted: Mapping[str, str]) -> tuple[Filter, ...]:
    """What the market can be narrowed by."""
    labels = {"gpu": "GPU", "provider": "Provider", "region": "Region", "tier": "Tier"}
    return tuple(
        Filter(name, labels[name], chosen, tuple(sorted({_word(offer, name) for offer in offers} | {chosen})))
        for name, chosen in wanted.items()
    )


def _word(offer: Offer, name: str) -> str:
    return offer.sku.gpu if name == "gpu" else str(getattr(offer, name))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def market_card(feeds: Sequence[FeedHealth]) -> Card:
    """What is on sale now, and whether that is still true."""
    stale = sum(feed.stale_since is not None for feed in feeds)
    offers = sum(feed.offers for feed in feeds)
    health = f"{stale} stale" if stale else "all fresh"
    return Card("Offers now", f"{offers:,}", f"from {len(feeds)} providers, {health}")


def overview_cards(
    feeds: Sequence[FeedHealth], plans: Sequence[PlanRecord], reservations: Sequence[Reservation]
) -> tuple[Card, ...]:
    """What the product knows, plans and holds now."""
    cost = sum((p.plan.cost_usd for p in plans if p.plan), ZERO)
    saved = [s for p in plans if p.plan and (s := saved_usd(p.plan)) is not None]
    held = [row for row in reservations if row.is_open]
    nodes = sum(row.nodes for row in held)
    return (
        Card("Planned spend", usd(cost), _counted(len(plans), "current plan"), lead=True),
        Card(
            "Saved against one shape",
            usd(sum(saved, ZERO)) if saved else DASH,
            "one kind of node for training and serving alike",
            tone="good" if saved else "",
        ),
        Card("Reservations open", str(len(held)), _counted(nodes, "node")),
        market_card(feeds),
    )
