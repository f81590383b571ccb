"""The market over time: poll rounds, price points, changes, and the health of feeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from broker.domain.market.offer import Offer, RejectedRow
from broker.domain.market.probing import ProbeReport


class ChangeKind(StrEnum):
    """What happened to an offer between two rounds."""

    NEW = "new"
    GONE = "gone"
    PRICE = "price"
    STOCK = "stock"


@dataclass(frozen=True, slots=True)
class OfferChange:
    """One difference between two rounds of one provider."""

    kind: ChangeKind
    offer_id: str
    provider: str
    at: datetime
    before_usd_per_node_hour: Decimal | None = None
    after_usd_per_node_hour: Decimal | None = None


@dataclass(frozen=True, slots=True)
class PollRound:
    """One poll of one provider: counts, changes, duration in seconds, and the error if it failed."""

    provider: str
    started_at: datetime
    seconds: float
    offers: int
    rejected: tuple[RejectedRow, ...] = ()
    changes: tuple[OfferChange, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PricePoint:
    """The price and stock of an offer from ``at`` on, when the broker saw them. Only changes are stored."""

    offer_id: str
    at: datetime
    price_usd_per_node_hour: Decimal
    stock_nodes: int | None
    available: bool


@dataclass(frozen=True, slots=True)
class FeedHealth:
    """Health of a provider's feed. ``stale_since`` is None while it is fresh.

    ``failures`` counts failed polls in a row. ``not_before`` is the back-off: the feed is not polled earlier
    (None: poll it next time). ``probe`` is the latest probe.
    """

    provider: str
    last_success_at: datetime | None
    last_error_at: datetime | None
    last_error: str | None
    stale_since: datetime | None
    offers: int
    rejected: int
    seconds: float | None
    failures: int = 0
    not_before: datetime | None = None
    probe: ProbeReport | None = None


def diff_rounds(before: Iterable[Offer], after: Iterable[Offer], at: datetime) -> tuple[OfferChange, ...]:
    """The changes from one round of a provider to the next, by offer id. Pure."""
    old = {offer.offer_id: offer for offer in before}
    new = {offer.offer_id: offer for offer in after}
    changes = [
        OfferChange(ChangeKind.GONE, key, offer.provider, at, offer.price_usd_per_node_hour, None)
        for key, offer in old.items()
        if key not in new
    ]
    for key, offer in new.items():
        previous = old.get(key)
        if previous is None:
            kind, was = ChangeKind.NEW, None
        elif (
            previous.price_usd_per_node_hour != offer.price_usd_per_node_hour
            or previous.upfront_usd != offer.upfront_usd
        ):
            kind, was = ChangeKind.PRICE, previous.price_usd_per_node_hour
        elif previous.stock != offer.stock:
            kind, was = ChangeKind.STOCK, previous.price_usd_per_node_hour
        else:
            continue
        changes.append(OfferChange(kind, key, offer.provider, at, was, offer.price_usd_per_node_hour))
    return tuple(changes)
