"""The price gate: it keeps implausible prices out of plans.

A price that is not above zero is rejected. A price that looks wrong but may be true goes into quarantine. It
stays visible there until it changes, an administrator releases it or, after a jump, it lasts long enough.
Reasons for quarantine:

- **floor**: less per GPU-hour than the cost of the GPU's electricity;
- **jump**: far from the last accepted price of the same offer;
- **outlier**: far from what other providers ask for the same GPU in the same tier;
- **age**: the provider's own observation is too old.
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
    """The reason why a price is in quarantine."""

    FLOOR = "floor"
    JUMP = "jump"
    OUTLIER = "outlier"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An offer in quarantine: the reason, since when, and who released it at this price.

    ``accepted_usd_per_node_hour`` is its last accepted price; None if it never had one.
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
        """The price in quarantine, in USD per node-hour."""
        return self.offer.price_usd_per_node_hour

    def is_of(self, offer: Offer) -> bool:
        """Whether ``offer`` is the same offer at the same price."""
        return self.offer.offer_id == offer.offer_id and self.price == offer.price_usd_per_node_hour


@dataclass(frozen=True, slots=True)
class GateRules:
    """Limits of plausible prices.

    ``floors_usd_per_gpu_hour`` are by GPU. A price may fall to ``least_of_before`` times and rise to
    ``most_of_before`` times the last accepted one; a jump that lasts for ``believed_after`` is accepted. A
    price must be between ``least_of_peers`` times the cheapest and ``most_of_peers`` times the most expensive
    other provider, each at its median, if there are at least ``peers_least`` others. The range is wide, since
    prices of old GPUs differ twentyfold between providers. ``most_age`` limits the age of an observation.
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
    """One provider's price of a GPU in a tier, in USD per GPU-hour."""

    provider: str
    gpu: str
    tier: Tier
    usd_per_gpu_hour: Decimal


class Peers:
    """Median price per GPU-hour of every provider, by GPU and tier."""

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
        """Lowest and highest median of other providers; None if there are fewer than ``least_sellers``."""
        others = self._others(offer.provider, offer.sku.gpu, offer.tier)
        return (others[0], others[-1]) if len(others) >= max(1, least_sellers) else None

    def _others(self, provider: str, gpu: str, tier: Tier) -> tuple[Decimal, ...]:
        """Medians of the other providers in ascending order, cached for all offers of a provider."""
        key = (provider, gpu, tier)
        if key not in self._found:
            asked = self._medians.get((gpu, tier), {})
            self._found[key] = tuple(sorted(usd for seller, usd in asked.items() if seller != provider))
        return self._found[key]


@dataclass(frozen=True, slots=True)
class Before:
    """The state before a round: accepted prices and quarantine by offer id, and prices of all providers."""

    prices_usd_per_node_hour: Mapping[str, Decimal] = field(default_factory=dict)
    quarantine: Mapping[str, Quarantined] = field(default_factory=dict)
    peers: Peers = field(default_factory=lambda: Peers(()))


@dataclass(frozen=True, slots=True)
class Gated:
    """The result of the gate: accepted offers with all rejected rows, and the quarantine after the round."""

    batch: OfferBatch
    quarantine: tuple[Quarantined, ...] = ()


def gate_batch(batch: OfferBatch, rules: GateRules, before: Before, now: datetime) -> Gated:
    """Sorts a round into offers to use, rejected rows, and offers in quarantine. Pure.

    Duplicate ids and prices that are not above zero are rejected. A released entry stays in the quarantine
    list, so that the same price is not questioned again.
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
    """Entries that are new or differ from ``before``, and the ids of entries that ended. Pure.

    An entry that only has a newer ``observed_at`` does not count as changed.
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
        return f"the price of {price} USD per node-hour is not above zero"
    if offer.offer_id in taken:
        return "the answer contains this offer twice"
    return None


def _examined(offer: Offer, rules: GateRules, before: Before, now: datetime) -> Quarantined | None:
    """The quarantine entry of ``offer``, released or not; None if its price is accepted."""
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
    """The last accepted price; during quarantine the entry has it, as the offer is not in the market."""
    current = before.prices_usd_per_node_hour.get(offer.offer_id)
    return current if current is not None or earlier is None else earlier.accepted_usd_per_node_hour


def _lasting_doubt(offer: Offer, rules: GateRules, before: Before, now: datetime) -> tuple[Doubt, str] | None:
    """A reason for quarantine that does not end with time: floor, outlier, age."""
    per_gpu = offer.price_usd_per_node_hour / offer.sku.gpus_per_node
    floor = rules.floors_usd_per_gpu_hour.get(offer.sku.gpu, ZERO)
    if per_gpu < floor:
        drawn = price_words(floor)
        return (
            Doubt.FLOOR,
            f"{price_words(per_gpu)} per GPU-hour is less than the cost of its electricity ({drawn})",
        )
    elsewhere = before.peers.asked_elsewhere(offer, rules.peers_least)
    if elsewhere is not None:
        least, most = elsewhere
        if not rules.least_of_peers * least <= per_gpu <= rules.most_of_peers * most:
            others = f"{price_words(least)} to {price_words(most)}"
            return Doubt.OUTLIER, f"it costs {price_words(per_gpu)} per GPU-hour; other sellers ask {others}"
    if now - offer.observed_at > rules.most_age:
        return Doubt.AGE, f"observed {offer.observed_at:%Y-%m-%d}, more than {rules.most_age.days} days ago"
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
        f"{price_words(price)} per node-hour is {share:.2f} times the last accepted {price_words(was)}",
    )
