"""From offers, price points and feeds to what the market pages show: pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import median

from api.pages.cards import Card
from api.pages.words import counted, place, price, seller
from broker.domain.offer import Offer

FILTERS: Mapping[str, str] = {"gpu": "GPU", "provider": "Provider", "region": "Region", "tier": "Tier"}
"""What the market can be narrowed by, and how it is called."""
SORTS: Mapping[str, Callable[[Offer], tuple[object, ...]]] = {
    "gpu_hour": lambda o: (gpu_hour_usd(o), o.offer_id),
    "node_hour": lambda o: (o.price_usd_per_node_hour, o.offer_id),
    "gpu": lambda o: (o.sku.gpu, gpu_hour_usd(o), o.offer_id),
    "provider": lambda o: (seller(o.provider), gpu_hour_usd(o), o.offer_id),
    "place": lambda o: (place(o), gpu_hour_usd(o), o.offer_id),
    "tier": lambda o: (str(o.tier), gpu_hour_usd(o), o.offer_id),
    "nodes": lambda o: (o.stock.nodes if o.stock.nodes is not None else -1, o.offer_id),
}
"""Columns that the offers can be sorted by; the first is the usual one."""


@dataclass(frozen=True, slots=True)
class Filter:
    """One choice of the market page: its values with their names, and the one that is chosen."""

    name: str
    label: str
    chosen: str
    choices: tuple[tuple[str, str], ...]


def gpu_hour_usd(offer: Offer) -> Decimal:
    """USD per GPU and hour."""
    return offer.price_usd_per_node_hour / offer.sku.gpus_per_node


def matching_offers(offers: Iterable[Offer], wanted: Mapping[str, str]) -> list[Offer]:
    """Offers with every wished word; an empty wish takes all."""
    return [
        offer
        for offer in offers
        if all(not word or _word(offer, name) == word for name, word in wanted.items())
    ]


def market_filters(offers: Sequence[Offer], wanted: Mapping[str, str]) -> tuple[Filter, ...]:
    """What the market can be narrowed by, given what else is chosen."""
    return tuple(
        Filter(name, FILTERS[name], chosen, _choices(offers, name, wanted)) for name, chosen in wanted.items()
    )


def _choices(offers: Sequence[Offer], name: str, wanted: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    others = {other: word for other, word in wanted.items() if other != name}
    found = {_word(offer, name) for offer in matching_offers(offers, others)} | {wanted[name]} - {""}
    named = ((word, seller(word) if name == "provider" else word.replace("_", " ")) for word in found)
    return tuple(sorted(named, key=lambda pair: pair[1].lower()))


def _word(offer: Offer, name: str) -> str:
    return offer.sku.gpu if name == "gpu" else str(getattr(offer, name))


def market_cards(offers: Sequence[Offer]) -> tuple[Card, ...]:
    """What the chosen offers ask for a GPU-hour."""
    if not offers:
        return ()
    prices = sorted(gpu_hour_usd(offer) for offer in offers)
    sellers = len({offer.provider for offer in offers})
    return (
        Card("Offers that match", f"{len(offers):,}", f"from {counted(sellers, 'provider')}", lead=True),
        Card("Cheapest GPU-hour", price(prices[0])),
        Card("Median GPU-hour", price(median(prices))),
        Card("Dearest GPU-hour", price(prices[-1])),
    )


@dataclass(frozen=True, slots=True)
class SellerRow:
    """One seller of a GPU: how many offers it has, and its cheapest."""

    provider: str
    offers: int
    cheapest: Offer


def seller_rows(offers: Iterable[Offer]) -> tuple[SellerRow, ...]:
    """Sellers, the one with the cheapest GPU-hour first."""
    by_seller: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        by_seller[offer.provider].append(offer)
    rows = [SellerRow(name, len(mine), min(mine, key=SORTS["gpu_hour"])) for name, mine in by_seller.items()]
    return tuple(sorted(rows, key=lambda row: SORTS["gpu_hour"](row.cheapest)))
