"""A first answer after prices moved, without new estimates: an old plan at new prices, with a scaled
bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from operator import attrgetter

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, Serving, Workload

PRICED = frozenset({"price_usd_per_node_hour", "upfront_usd", "native", "observed_at"})
_all_but_price = attrgetter(*(field.name for field in fields(Offer) if field.name not in PRICED))


@dataclass(frozen=True, slots=True)
class Past:
    """The request and the market for which a plan's bound was proven."""

    request: PlanRequest
    offers: Sequence[Offer]


def recosted_usd(plan: Plan, offers: Iterable[Offer]) -> Decimal | None:
    """Objective of a plan at other prices; None if one of its offers is gone, or if it counts expected
    costs.
    """
    if plan.recourse_usd or plan.relaunch_usd:
        return None
    by_id = {offer.offer_id: offer for offer in offers}
    total = plan.penalty_usd + plan.delay_usd
    for placement in plan.placements:
        offer = placement.offer_among(by_id)
        if offer is None:
            return None
        total += to_cents(holding_cost_usd(offer, placement.segments)) + placement.transfer_usd
    return total


def carried_bound_usd(
    plan: Plan, past: Past, request: PlanRequest, offers: Sequence[Offer], as_of: datetime
) -> Decimal:
    """A lower bound at other prices, derived from the old bound; 0 if nothing can be derived.

    Let r ≤ 1 be the smallest ratio of a new price to its old price. If nothing else changed, every plan costs
    at least r times what it cost, and penalties and delay prices have not fallen, so r × (old bound) is a
    lower bound. If a delay is priced at the service's average cost, that price changes too and nothing can be
    derived.
    """
    if plan.bound_usd is None or request != past.request or as_of != plan.as_of:
        return ZERO
    if any(_waits_at_its_average(workload) for workload in request.workloads):
        return ZERO
    before = {offer.offer_id: offer for offer in past.offers}
    ratio = Decimal(1)
    for offer in offers:
        old = before.get(offer.offer_id)
        if old is None or not same_but_price(old, offer):
            return ZERO
        ratio = min(ratio, _ratio(old.price_usd_per_node_hour, offer.price_usd_per_node_hour))
        ratio = min(ratio, _ratio(old.upfront_usd or ZERO, offer.upfront_usd or ZERO))
    # Every placement is rounded to cents: a cent for each of 32 placements of a workload bounds the error.
    rounding = Decimal("0.32") * len(request.workloads)
    return max(ZERO, to_cents(plan.bound_usd * ratio - rounding)) if ratio < 1 else plan.bound_usd


def _waits_at_its_average(workload: Workload) -> bool:
    if not isinstance(workload, Serving) or workload.starts_after is None:
        return False
    return workload.delay_usd_per_hour is None


def _ratio(old_usd: Decimal, new_usd: Decimal) -> Decimal:
    return Decimal(1) if new_usd >= old_usd else new_usd / old_usd


def same_but_price(old: Offer, new: Offer) -> bool:
    """Whether two observations of an offer differ only in price and in when they were made."""
    return old is new or _all_but_price(old) == _all_but_price(new)
