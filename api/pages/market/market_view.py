"""Pure functions from offers, prices and feeds to what the market pages show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from statistics import median

from api.figures import plural
from api.pages.parts.table_links import Sorting
from api.pages.parts.words import price, seller, words
from api.sections import Card
from broker.catalogue import load_countries, load_gpus
from broker.domain.market.cheapest import CheapestOfGpu
from broker.domain.market.offer import Offer
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
    """A filter of the market page: its values with their names, in groups, and the chosen one.

    A group without a name is shown as it is.
    """

    name: str
    label: str
    chosen: str
    groups: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


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


def by_power(rows: Iterable[CheapestOfGpu]) -> tuple[CheapestOfGpu, ...]:
    """GPUs with the most dense FLOP/s in 16 bits first; those that the catalogue lacks come last."""
    gpus = load_gpus()

    def power(row: CheapestOfGpu) -> tuple[float, str]:
        spec = gpus.get(row.gpu)
        return -((spec.bf16_tflops or spec.fp16_tflops or 0.0) if spec else -1.0), row.gpu

    return tuple(sorted(rows, key=power))


def sorted_offers(offers: Iterable[Offer], sorting: Sorting) -> tuple[Offer, ...]:
    """``offers`` as the store sorts a page of them."""
    group, order = SORTS[sorting.by]
    prices: Mapping[OfferOrder, Callable[[Offer], Decimal]] = {
        OfferOrder.GPU_HOUR: gpu_hour,
        OfferOrder.NODE_HOUR: lambda one: one.price_usd_per_node_hour,
        OfferOrder.NODES: lambda one: Decimal(-1 if one.stock.nodes is None else one.stock.nodes),
    }
    ranks: Mapping[str, Callable[[Offer], str]] = {
        "gpu": lambda one: one.sku.gpu,
        "provider": lambda one: seller(one.provider),
        "region": lambda one: one.region,
        "tier": lambda one: str(one.tier),
    }
    found = sorted(offers, key=lambda one: (prices[order](one), one.offer_id))
    if sorting.descending and group is None:
        found.reverse()
    if group is not None:
        found.sort(key=ranks[group], reverse=sorting.descending)
    return tuple(found)


def gpu_hour(offer: Offer) -> Decimal:
    """USD per GPU-hour."""
    return offer.price_usd_per_node_hour / offer.sku.gpus_per_node


def price_range(offers: Iterable[Offer]) -> OfferPrices | None:
    """Minimum, median and maximum price per GPU-hour; None without offers."""
    prices = sorted(map(gpu_hour, offers))
    return OfferPrices(prices[0], median(prices), prices[-1]) if prices else None


def counts_of(offers: Iterable[Offer]) -> tuple[OfferCount, ...]:
    """How many of ``offers`` there are of each kind."""
    kinds = Counter((one.provider, one.sku.gpu, one.region, str(one.tier)) for one in offers)
    return tuple(OfferCount(*kind, count) for kind, count in kinds.items())


def shown_slices(
    counts: Sequence[OfferCount], wanted: OfferFilter, sorting: Sorting, first: int, limit: int
) -> tuple[tuple[OfferSlice, ...], OfferOrder]:
    """The slices of the market that a page shows, in order."""
    group, order = SORTS[sorting.by]
    if group is None:
        return (OfferSlice(wanted, first, limit),), order
    rank = seller if group == "provider" else str
    return slices_of(counts, wanted, group, rank, first, limit, descending=sorting.descending), order


def market_filters(
    counts: Sequence[OfferCount], asked: Mapping[str, str], wanted: OfferFilter, places: Mapping[str, str]
) -> tuple[Filter, ...]:
    """The filters of the market with the words ``asked`` in them, given what else is ``wanted``.

    ``places``: the country of each region. GPUs are grouped by family, regions by country.
    """
    countries = load_countries()
    known = {name: choices_of(counts, wanted, name) for name in FILTERS}
    of_country = {code.strip().upper() for code in asked["country"].split(",") if code.strip()}
    regions = {name for name in known["region"] if not of_country or places.get(name) in of_country}
    sold_in = {places[name] for name in known["region"] if places.get(name)}
    named = {code: countries.get(code, code) for code in sold_in}
    groups: Mapping[str, Callable[[set[str]], Iterable[tuple[str, str, str]]]] = {
        "gpu": _by_family,
        "provider": lambda found: (("", word, seller(word)) for word in found),
        "country": lambda found: (("", code, named.get(code, code)) for code in found),
        "region": lambda found: (
            (countries.get(places.get(word, ""), "Country not stated"), word, word) for word in found
        ),
        "tier": lambda found: (("", word, words(word)) for word in found),
    }
    offered = {**known, "region": regions, "country": sold_in}
    return tuple(
        Filter(name, label, asked[name], _grouped(groups[name](offered[name]), asked[name]))
        for name, label in {**FILTERS, "country": "Country"}.items()
    )


def _by_family(names: set[str]) -> Iterable[tuple[str, str, str]]:
    """The GPUs of each family; where it has several, one more choice for all of them."""
    sizes = Counter(name.partition("-")[0] for name in names)
    yield from ((family, family, f"Any {family}") for family, size in sizes.items() if size > 1)
    yield from ((name.partition("-")[0], name, name) for name in names)


def _grouped(
    choices: Iterable[tuple[str, str, str]], chosen: str
) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Groups of choices by name. What is chosen is among them in any case."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for group, word, name in choices:
        groups.setdefault(group, []).append((word, name))
    if chosen and all(word != chosen for group in groups.values() for word, _ in group):
        groups.setdefault("", []).append((chosen, chosen))
    return tuple(
        (group, tuple(sorted(groups[group], key=lambda pair: (pair[0] != group, pair[1].lower()))))
        for group in sorted(groups)
    )


def market_cards(counts: Sequence[OfferCount], prices: OfferPrices | None) -> tuple[Card, ...]:
    """The prices of the chosen offers per GPU-hour."""
    if prices is None:
        return ()
    offers, sellers = sum(kind.offers for kind in counts), len({kind.provider for kind in counts})
    return (
        Card("Offers that match", f"{offers:,}", f"from {plural(sellers, 'provider')}", lead=True),
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
