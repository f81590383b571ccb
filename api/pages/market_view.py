"""From offers, price points and feeds to what the market pages show: pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from api.pages.cards import Card
from api.pages.words import counted, price, seller, words
from broker.domain.market import OfferLabel
from broker.domain.polling import BreakerState, Polling
from providers.spec import Feed, TellsPauses

FILTERS: Mapping[str, str] = {"gpu": "GPU", "provider": "Provider", "region": "Region", "tier": "Tier"}
"""What the market can be narrowed by, and how it is called."""
SORTS: Mapping[str, Callable[[OfferLabel], tuple[object, ...]]] = {
    "gpu_hour": lambda o: (o.usd_per_gpu_hour, o.offer_id),
    "node_hour": lambda o: (o.usd_per_node_hour, o.offer_id),
    "gpu": lambda o: (o.gpu, o.usd_per_gpu_hour, o.offer_id),
    "provider": lambda o: (seller(o.provider), o.usd_per_gpu_hour, o.offer_id),
    "place": lambda o: (o.region, o.usd_per_gpu_hour, o.offer_id),
    "tier": lambda o: (o.tier, o.usd_per_gpu_hour, o.offer_id),
    "nodes": lambda o: (-1 if o.nodes is None else o.nodes, o.offer_id),
}
"""Columns that the offers can be sorted by; the first is the usual one."""


@dataclass(frozen=True, slots=True)
class Filter:
    """One choice of the market page: its values with their names, and the one that is chosen."""

    name: str
    label: str
    chosen: str
    choices: tuple[tuple[str, str], ...]


def breakers(
    adapters: Mapping[str, Feed], pollings: Mapping[str, Polling]
) -> dict[str, tuple[BreakerState, str]]:
    """Whether each feed is asked in its turn, and in words what is held back until when: by the timetable, or
    by this process's client, as far as that tells."""
    paused = {name: one.paused_until() for name, one in adapters.items() if isinstance(one, TellsPauses)}
    return {name: _breaker(paused.get(name, {}), polling) for name, polling in pollings.items()}


def _breaker(paused: Mapping[str, datetime], polling: Polling) -> tuple[BreakerState, str]:
    if paused:
        told = (f"{words(name)} paused until {until:%H:%M:%S}" for name, until in sorted(paused.items()))
        return BreakerState.OPEN, ", ".join(told)
    if polling.breaker is BreakerState.CLOSED or polling.next_at is None:
        return polling.breaker, ""
    return polling.breaker, f"next try {polling.next_at:%H:%M:%S}"


def matching_offers(offers: Iterable[OfferLabel], wanted: Mapping[str, str]) -> list[OfferLabel]:
    """Offers with every wished word; an empty wish takes all."""
    return [
        offer
        for offer in offers
        if all(not word or str(getattr(offer, name)) == word for name, word in wanted.items())
    ]


def market_filters(offers: Sequence[OfferLabel], wanted: Mapping[str, str]) -> tuple[Filter, ...]:
    """What the market can be narrowed by, given what else is chosen."""
    return tuple(
        Filter(name, FILTERS[name], chosen, _choices(offers, name, wanted)) for name, chosen in wanted.items()
    )


def _choices(
    offers: Sequence[OfferLabel], name: str, wanted: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    others = {other: word for other, word in wanted.items() if other != name}
    found = {str(getattr(offer, name)) for offer in matching_offers(offers, others)} | {wanted[name]} - {""}
    named = ((word, seller(word) if name == "provider" else word.replace("_", " ")) for word in found)
    return tuple(sorted(named, key=lambda pair: pair[1].lower()))


def most_offered(offers: Iterable[OfferLabel]) -> tuple[str, str] | None:
    """The GPU and tier with the most offers; None without any."""
    counts = Counter((label.gpu, str(label.tier)) for label in offers)
    return min(counts, key=lambda name: (-counts[name], name), default=None)


def market_cards(offers: Sequence[OfferLabel]) -> tuple[Card, ...]:
    """What the chosen offers ask for a GPU-hour."""
    if not offers:
        return ()
    prices = sorted(offer.usd_per_gpu_hour for offer in offers)
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
    cheapest: OfferLabel


def seller_rows(offers: Iterable[OfferLabel]) -> tuple[SellerRow, ...]:
    """Sellers, the one with the cheapest GPU-hour first."""
    by_seller: defaultdict[str, list[OfferLabel]] = defaultdict(list)
    for offer in offers:
        by_seller[offer.provider].append(offer)
    rows = [SellerRow(name, len(mine), min(mine, key=SORTS["gpu_hour"])) for name, mine in by_seller.items()]
    return tuple(sorted(rows, key=lambda row: SORTS["gpu_hour"](row.cheapest)))
