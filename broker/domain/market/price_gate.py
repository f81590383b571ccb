"""The price gate: what must not reach a plan, and what waits for somebody's word.

No price at all is refused for good. A price that may be true and looks wrong is held in quarantine, visible,
until it changes, is confirmed by time, or somebody releases it:

- **floor**: less per GPU-hour than the electricity that the GPU draws;
- **jump**: far from what the same offer cost before;
- **outlier**: far from what other sellers ask for the same silicon in the same tier;
- **age**: the seller's own word on it is too old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from statistics import median

from broker.domain.basics.money import ZERO, price_words
from broker.domain.market.offer import Offer, OfferBatch, RejectedRow, Tier


class Doubt(StrEnum):
    """Why a price is not believed."""

    FLOOR = "floor"
    JUMP = "jump"
    OUTLIER = "outlier"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An offer that waits: what is doubted, since when, and who released it at this price.

    ``accepted_usd_per_node_hour``: its last believed price, None for an offer that never had one.
    """

    offer: Offer
    doubt: Doubt
    reason: str
    since: datetime
    accepted_usd_per_node_hour: Decimal | None = None
    released_at: datetime | None = None
    released_by: str | None = None

    @property
    def price(self) -> Decimal:
        """The doubted price, USD per node-hour."""
        return self.offer.price_usd_per_node_hour

    def is_of(self, offer: Offer) -> bool:
        """Whether ``offer`` is the same at the same price."""
        return self.offer.offer_id == offer.offer_id and self.price == offer.price_usd_per_node_hour


@dataclass(frozen=True, slots=True)
class GateRules:
    """Limits of belief.

    ``floors_usd_per_gpu_hour`` by GPU. A price may fall to ``least_of_before`` and rise to ``most_of_before``
    times the last accepted one; a jump that stands for ``believed_after`` is believed. It may be
    ``least_of_peers`` times the cheapest to ``most_of_peers`` times the dearest of at least ``peers_least``
    other sellers, each at its median: sellers of old silicon differ twentyfold among themselves.
    """

    floors_usd_per_gpu_hour: Mapping[str, Decimal] = field(default_factory=dict)
    least_of_before: Decimal = ZERO
    most_of_before: Decimal = Decimal("Infinity")
    believed_after: timedelta = timedelta(hours=24)
    least_of_peers: Decimal = ZERO
    most_of_peers: Decimal = Decimal("Infinity")
    peers_least: int = 3
    most_age: timedelta = timedelta(days=36500)


@dataclass(frozen=True, slots=True)
class PeerPrice:
    """What one seller asks per GPU-hour, USD."""

    provider: str
    gpu: str
    tier: Tier
    usd_per_gpu_hour: Decimal


class Peers:
    """Median price per GPU-hour by silicon and tier of every seller."""

    def __init__(self, prices: Iterable[PeerPrice]) -> None:
        found: dict[tuple[str, Tier], dict[str, list[Decimal]]] = defaultdict(lambda: defaultdict(list))
        for price in prices:
            found[price.gpu, price.tier][price.provider].append(price.usd_per_gpu_hour)
        self._medians = {
            kind: {seller: median(asked) for seller, asked in by_seller.items()}
            for kind, by_seller in found.items()
        }
        self._found: dict[tuple[str, str, Tier], tuple[Decimal, ...]] = {}

    def asked_elsewhere(self, offer: Offer, least_sellers: int) -> tuple[Decimal, Decimal] | None:
        """Least and most of the other sellers' medians; None with fewer than ``least_sellers`` of them."""
        others = self._others(offer.provider, offer.sku.gpu, offer.tier)
        return (others[0], others[-1]) if len(others) >= max(1, least_sellers) else None

    def _others(self, provider: str, gpu: str, tier: Tier) -> tuple[Decimal, ...]:
        """Medians of the other sellers, least first; sorted once for all offers of a seller."""
        key = (provider, gpu, tier)
        if key not in self._found:
            asked = self._medians.get((gpu, tier), {})
            self._found[key] = tuple(sorted(usd for seller, usd in asked.items() if seller != provider))
        return self._found[key]


@dataclass(frozen=True, slots=True)
class Before:
    """What is known before a round: last accepted prices by offer id, what waits, what others ask."""

    prices_usd_per_node_hour: Mapping[str, Decimal] = field(default_factory=dict)
    quarantine: Mapping[str, Quarantined] = field(default_factory=dict)
    peers: Peers = field(default_factory=lambda: Peers(()))


@dataclass(frozen=True, slots=True)
class Gated:
    """What passed (with every refused row), and what waits or was released."""

    batch: OfferBatch
    quarantine: tuple[Quarantined, ...] = ()


