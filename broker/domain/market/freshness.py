"""Which offers can be acted on, and how far: young enough, and of a seller that takes orders."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from broker.domain.basics.copies import copy_with
from broker.domain.market.market import FeedHealth
from broker.domain.market.offer import Offer

DOUBT_FROM = 0.5
"""From this share of the most age on, counted stock is believed less and less."""


def fresh_offers(
    offers: Iterable[Offer],
    feeds: Iterable[FeedHealth],
    now: datetime,
    max_age: timedelta,
    not_orderable: Collection[str] = (),
) -> tuple[Offer, ...]:
    """Offers seen, or confirmed by a good poll of their provider, within ``max_age`` before ``now``.

    Of a feed that is silent, counted stock shrinks evenly from half of that age on, to nothing at its end:
    what was there may be sold. ``not_orderable``: providers that only repeat what others sell, and
    sellers that take no order.
    """
    confirmed = {feed.provider: feed.last_success_at for feed in feeds}

    def age_of(offer: Offer) -> timedelta:
        return now - max(offer.observed_at, confirmed.get(offer.provider) or offer.observed_at)

    sold = (offer for offer in offers if offer.provider not in not_orderable)
    return tuple(discounted(offer, age / max_age) for offer in sold if (age := age_of(offer)) <= max_age)


def discounted(offer: Offer, age_share: float) -> Offer:
    """``offer`` with what is believed of its counted stock at that share of the most age."""
    nodes = offer.stock.nodes
    if nodes is None or age_share <= DOUBT_FROM:
        return offer
    left = int(nodes * (1 - age_share) / (1 - DOUBT_FROM) + 1e-9)
    return copy_with(offer, stock=copy_with(offer.stock, nodes=left))
