"""Which of the current offers are asked for, and in what order: pure.

An order is a place among prices, or a word that offers are grouped by, and within each word the price. A page
of groups is one slice of each group that it touches, so that a store needs no order but those of its columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from enum import StrEnum
from operator import attrgetter

WHOLE_DIGITS = 12
DECIMALS = 60


@dataclass(frozen=True, slots=True)
class OfferFilter:
    """Which offers to show, by exact words; None: any."""

    provider: str | None = None
    gpu: str | None = None
    region: str | None = None
    tier: str | None = None

    @property
    def words(self) -> tuple[tuple[str, str], ...]:
        """The fields that are told, with their words."""
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
    """A place in the order of prices: USD per GPU-hour exactly, then the id."""

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
    """What offers are put in order by; where it is the same, their ids decide."""

    GPU_HOUR = "gpu_hour"
    NODE_HOUR = "node_hour"
    NODES = "nodes"


@dataclass(frozen=True, slots=True)
class OfferSlice:
    """Offers number ``first`` (from 0) to ``first + limit`` of those that ``wanted`` takes."""

    wanted: OfferFilter
    first: int
    limit: int


def price_rank(usd_per_gpu_hour: Decimal) -> str:
    """Words whose order, character by character, is the order of prices of zero and more, exactly.

    Prices of ours have fewer decimals than these words; a number below zero comes before all, and one that no
    price reaches after all.
    """
    if usd_per_gpu_hour < 0:
        return ""
    if usd_per_gpu_hour >= 10**WHOLE_DIGITS:
        return ":"  # what follows the digits
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
    """The slices that make up a page of offers in groups by their field ``group``, ordered by ``rank``."""
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
    """The words of the field ``name`` of all offers that fit what else is ``wanted``."""
    others = replace(wanted, **{name: None})
    return set(map(attrgetter(name), matching(counts, others)))


def matching(counts: Iterable[OfferCount], wanted: OfferFilter) -> tuple[OfferCount, ...]:
    """The counts of offers that are ``wanted``."""
    found = tuple(counts)
    for name, word in wanted.words:
        said = map(attrgetter(name), found)
        found = tuple(kind for kind, one in zip(found, said, strict=True) if one == word)
    return found


def most_offered(counts: Iterable[OfferCount]) -> tuple[str, str] | None:
    """The GPU and tier with the most offers; None without any."""
    sizes: Counter[tuple[str, str]] = Counter()
    for kind in counts:
        sizes[kind.gpu, kind.tier] += kind.offers
    return min(sizes, key=lambda name: (-sizes[name], name), default=None)
