"""Capacity by the hour that is bought before it is needed, so that nobody else takes it. Pure.

What starts later is ordered at its start, when its seller may have none. If it is held now instead, each node
is bought now and kept until it is last needed, and also while it is not needed in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import Segment, Window
from broker.domain.market.billing import Holding, billed_ahead, holding_cost_usd, holdings
from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.plan import Placement, Plan


class Hold(StrEnum):
    """When capacity by the hour that starts later is ordered."""

    AT_START = "at_start"
    NOW = "now"


def why_not_held(offer: Offer) -> str:
    """Why holding ``offer`` before its start promises nothing; empty if it can be held."""
    if offer.window is not None:
        return "a window is bought ahead as its seller sells it"
    if offer.tier is Tier.SPOT:
        return "its seller may take spot capacity back at any time"
    return ""


def early_spans(placement: Placement, offer: Offer, now: datetime) -> tuple[Holding, ...]:
    """For each node of ``placement``, from when it is first to when it is last needed after ``now``.

    Node *k* is needed while at least *k* nodes are. Empty if nothing is ordered later, or cannot be held.
    """
    left = _left(placement, now)
    if why_not_held(offer) or all(one.window.start <= now for one in holdings(left)):
        return ()
    found: Counter[Window] = Counter()
    fewer = 0
    for size in sorted({segment.nodes for segment in left}):
        needing = [segment for segment in left if segment.nodes >= size]
        span = Window(min(one.start for one in needing), max(one.end for one in needing))
        found[span] += size - fewer
        fewer = size
    return tuple(sorted(Holding(span, nodes) for span, nodes in found.items()))


def held_early(placement: Placement, offer: Offer, now: datetime) -> Placement:
    """``placement`` as it is held, and what it costs, if all that can be held is bought ``now``.

    ``offer`` is the placement's, at its current price, at which the time that is added counts.
    """
    offer = placement.ordered(offer)
    spans = early_spans(placement, offer, now)
    if not spans:
        return placement
    begin, segments = now, []
    for end in sorted({span.window.end for span in spans}):
        nodes = sum(span.nodes for span in spans if span.window.end >= end)
        segments.append(Segment(begin, end, nodes))
        begin = end
    before_usd, after_usd = (
        to_cents(holding_cost_usd(offer, held)) for held in (_left(placement, now), segments)
    )
    added_usd = after_usd - before_usd
    held = replace(
        placement,
        segments=tuple(segments),
        cost_usd=placement.cost_usd + added_usd,
        paid_unused_usd=placement.paid_unused_usd + added_usd,
    )
    return replace(held, billed_ahead=billed_ahead(offer, segments, held.capacity_usd))


def plan_held_early(plan: Plan, offers: Mapping[str, Offer], now: datetime) -> Plan:
    """``plan`` with each placement as ``held_early``; one whose offer is not on sale stays as it is."""
    placed = tuple(
        one if (offer := offers.get(one.offer_id)) is None else held_early(one, offer, now)
        for one in plan.placements
    )
    added_usd = sum(
        (after.cost_usd - before.cost_usd for after, before in zip(placed, plan.placements, strict=True)),
        ZERO,
    )
    return replace(plan, placements=placed, cost_usd=plan.cost_usd + added_usd)


def _left(placement: Placement, now: datetime) -> Sequence[Segment]:
    return [
        replace(segment, start=max(segment.start, now)) for segment in placement.segments if segment.end > now
    ]