def gate_batch(batch: OfferBatch, rules: GateRules, before: Before, now: datetime) -> Gated:
    """Sorts a round into what may be used, what is refused by name, and what waits; pure.

    Ids that come twice and prices not above zero are refused. An entry that was released stays known at its
    price, so that it is not doubted again for the same figure.
    """
    usable: dict[str, Offer] = {}
    waiting: dict[str, Quarantined] = {}
    rejected = list(batch.rejected)
    taken: set[str] = set()
    for offer in batch.offers:
        reason = _refused(offer, taken)
        if reason is not None:
            rejected.append(RejectedRow(offer.offer_id, reason))
            continue
        taken.add(offer.offer_id)
        entry = _examined(offer, rules, before, now)
        if entry is None or entry.released_at is not None:
            usable[offer.offer_id] = offer
        if entry is not None:
            waiting[offer.offer_id] = entry
    return Gated(OfferBatch(tuple(usable.values()), tuple(rejected)), tuple(waiting.values()))


def quarantine_news(
    before: Mapping[str, Quarantined], after: Iterable[Quarantined]
) -> tuple[tuple[Quarantined, ...], tuple[str, ...]]:
    """Entries that are new or say something else than ``before``, and ids of those that are no more; pure.

    An offer that was only seen again keeps the time at which it was first seen like that.
    """
    now = {entry.offer.offer_id: entry for entry in after}
    changed = tuple(
        entry for key, entry in now.items() if key not in before or not _says_the_same(before[key], entry)
    )
    return changed, tuple(key for key in before if key not in now)


def _says_the_same(one: Quarantined, other: Quarantined) -> bool:
    return replace(one, offer=replace(one.offer, observed_at=other.offer.observed_at)) == other


def _refused(offer: Offer, taken: Container[str]) -> str | None:
    price = offer.price_usd_per_node_hour
    if not price.is_finite() or price <= 0:
        return f"price {price} USD per node-hour is not above zero"
    if offer.offer_id in taken:
        return "the same offer came twice in one answer"
    return None


def _examined(offer: Offer, rules: GateRules, before: Before, now: datetime) -> Quarantined | None:
    """The entry of an offer that is doubted, or that was and is released; None for one that is believed."""
    earlier = before.quarantine.get(offer.offer_id)
    known = earlier if earlier is not None and earlier.is_of(offer) else None
    if known is not None and known.released_at is not None:
        return replace(known, offer=offer)
    if known is not None and known.doubt is Doubt.JUMP and _lasting_doubt(offer, rules, before, now) is None:
        believed = now - known.since >= rules.believed_after
        return None if believed else replace(known, offer=offer)
    accepted = _accepted(offer, before, earlier)
    found = _lasting_doubt(offer, rules, before, now) or _jump(offer, rules, accepted)
    if found is None:
        return None
    since = known.since if known is not None and known.doubt is found[0] else now
    return Quarantined(offer, *found, since, accepted)


def _accepted(offer: Offer, before: Before, earlier: Quarantined | None) -> Decimal | None:
    """The last believed price: while it waits, an offer has none in the market."""
    current = before.prices_usd_per_node_hour.get(offer.offer_id)
    return current if current is not None or earlier is None else earlier.accepted_usd_per_node_hour


def _lasting_doubt(offer: Offer, rules: GateRules, before: Before, now: datetime) -> tuple[Doubt, str] | None:
    """A doubt that time does not lift: floor, outlier, age."""
    per_gpu = offer.price_usd_per_node_hour / offer.sku.gpus_per_node
    floor = rules.floors_usd_per_gpu_hour.get(offer.sku.gpu, ZERO)
    if per_gpu < floor:
        drawn = price_words(floor)
        return (
            Doubt.FLOOR,
            f"{price_words(per_gpu)} per GPU-hour is less than its electricity ({drawn})",
        )
    elsewhere = before.peers.asked_elsewhere(offer, rules.peers_least)
    if elsewhere is not None:
        least, most = elsewhere
        if not rules.least_of_peers * least <= per_gpu <= rules.most_of_peers * most:
            others = f"{price_words(least)} to {price_words(most)}"
            return Doubt.OUTLIER, f"{price_words(per_gpu)} per GPU-hour; other sellers ask {others}"
    if now - offer.observed_at > rules.most_age:
        return Doubt.AGE, f"seen {offer.observed_at:%Y-%m-%d}, more than {rules.most_age.days} days ago"
    return None


def _jump(offer: Offer, rules: GateRules, was: Decimal | None) -> tuple[Doubt, str] | None:
    if was is None or was <= 0:
        return None
    price = offer.price_usd_per_node_hour
    share = price / was
    if rules.least_of_before <= share <= rules.most_of_before:
        return None
    return (
        Doubt.JUMP,
        f"{price_words(price)} per node-hour is {share:.2f} times the {price_words(was)} of before",
    )
