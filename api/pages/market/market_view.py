"""Pure functions from offers, prices and feeds to what the market pages show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from api.pages.parts.cards import Card
from api.pages.parts.tables import Sorting
from api.pages.parts.words import counted, price, seller, words
from broker.domain.market.offer_pages import (
    OfferCount,
    OfferFilter,
    OfferOrder,
    OfferPrices,
    OfferSlice,
    SellersCheapest,
    choices_of,
    slices_of,
)
from broker.domain.market.polling import BreakerState, Polling
from providers.spec import Feed, TellsPauses

FILTERS: Mapping[str, str] = {"gpu": "GPU", "provider": "Provider", "region": "Region", "tier": "Tier"}
"""What the market can be narrowed by, and how it is called."""
SORTS: Mapping[str, tuple[str | None, OfferOrder]] = {
    "gpu_hour": (None, OfferOrder.GPU_HOUR),
    "node_hour": (None, OfferOrder.NODE_HOUR),
    "gpu": ("gpu", OfferOrder.GPU_HOUR),
    "provider": ("provider", OfferOrder.GPU_HOUR),
    "place": ("region", OfferOrder.GPU_HOUR),
    "tier": ("tier", OfferOrder.GPU_HOUR),
    "nodes": (None, OfferOrder.NODES),
}
"""Columns that the offers can be sorted by: the word that they are grouped by, if any, and the order within;
the first is the usual one."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of the market page: its values with their names, and the chosen one."""

    name: str
    label: str
    chosen: str
    choices: tuple[tuple[str, str], ...]


def breakers(
    adapters: Mapping[str, Feed], pollings: Mapping[str, Polling]
) -> dict[str, tuple[BreakerState, str]]:
    """Whether each feed is polled as scheduled, and in words what is suspended until when: by the scheduler,
    or by the circuit breaker of this process's client."""
    paused = {name: one.paused_until() for name, one in adapters.items() if isinstance(one, TellsPauses)}
    return {name: _breaker(paused.get(name, {}), polling) for name, polling in pollings.items()}


def _breaker(paused: Mapping[str, datetime], polling: Polling) -> tuple[BreakerState, str]:
    if paused:
        told = (f"{words(name)} paused until {until:%H:%M:%S}" for name, until in sorted(paused.items()))
        return BreakerState.OPEN, ", ".join(told)
    if polling.breaker is BreakerState.CLOSED or polling.next_at is None:
        return polling.breaker, ""
    return polling.breaker, f"next try {polling.next_at:%H:%M:%S}"


def offer_filter(words: Mapping[str, str]) -> OfferFilter:
    """The offer filter of the given words; an empty word matches all."""
    return OfferFilter(**{name: word or None for name, word in words.items()})


def shown_slices(
    counts: Sequence[OfferCount], wanted: OfferFilter, sorting: Sorting, first: int, limit: int
) -> tuple[tuple[OfferSlice, ...], OfferOrder]:
    """The slices of the market that a page shows, in order."""
    group, order = SORTS[sorting.by]
    if group is None:
        return (OfferSlice(wanted, first, limit),), order
    rank = seller if group == "provider" else str
    return slices_of(counts, wanted, group, rank, first, limit, descending=sorting.descending), order


def market_filters(counts: Sequence[OfferCount], wanted: Mapping[str, str]) -> tuple[Filter, ...]:
    """The filters of the market, given what else is chosen."""
    return tuple(
        Filter(name, FILTERS[name], chosen, _choices(counts, name, wanted)) for name, chosen in wanted.items()
    )


def _choices(
    counts: Sequence[OfferCount], name: str, wanted: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    found = choices_of(counts, offer_filter(wanted), name) | {wanted[name]} - {""}
    named = ((word, seller(word) if name == "provider" else word.replace("_", " ")) for word in found)
    return tuple(sorted(named, key=lambda pair: pair[1].lower()))


def market_cards(counts: Sequence[OfferCount], prices: OfferPrices | None) -> tuple[Card, ...]:
    """The prices of the chosen offers per GPU-hour."""
    if prices is None:
        return ()
    offers, sellers = sum(kind.offers for kind in counts), len({kind.provider for kind in counts})
    return (
        Card("Offers that match", f"{offers:,}", f"from {counted(sellers, 'provider')}", lead=True),
        Card("Cheapest GPU-hour", price(prices.least_usd)),
        Card("Median GPU-hour", price(prices.median_usd)),
        Card("Dearest GPU-hour", price(prices.most_usd)),
    )


@dataclass(frozen=True, slots=True)
class SellerRow:
    """One seller of a GPU: how many offers it has, and its cheapest."""

    provider: str
    offers: int
    cheapest: SellersCheapest


def seller_rows(counts: Iterable[OfferCount], cheapest: Iterable[SellersCheapest]) -> tuple[SellerRow, ...]:
    """Sellers, the one with the cheapest GPU-hour first, as in ``cheapest``."""
    sizes: Counter[str] = Counter()
    for kind in counts:
        sizes[kind.provider] += kind.offers
    return tuple(SellerRow(one.provider, sizes[one.provider], one) for one in cheapest)
