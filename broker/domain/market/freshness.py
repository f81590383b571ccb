"""Filters offers to those that are recent and can be ordered, and discounts stock of ageing ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from broker.domain.basics.copies import copy_with
from broker.domain.market.market import FeedHealth
from broker.domain.market.offer import Offer

DOUBT_FROM = 0.5
"""The share of the maximum age from which stated stock is discounted."""


def fresh_offers(
    offers: Iterable[Offer],
    feeds: Iterable[FeedHealth],
    now: datetime,
    max_age: timedelta,
    not_orderable: Collection[str] = (),
) -> tuple[Offer, ...]:
    """Offers that were observed, or confirmed by a successful poll, at most ``max_age`` before ``now``.

    If a feed is silent for longer than half of ``max_age``, its stated stock is discounted linearly down to
    zero at ``max_age``, since it may be sold by now. ``not_orderable`` names providers that accept no orders
    or only list what others sell.
    """
    confirmed = {feed.provider: feed.last_success_at for feed in feeds}

    def age_of(offer: Offer) -> timedelta:
        return now - max(offer.observed_at, confirmed.get(offer.provider) or offer.observed_at)

    sold = (offer for offer in offers if offer.provider not in not_orderable)
    return tuple(discounted(offer, age / max_age) for offer in sold if (age := age_of(offer)) <= max_age)


def discounted(offer: Offer, age_share: float) -> Offer:
    """``offer`` with its stated stock discounted for ``age_share``, its age as a share of the maximum age."""
    nodes = offer.stock.nodes
    if nodes is None or age_share <= DOUBT_FROM:
        return offer
    left = int(nodes * (1 - age_share) / (1 - DOUBT_FROM) + 1e-9)
    return copy_with(offer, stock=copy_with(offer.stock, nodes=left))
