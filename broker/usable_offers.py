"""What a plan may be made of: offers that are fresh and can be ordered, with what we learned of them.

Planning, looking again and the next best way after a refusal all ask here, so that none of them takes a
launch for surer, or spot for safer, than the others do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from broker.domain.freshness import fresh_offers
from broker.domain.launch_times import LaunchTable
from broker.domain.launches import REMEMBERED, LaunchBook
from broker.domain.offer import Offer, Tier
from broker.domain.refusals import after_refusals
from broker.domain.reservation import Reservation
from broker.domain.spot import SpotBook, SpotPrior, spot_time
from broker.domain.stock_pools import shared
from broker.domain.window import Window
from broker.ports import UnitOfWork


@dataclass(frozen=True, slots=True)
class OfferRules:
    """Offers that nobody confirmed within ``max_age`` are left out, and those of ``not_orderable``: price
    lists, and sellers that take no order as they are configured. ``can_be_ordered`` tells of the other
    sellers' offers whether an order of them can be sent.

    ``spot``: how often spot is taken away where neither its provider nor our own leases say.
    ``launch_times``: how long nodes take to run where neither our own launches nor the offer says.
    """

    max_age: timedelta = timedelta(minutes=10)
    not_orderable: frozenset[str] = frozenset()
    can_be_ordered: Callable[[Offer], bool] = lambda _: True
    spot: SpotPrior = field(default_factory=SpotPrior)
    launch_times: LaunchTable = field(default_factory=LaunchTable)


async def usable_offers(uow: UnitOfWork, now: datetime, rules: OfferRules) -> tuple[Offer, ...]:
    """Offers that can be planned with at ``now``, after what refused orders taught; spot ones with a rate of
    interruptions, all with their launch times. Their pools are those of the whole market."""
    current = await uow.offers.find_current(without=rules.not_orderable)
    offers = [offer for offer in current if rules.can_be_ordered(offer)]
    feeds = await uow.offers.find_feeds()
    launches = await uow.launches.find_since(now - REMEMBERED)
    rows: tuple[Reservation, ...] = ()
    if any(offer.tier is Tier.SPOT for offer in offers):
        rows = await uow.reservations.find_overlapping(Window(now - REMEMBERED, now))
    fresh = fresh_offers(offers, feeds, now, rules.max_age, rules.not_orderable)
    times = [time for row in rows if (time := spot_time(row, now)) is not None]
    known = after_refusals(LaunchBook(launches, now).told(shared(fresh)), launches, now)
    return rules.launch_times.told(SpotBook(times, rules.spot).told(known), launches)
