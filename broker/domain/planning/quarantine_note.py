"""A note on cheaper prices that a re-optimization ignores because they are in quarantine. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from broker.domain.basics.money import price_words
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import Quarantined
from broker.domain.planning.plan import Plan


def quarantine_note(plan: Plan, offers: Iterable[Offer], doubted: Iterable[Quarantined]) -> str:
    """A sentence about the lowest price in quarantine that is below what ``plan`` pays for such a GPU.

    It is empty if there is none. ``offers`` are those on sale, at current prices.
    """
    on_sale = tuple(offers)
    by_id = {offer.offer_id: offer for offer in on_sale}
    paid: dict[tuple[str, str], Decimal] = {}
    for placement in plan.placements:
        offer = by_id.get(placement.offer_id)
        if offer is not None:
            key = _kind(offer)
            paid[key] = min(paid.get(key, _per_gpu(offer)), _per_gpu(offer))
    cheaper = [
        entry.offer
        for entry in doubted
        if entry.released_at is None
        and _kind(entry.offer) in paid
        and _per_gpu(entry.offer) < paid[_kind(entry.offer)]
    ]
    if not cheaper:
        return ""
    least = min(cheaper, key=lambda offer: (_per_gpu(offer), offer.offer_id))
    others = [_per_gpu(o) for o in on_sale if _kind(o) == _kind(least) and o.provider != least.provider]
    asked = f" (others ask {price_words(min(others))} or more)" if others else ""
    price = price_words(_per_gpu(least))
    return f"the price at {least.provider}, {price} per GPU-hour, is in quarantine and was ignored{asked}"


def _kind(offer: Offer) -> tuple[str, str]:
    return offer.sku.gpu, str(offer.tier)


def _per_gpu(offer: Offer) -> Decimal:
    return offer.price_usd_per_node_hour / offer.sku.gpus_per_node
