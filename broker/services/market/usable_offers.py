"""Offers for planning: fresh and orderable ones, with estimates from our own launches and leases.

Planning, re-optimization and fallbacks all use these offers, so that they make the same assumptions about
launches and spot interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from broker.domain.basics.errors import NotFound
from broker.domain.basics.window import INSTANT, Window
from broker.domain.holding.launch_times import LaunchTable
from broker.domain.holding.launches import REMEMBERED, LaunchAttempt, LaunchBook
from broker.domain.holding.refusals import (
    after_refusals,
    outlived,
    refusal_note,
    without_capacity,
)
from broker.domain.holding.reservation import Reservation
from broker.domain.holding.spot import SpotBook, SpotPrior, SpotTime, spot_time
from broker.domain.market.freshness import DOUBT_FROM, fresh_offers
from broker.domain.market.market import FeedHealth
from broker.domain.market.offer import Offer, Tier
from broker.domain.market.stock_pools import shared
from broker.ports.unit_of_work import UnitOfWork

"""A window does not contain its end."""


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
    """Our own launch attempts, and our time on spot capacity.

    ``outlived``: reservations whose refusal no longer counts, because their offer has changed since;
    ``nodes``: how many were ordered, by refused reservation.
    """

    launches: Sequence[LaunchAttempt] = ()
    times: Sequence[SpotTime] = ()
    outlived: frozenset[str] = frozenset()
    nodes: Mapping[str, int] = field(default_factory=dict)

    @property
    def providers(self) -> frozenset[str]:
        """Providers with which we have experience."""
        launched = (one.provider for one in self.launches)
        return frozenset(launched).union(one.provider for one in self.times)


@dataclass(frozen=True, slots=True)
class UsableMarket:
    """Offers to plan with, and a sentence about those that are left out after a refusal (empty: none)."""

    offers: tuple[Offer, ...]
    refusal_note: str


async def usable_offers(uow: UnitOfWork, now: datetime, rules: OfferRules) -> tuple[Offer, ...]:
    """Offers that plans may use at ``now``; see ``usable_market``."""
    return (await usable_market(uow, now, rules)).offers


async def usable_market(uow: UnitOfWork, now: datetime, rules: OfferRules) -> UsableMarket:
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
    refused = without_capacity(launches, now)
    gone = await _outlived(uow, refused, now)
    refused = tuple(one for one in refused if one.reservation_id not in gone)
    nodes = await _ordered_nodes(uow, refused)
    offers = rules.ready.usable(current, feeds, Experience(launches, times, gone, nodes), now, rules)
    known = {offer.offer_id for offer in current} if refused else set()
    told = [one for one in refused if one.offer_id in known and (one.ends_at or one.reservation_id in nodes)]
    return UsableMarket(offers, refusal_note(told))


async def usable_offers_at(uow: UnitOfWork, at: datetime, rules: OfferRules) -> tuple[Offer, ...]:
    """The offers that a plan of the past instant ``at`` could use, with the prices, the stock and our own
    launches known then. All else of an offer is as it was last seen.
    """
    known = await uow.prices.find_known_at(at)
    sold = [one for one in known if one.provider not in rules.not_orderable and rules.can_be_ordered(one)]
    since = at - REMEMBERED
    launches = tuple(one for one in await uow.launches.find_since(since) if one.asked_at <= at)
    rows = await uow.reservations.find_overlapping(Window(since, at))
    times = [time for row in rows if (time := spot_time(row, at)) is not None]
    return _with_estimates(shared(sold), Experience(launches, times), at, rules)


async def _outlived(uow: UnitOfWork, refused: Sequence[LaunchAttempt], now: datetime) -> frozenset[str]:
    if not refused:
        return frozenset()
    since = min(one.asked_at for one in refused)
    offer_ids = {one.offer_id for one in refused}
    return outlived(refused, await uow.offers.find_prices_of(offer_ids, Window(since, now + INSTANT)))


async def _ordered_nodes(uow: UnitOfWork, refused: Iterable[LaunchAttempt]) -> Mapping[str, int]:
    """Nodes of each refused order of hourly capacity whose reservation is still stored."""
    found: dict[str, int] = {}
    for one in refused:
        if one.ends_at is None:
            with suppress(NotFound):
                found[one.reservation_id] = (await uow.reservations.find(one.reservation_id)).nodes
    return found


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
    standing = [one for one in launches if one.reservation_id not in known.outlived]
    learned = after_refusals(LaunchBook(launches, now).with_statistics(offers), standing, now, known.nodes)
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
