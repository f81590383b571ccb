"""The risks of a move, each with its figure. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from broker.domain.market.offer import Offer, Tier
from broker.domain.moving.reoptimization import Risk, RiskKind
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import WorkloadKind

SAFE_SHARE = 0.9
"""A lower success share of launches is reported as a risk."""
PROVEN_ATTEMPTS = 3
OLD_PRICE = timedelta(minutes=5)
"""A price that was not confirmed for longer is reported as a risk."""


def find_risks(
    placements: Sequence[Placement],
    offers: Mapping[str, Offer],
    now: datetime,
    *,
    zones_before: int = 0,
) -> tuple[Risk, ...]:
    """Risks of moving to ``placements``. ``zones_before`` is the number of zones in use now."""
    found = [risk for p in placements if p.offer_id in offers for risk in _of_offer(offers[p.offer_id], now)]
    zones = {(p.provider, p.zone or p.region) for p in placements}
    serving = any(p.kind is WorkloadKind.SERVING for p in placements)
    if serving and len(zones) == 1:
        (zone,) = zones
        before = f", now in {zones_before}" if zones_before > 1 else ""
        found.append(Risk(RiskKind.SINGLE_ZONE, f"all replicas in one zone, {' '.join(zone)}{before}"))
    return tuple(dict.fromkeys(found))


def _of_offer(offer: Offer, now: datetime) -> Iterator[Risk]:
    key = offer.offer_id
    if offer.tier is Tier.SPOT:
        rate = offer.interruptions_per_hour
        said = (
            "at an unknown rate"
            if rate is None
            else f"about once in {1 / rate:.0f} h per node"
            if rate
            else ""
        )
        yield Risk(RiskKind.SPOT, f"{key} may be interrupted {said}".rstrip())
    seller = offer.seller or offer.provider
    learned = offer.learned
    if learned is None or learned.attempts == 0:
        yield Risk(RiskKind.UNPROVEN_SELLER, f"nothing was ever launched at {seller}")
    else:
        if learned.attempts < PROVEN_ATTEMPTS:
            yield Risk(RiskKind.UNPROVEN_SELLER, f"{learned.attempts} launches at {seller} so far")
        if learned.success_share < SAFE_SHARE:
            yield Risk(RiskKind.LAUNCH, f"launches of {key} succeed {learned}")
    age = now - offer.observed_at
    if age > OLD_PRICE:
        yield Risk(
            RiskKind.OLD_PRICE, f"the price of {key} was last seen {age // timedelta(minutes=1)} min ago"
        )
