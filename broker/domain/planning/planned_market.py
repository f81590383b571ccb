"""The market of a plan as a hash, which tells whether another plan had the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta

from broker.domain.market.launch_chance import launch_chance_of
from broker.domain.market.offer import Offer
from broker.domain.planning.workload import PlanRequest

SAME_TIME = timedelta(minutes=30)
"""A plan is made again for its own time until so long after it, as its runs may still begin then."""


def market_sha256(request: PlanRequest, offers: Iterable[Offer]) -> str:
    """A hash of all that a plan of one document depends on, apart from its time.

    Left out is when and where offers were seen.
    """
    digest = hashlib.sha256(repr((request.quotas, request.held)).encode())
    for told in sorted(map(_told, offers)):
        digest.update(told.encode())
    return digest.hexdigest()


def _told(offer: Offer) -> str:
    """What may change of an offer from poll to poll, the id first."""
    money = offer.price_usd_per_node_hour, offer.upfront_usd, offer.min_hours, offer.billing_increment_s
    sold = offer.stock, offer.window, offer.available_until, offer.disk, offer.memory
    kept = offer.interruptions_per_hour, offer.reliability, offer.host, offer.launch
    is_rare = offer.learned is not None and offer.learned.is_rare
    place = offer.region, offer.zone, offer.country, offer.place, sorted(offer.compliance)
    return repr((offer.offer_id, money, sold, kept, is_rare, launch_chance_of(offer), place))


def is_same_time(request: PlanRequest, then: datetime, now: datetime) -> bool:
    """Whether a plan of ``then`` can still be made for that time: nothing has begun, or it was just now."""
    return now <= request.horizon.start or now - then <= SAME_TIME
