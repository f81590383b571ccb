"""Which offers can be acted on: young enough, and of a seller that takes orders."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from broker.domain.market import FeedHealth
from broker.domain.offer import Offer


def fresh_offers(
    offers: Iterable[Offer],
    feeds: Iterable[FeedHealth],
    now: datetime,
    max_age: timedelta,
    price_lists: Collection[str] = (),
) -> tuple[Offer, ...]:
    """Offers seen, or confirmed by a good poll of their provider, within ``max_age`` before ``now``.

    ``price_lists``: providers that only repeat what others sell; nothing can be ordered from them.
    """
    confirmed = {feed.provider: feed.last_success_at for feed in feeds}

    def seen_at(offer: Offer) -> datetime:
        return max(offer.observed_at, confirmed.get(offer.provider) or offer.observed_at)

    return tuple(
        offer for offer in offers if offer.provider not in price_lists and now - seen_at(offer) <= max_age
    )
