"""Filtering, sorting and paging of the current offers. Pure.

Offers are sorted by price, or grouped by the value of a field and sorted by price within each group. A page
of a grouped list consists of one slice per group, so the database only needs to sort by its own columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from enum import StrEnum
from operator import attrgetter

from broker.domain.market.offer import Offer

WHOLE_DIGITS = 12
DECIMALS = 60


Names = str | tuple[str, ...]
"""One value, or several of which an offer has one."""


@dataclass(frozen=True, slots=True)
class OfferFilter:
    """A filter of offers by exact values; None matches any value."""

    provider: Names | None = None
    gpu: Names | None = None
    region: Names | None = None
    tier: Names | None = None

    @property
    def words(self) -> tuple[tuple[str, Names], ...]:
        """The fields that are filtered, and their values."""
        told = ((field.name, getattr(self, field.name)) for field in fields(self))
        return tuple((name, word) for name, word in told if word is not None)


@dataclass(frozen=True, slots=True)
class OfferCount:
    """How many offers are on sale of one provider, GPU, region and tier."""

    provider: str
    gpu: str
    region: str
    tier: str
    offers: int


@dataclass(frozen=True, slots=True)
class OfferPlace:
    """A position in the list of offers by price: exact USD per GPU-hour, then the offer id."""

    usd_per_gpu_hour: Decimal
    offer_id: str


@dataclass(frozen=True, slots=True)
class OfferPrices:
    """Prices per GPU-hour of some offers, in USD."""

    least_usd: Decimal
    median_usd: Decimal
    most_usd: Decimal


@dataclass(frozen=True, slots=True)
class SellersCheapest:
    """The cheapest offer of one seller, and what it asks per GPU-hour, in USD."""

    provider: str
    offer_id: str
    usd_per_gpu_hour: Decimal


class OfferOrder(StrEnum):
    """The sort key of a list of offers; offer ids break ties."""

    GPU_HOUR = "gpu_hour"
    NODE_HOUR = "node_hour"
    NODES = "nodes"


@dataclass(frozen=True, slots=True)
class OfferSlice:
    """Of the offers that match ``wanted``: at most ``limit`` of them, from index ``first`` on."""

    wanted: OfferFilter
    first: int
    limit: int


def price_rank(usd_per_gpu_hour: Decimal) -> str:
    """A text form of a price that sorts like the price, exactly.

    It has more decimals than any of our prices. A negative number sorts before all prices, and a number above
    every possible price after them.
    """
    if usd_per_gpu_hour < 0:
        return ""
    if usd_per_gpu_hour >= 10**WHOLE_DIGITS:
        return ":"  # the character after "9"
    words = f"{usd_per_gpu_hour:0{WHOLE_DIGITS + 1 + DECIMALS}.{DECIMALS}f}"
    return words.rstrip("0").rstrip(".")


def slices_of(
    counts: Iterable[OfferCount],
    wanted: OfferFilter,
    group: str,
    rank: Callable[[str], object],
    first: int,
    limit: int,
    *,
    descending: bool,
) -> tuple[OfferSlice, ...]:
    """The slices of one page of offers, grouped by the field ``group``, with groups sorted by ``rank``."""
    sizes: Counter[str] = Counter()
    for kind in matching(counts, wanted):
        sizes[getattr(kind, group)] += kind.offers
    found: list[OfferSlice] = []
    for word in sorted(sizes, key=lambda word: (rank(word), word), reverse=descending):
        if first < sizes[word] and limit > 0:
            taken = min(limit, sizes[word] - first)
            found.append(OfferSlice(replace(wanted, **{group: word}), first, taken))
            limit -= taken
        first = max(0, first - sizes[word])
    return tuple(found)


def choices_of(counts: Sequence[OfferCount], wanted: OfferFilter, name: str) -> set[str]:
    """The values of the field ``name`` among offers that match the other fields of ``wanted``."""
    others = replace(wanted, **{name: None})
    return set(map(attrgetter(name), matching(counts, others)))


def matching(counts: Iterable[OfferCount], wanted: OfferFilter) -> tuple[OfferCount, ...]:
    """The counts of offers that match ``wanted``."""
    found = tuple(counts)
    for name, word in wanted.words:
        said = map(attrgetter(name), found)
        names = (word,) if isinstance(word, str) else word
        found = tuple(kind for kind, one in zip(found, said, strict=True) if one in names)
    return found


def admits(wanted: OfferFilter, offer: Offer) -> bool:
    """Whether ``offer`` matches ``wanted``."""
    kind = OfferCount(offer.provider, offer.sku.gpu, offer.region, str(offer.tier), 1)
    return bool(matching((kind,), wanted))


def most_offered(counts: Iterable[OfferCount]) -> tuple[str, str] | None:
    """The GPU and tier with the most offers; None without any."""
    sizes: Counter[tuple[str, str]] = Counter()
    for kind in counts:
        sizes[kind.gpu, kind.tier] += kind.offers
    return min(sizes, key=lambda name: (-sizes[name], name), default=None)
