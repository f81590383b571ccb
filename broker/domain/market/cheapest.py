"""The cheapest ways to have each GPU now, over all sellers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.domain.market.offer import Offer, Tier

LONG_HOURS = 30 * 24
LONG = timedelta(hours=LONG_HOURS)


@dataclass(frozen=True, slots=True)
class CheapestOfGpu:
    """The cheapest offers of one GPU per GPU-hour; None where there is none.

    ``offers`` is the number of all of them. ``long`` can be held for 30 days from now without interruptions,
    at the same price an hour.
    """

    gpu: str
    offers: int
    on_demand: Offer | None
    spot: Offer | None
    window: Offer | None
    long: Offer | None


def cheapest_by_gpu(offers: Iterable[Offer], now: datetime) -> tuple[CheapestOfGpu, ...]:
    """One entry a GPU, by name. ``offers`` are given cheapest per GPU-hour first."""
    by_gpu: dict[str, list[Offer]] = {}
    for offer in offers:
        by_gpu.setdefault(offer.sku.gpu, []).append(offer)
    return tuple(_cheapest_of(gpu, by_gpu[gpu], now) for gpu in sorted(by_gpu))


def _cheapest_of(gpu: str, offers: list[Offer], now: datetime) -> CheapestOfGpu:
    first: Mapping[Tier, Offer] = {offer.tier: offer for offer in reversed(offers)}
    return CheapestOfGpu(
        gpu=gpu,
        offers=len(offers),
        on_demand=first.get(Tier.ON_DEMAND),
        spot=first.get(Tier.SPOT),
        window=first.get(Tier.WINDOW),
        long=next((offer for offer in offers if _lasts(offer, now)), None),
    )


def _lasts(offer: Offer, now: datetime) -> bool:
    """Whether the offer can be held for 30 days from now, and need not be held longer."""
    if offer.tier is Tier.SPOT or offer.min_hours > LONG_HOURS:
        return False
    if offer.available_until is not None and offer.available_until < now + LONG:
        return False
    terms = offer.window
    if terms is None:
        return True
    if offer.is_sold_whole or (terms.durations_hours is not None and LONG_HOURS not in terms.durations_hours):
        return False
    lead = timedelta(hours=terms.lead_hours)
    return any(one.end - max(one.start, now + lead) >= LONG for one in terms.segments)
