"""Figures that a page leads with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from api.figures import plural
from api.pages.parts.words import DASH, usd
from api.plan_words import saved_usd
from api.reserved_fleets import most_nodes
from api.sections import Card
from broker.domain.basics.money import ZERO
from broker.domain.holding.reservation import Reservation
from broker.domain.market.market import FeedHealth
from broker.domain.planning.plan import Placement
from broker.ports.planning import UNDECIDED, BusinessStatus, PlanRecord
from broker.services.spend.ledger import counted_drafts


def market_card(feeds: Sequence[FeedHealth]) -> Card:
    """How many offers are on sale, and how old that information is."""
    stale = sum(feed.stale_since is not None for feed in feeds)
    offers = sum(feed.offers for feed in feeds)
    health = f"{stale} stale" if stale else "all fresh"
    return Card("Offers now", f"{offers:,}", f"from {len(feeds)} providers, {health}")


def overview_cards(
    feeds: Sequence[FeedHealth],
    plans: Sequence[PlanRecord],
    statuses: Mapping[str, BusinessStatus],
    held: Sequence[Reservation],
    now: datetime,
) -> tuple[Card, ...]:
    """What the product knows, plans and holds (the open reservations) now; a workload counts once."""
    reserved = [p for p in plans if statuses.get(p.plan_id) is BusinessStatus.RESERVED]
    coming = _coming(plans, held, now)
    drafts = {record.plan_id for record, _ in coming}
    ones = [p.plan for p in plans if p.plan is not None and (p in reserved or p.plan_id in drafts)]
    saved = [saving for plan in ones if (saving := saved_usd(plan)) is not None]
    intended_usd = sum((placement.cost_usd for _, placement in coming), ZERO)
    parts = f"{usd(_cost_usd(reserved))} reserved, {usd(intended_usd)} planned"
    others = [
        one
        for one in plans
        if statuses.get(one.plan_id) in UNDECIDED and one.plan_id not in drafts and _ends_after(one, now)
    ]
    apart = [f"{plural(len(others), 'draft')} of {usd(_cost_usd(others))}"] if others else []
    if ordered := sum(row.plan_id is None for row in held):
        apart.append(f"{plural(ordered, 'order')} without a plan")
    if apart:
        parts += f"; not counted: {', '.join(apart)}"
    return (
        Card("Plans, reserved and planned", usd(_cost_usd(reserved) + intended_usd), parts, lead=True),
        Card(
            "Saved against simpler strategies",
            usd(sum(saved, ZERO)) if saved else DASH,
            "for each plan, the strongest one that was completed",
            tone="good" if sum(saved, ZERO) > 0 else "",
        ),
        Card("Reservations open", f"{len(held):,}", f"{plural(most_nodes(held), 'node')} at most at once"),
        market_card(feeds),
    )


def _coming(
    plans: Sequence[PlanRecord], held: Sequence[Reservation], now: datetime
) -> list[tuple[PlanRecord, Placement]]:
    """What intended drafts would buy, without what is held already or over."""
    drafts = counted_drafts(plans, held)
    return [
        (record, placement)
        for record in plans
        if record.plan is not None
        for placement in record.plan.placements
        if drafts.get((record.team, placement.workload)) == record.plan_id
        and max(segment.end for segment in placement.segments) > now
    ]


def _ends_after(record: PlanRecord, now: datetime) -> bool:
    placed = () if record.plan is None else record.plan.placements
    return any(segment.end > now for placement in placed for segment in placement.segments)


def _cost_usd(plans: Sequence[PlanRecord]) -> Decimal:
    return sum((one.plan.cost_usd for one in plans if one.plan is not None), ZERO)
