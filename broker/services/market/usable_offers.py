"""Offers for planning: fresh and orderable ones, with estimates from our own launches and leases.

Planning, re-optimization and fallbacks all use these offers, so that they make the same assumptions about
launches and spot interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from broker.domain.basics.window import Window
from broker.domain.holding.launch_times import LaunchTable
from broker.domain.holding.launches import REMEMBERED, LaunchAttempt, LaunchBook
from broker.domain.holding.refusals import after_refusals
from broker.domain.holding.reservation import Reservation
from broker.domain.holding.spot import SpotBook, SpotPrior, SpotTime, spot_time
from broker.domain.market.freshness import DOUBT_FROM, fresh_offers
from broker.domain.market.market import FeedHealth
from broker.domain.market.offer import Offer, Tier
from broker.domain.market.stock_pools import shared
from broker.ports.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True)
class OfferRules:
    """Which offers are usable, and the assumptions about them.

    ``max_age``: maximum time since an offer was last confirmed. ``not_orderable``: providers that are price
    lists, or accept no orders as configured. ``can_be_ordered``: whether an order of an offer of another
    provider can be sent. ``spot``: prior of the interruption rate. ``launch_times``: launch times for offers
    that state none and that we never launched. ``ready``: cache of the usable market.
    """

    max_age: timedelta = timedelta(minutes=10)
    not_orderable: frozenset[str] = frozenset()
    can_be_ordered: Callable[[Offer], bool] = lambda _: True
    spot: SpotPrior = field(default_factory=SpotPrior)
    launch_times: LaunchTable = field(default_factory=LaunchTable)
    ready: ReadyMarket = field(default_factory=lambda: ReadyMarket(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Experience:
    """Our own launch attempts, and our time on spot capacity."""

    launches: Sequence[LaunchAttempt] = ()
    times: Sequence[SpotTime] = ()

    @property
    def providers(self) -> frozenset[str]:
        """Providers with which we have experience."""
        launched = (one.provider for one in self.launches)
        return frozenset(launched).union(one.provider for one in self.times)


async def usable_offers(uow: UnitOfWork, now: datetime, rules: OfferRules) -> tuple[Offer, ...]:
    """Offers that plans may use at ``now``, in the pools of the whole market.

    They have the prices that refused orders revealed, launch times, and, for spot, interruption rates.
    """
    current = await uow.offers.find_current(without=rules.not_orderable)
    feeds = await uow.offers.find_feeds()
    launches = await uow.launches.find_since(now - REMEMBERED)
    rows: tuple[Reservation, ...] = ()
    if rules.ready.sells_spot(current, rules):
        rows = await uow.reservations.find_overlapping(Window(now - REMEMBERED, now))
    times = [time for row in rows if (time := spot_time(row, now)) is not None]
    return rules.ready.usable(current, feeds, Experience(launches, times), now, rules)


@dataclass(frozen=True, slots=True)
class _Orderable:
    """The orderable ``offers`` of ``current``, and the oldest and newest time of observation by provider."""

    current: Sequence[Offer]
    offers: tuple[Offer, ...]
    seen_between: dict[str, tuple[datetime, datetime]]
    sells_spot: bool


@dataclass(frozen=True, slots=True)
class _Shared:
    """The ``orderable`` offers without the providers ``silent``.

    ``offers`` have their pools; ``strange`` are the same offers with assumptions for providers that we never
    used.
    """

    orderable: _Orderable
    silent: frozenset[str]
    offers: tuple[Offer, ...]
    strange: tuple[Offer, ...]


class ReadyMarket:
    """A cache of what depends only on the market, keyed by the identity of the store's tuple of offers.

    Only offers of providers with which we have experience are computed for each call.
    """

    def __init__(self) -> None:
        self._orderable: _Orderable | None = None
        self._shared: _Shared | None = None

    def sells_spot(self, current: Sequence[Offer], rules: OfferRules) -> bool:
        """Whether any of ``current`` that can be ordered is spot."""
        return self._orderable_of(current, rules).sells_spot

    def usable(
        self,
        current: Sequence[Offer],
        feeds: Collection[FeedHealth],
        known: Experience,
        now: datetime,
        rules: OfferRules,
    ) -> tuple[Offer, ...]:
        """The fresh and orderable offers of ``current``, with the experience ``known``."""
        orderable = self._orderable_of(current, rules)
        silent = _silent(orderable, feeds, now, rules.max_age)
        if silent is None:
            fresh = fresh_offers(orderable.offers, feeds, now, rules.max_age, rules.not_orderable)
            return _with_estimates(shared(fresh), known, now, rules)
        market = self._shared_of(orderable, silent, rules)
        mine = known.providers
        if not mine:
            return market.strange
        ours = _with_estimates(
            (offer for offer in market.offers if offer.provider in mine), known, now, rules
        )
        told = {offer.offer_id: offer for offer in ours}
        both = (
            told.get(offer.offer_id) if offer.provider in mine else strange
            for offer, strange in zip(market.offers, market.strange, strict=True)
        )
        return tuple(offer for offer in both if offer is not None)

    def _orderable_of(self, current: Sequence[Offer], rules: OfferRules) -> _Orderable:
        if self._orderable is None or self._orderable.current is not current:
            offers = tuple(
                offer
                for offer in current
                if offer.provider not in rules.not_orderable and rules.can_be_ordered(offer)
            )
            sells_spot = any(offer.tier is Tier.SPOT for offer in offers)
            self._orderable = _Orderable(current, offers, _seen_between(offers), sells_spot)
        return self._orderable

    def _shared_of(self, orderable: _Orderable, silent: frozenset[str], rules: OfferRules) -> _Shared:
        kept = self._shared
        if kept is None or kept.orderable is not orderable or kept.silent != silent:
            offers = shared(offer for offer in orderable.offers if offer.provider not in silent)
            strange = rules.launch_times.with_launch_times(SpotBook((), rules.spot).with_rates(offers))
            kept = self._shared = _Shared(orderable, silent, offers, strange)
        return kept


def _with_estimates(
    offers: Iterable[Offer], known: Experience, now: datetime, rules: OfferRules
) -> tuple[Offer, ...]:
    """``offers`` with estimates from our own launches and leases."""
    launches = known.launches
    learned = after_refusals(LaunchBook(launches, now).with_statistics(offers), launches, now)
    return rules.launch_times.with_launch_times(
        SpotBook(known.times, rules.spot).with_rates(learned), launches
    )


def _seen_between(offers: Iterable[Offer]) -> dict[str, tuple[datetime, datetime]]:
    found: dict[str, tuple[datetime, datetime]] = {}
    for offer in offers:
        at, between = offer.observed_at, found.get(offer.provider)
        if between is None:
            found[offer.provider] = (at, at)
        elif not between[0] <= at <= between[1]:
            found[offer.provider] = (min(at, between[0]), max(at, between[1]))
    return found


def _silent(
    orderable: _Orderable, feeds: Iterable[FeedHealth], now: datetime, max_age: timedelta
) -> frozenset[str] | None:
    """Providers all of whose offers are too old, if no offer of another provider is doubtful.

    None if the freshness of offers has to be checked one by one.
    """
    confirmed = {feed.provider: feed.last_success_at for feed in feeds}
    silent: set[str] = set()
    for provider, (oldest, newest) in orderable.seen_between.items():
        last = confirmed.get(provider)
        if now - max(newest, last or newest) > max_age:
            silent.add(provider)
        elif (now - max(oldest, last or oldest)) / max_age > DOUBT_FROM:
            return None
    return frozenset(silent)
