"""Figures that a page leads with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from api.pages.words import DASH, counted, usd
from broker.domain.market import FeedHealth
from broker.domain.money import ZERO
from broker.domain.plan import Plan
from broker.domain.reservation import Reservation
from broker.plan_ports import PlanRecord, Standing

SPLIT_BASELINE = "single_shape"
DRAFTS = frozenset({Standing.DRAFT, Standing.WAITING})


@dataclass(frozen=True, slots=True)
class Card:
    """One figure with its name and a note; ``lead`` marks the one to read first."""

    label: str
    figure: str
    note: str = ""
    tone: str = ""
    lead: bool = False


def saved_usd(plan: Plan) -> Decimal | None:
    """What the plan saves against one shape for both phases; None when that could not run, or passes the
    budget."""
    for baseline in plan.baselines:
        if baseline.name != SPLIT_BASELINE or baseline.over_budget_usd:
            continue
        if baseline.cost_usd is not None:
            return baseline.cost_usd - plan.cost_usd - plan.delay_usd
    return None


def market_card(feeds: Sequence[FeedHealth]) -> Card:
    """What is on sale now, and whether that is still true."""
    stale = sum(feed.stale_since is not None for feed in feeds)
    offers = sum(feed.offers for feed in feeds)
    health = f"{stale} stale" if stale else "all fresh"
    return Card("Offers now", f"{offers:,}", f"from {len(feeds)} providers, {health}")


def overview_cards(
    feeds: Sequence[FeedHealth],
    plans: Sequence[PlanRecord],
    standings: Mapping[str, Standing],
    reservations: Sequence[Reservation],
) -> tuple[Card, ...]:
    """What the product knows, plans and holds now."""
    reserved = [p for p in plans if standings.get(p.plan_id) is Standing.RESERVED]
    intended = [p for p in plans if p.is_intended and standings.get(p.plan_id) in DRAFTS]
    counted_ones = [p.plan for p in (*reserved, *intended) if p.plan is not None]
    saved = [saving for plan in counted_ones if (saving := saved_usd(plan)) is not None]
    held = [row for row in reservations if row.is_open]
    nodes = sum(row.nodes for row in held)
    return (
        Card(
            "Planned spend",
            usd(_cost_usd(reserved) + _cost_usd(intended)),
            f"{usd(_cost_usd(reserved))} reserved, {usd(_cost_usd(intended))} of intended drafts",
            lead=True,
        ),
        Card(
            "Saved against one shape",
            usd(sum(saved, ZERO)) if saved else DASH,
            "one kind of node for training and serving alike",
            tone="good" if saved else "",
        ),
        Card("Reservations open", f"{len(held):,}", counted(nodes, "node")),
        market_card(feeds),
    )


def _cost_usd(plans: Sequence[PlanRecord]) -> Decimal:
    return sum((one.plan.cost_usd for one in plans if one.plan is not None), ZERO)
