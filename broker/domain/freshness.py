"""Which offers are young enough to act on."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from broker.domain.market import FeedHealth
from broker.domain.offer import Offer


def fresh_offers(
    offers: Iterable[Offer], feeds: Iterable[FeedHealth], now: datetime, max_age: timedelta
) -> tuple[Offer, ...]:
    """Offers seen, or confirmed by a good poll of their provider, within ``max_age`` before ``now``."""
    confirmed = {feed.provider: feed.last_success_at for feed in feeds}

    def seen_at(offer: Offer) -> datetime:
        return max(offer.observed_at, confirmed.get(offer.provider) or offer.observed_at)

    return tuple(offer for offer in offers if now - seen_at(offer) <= max_age)
