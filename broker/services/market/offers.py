"""Offers: polling providers, and finding current offers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from types import MappingProxyType

from broker.domain.basics.access import EVERY_TEAM, require_scope, scope_of
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.errors import FieldProblem, InputError, ProviderError
from broker.domain.basics.window import Window
from broker.domain.holding.launches import REMEMBERED, LaunchBook
from broker.domain.market.contract_prices import ContractPrice, with_contract_prices
from broker.domain.market.market import FeedHealth, OfferChange, PollRound, PricePoint, diff_rounds
from broker.domain.market.offer import Offer, OfferBatch
from broker.domain.market.offer_pages import (
    OfferCount,
    OfferFilter,
    OfferOrder,
    OfferPlace,
    OfferPrices,
    OfferSlice,
    SellersCheapest,
    admits,
)
from broker.domain.market.offer_words import ANY_TRAITS, OfferTraits, WantedOffers
from broker.domain.market.operators import Operators
from broker.domain.market.polling import Polling, PollPlan, polling_of
from broker.domain.market.price_gate import (
    Before,
    Doubt,
    Gated,
    GateRules,
    PeerPrice,
    Peers,
    Quarantined,
    gate_batch,
    quarantine_news,
)
from broker.domain.market.round_news import OfferMark, RoundNews, round_news
from broker.domain.market.seller_mode import Modes
from broker.domain.market.stock_pools import shared, shared_in, sited
from broker.ports.unit_of_work import Clock, OfferSource, UnitOfWork, UnitOfWorkFactory
from broker.together import all_ended

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a provider answered to a poll, after how many seconds; ``batch`` is None after a failure."""

    provider: str
    started_at: datetime
    seconds: float
    batch: OfferBatch | None
    error: str | None


class OffersService:
    """Use cases of the market. ``sources`` by provider key.

    A feed without a success for ``stale_after`` is stale. A poll fails if it takes longer than
    ``poll_timeout_s`` seconds. ``gate``: rules for implausible prices. ``contracts``: our prices, which
    replace list prices. ``price_lists``: providers that only repeat offers of others. ``operators``: who runs
    the data centres; without it, places have the providers' names. ``takes_orders``: whether the seller of an
    offer takes orders of it, as configured. ``modes``: which sellers are real.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        sources: Mapping[str, OfferSource],
        clock: Clock,
        *,
        stale_after: timedelta = timedelta(minutes=10),
        poll_timeout_s: float = 50.0,
        gate: GateRules | None = None,
        contracts: Sequence[ContractPrice] = (),
        price_lists: Collection[str] = (),
        plan: PollPlan | None = None,
        operators: Operators | None = None,
        takes_orders: Callable[[Offer], bool] = lambda _: True,
        modes: Modes = MappingProxyType({}),
    ) -> None:
        self._uow_factory = uow_factory
        self._sources = sources
        self._clock = clock
        self._stale_after = stale_after
        self._poll_timeout_s = poll_timeout_s
        self._gate = gate or GateRules()
        self._contracts = tuple(contracts)
        self._price_lists = frozenset(price_lists)
        self._plan = plan or PollPlan(stale_after)
        self._operators = operators or Operators()
        self.takes_orders = takes_orders
        self._modes = modes
        self._recording = asyncio.Lock()

    async def refresh(
        self, providers: Iterable[str] | None = None, heard: Callable[[PollRound], None] | None = None
    ) -> tuple[PollRound, ...]:
        """Polls ``providers`` (None: all) concurrently. After a failure a provider keeps its old offers.

        ``heard`` gets each round with its changes as soon as it is stored, and again where first prices turn
        out to be far from all others. Raises InputError for a provider that is not configured.
        """
        names = tuple(self._sources) if providers is None else tuple(providers)
        unknown = [name for name in names if name not in self._sources]
        if unknown:
            expected = f"one of {', '.join(sorted(self._sources))}"
            problems = tuple(FieldProblem("/providers", repr(name), expected) for name in unknown)
            raise InputError("poll", problems)
        prices = await self._peer_prices()
        peers, with_prices = self._peers(prices), {price.provider for price in prices}
        first: list[_Answer] = []
        polled = await all_ended(
            self._poll(self._sources[name], peers, heard, None if name in with_prices else first)
            for name in names
        )
        rounds = {round_.provider: round_ for round_ in polled}
        for round_ in await self._compare_first(first, prices, heard) if first else ():
            before = rounds[round_.provider]
            rounds[round_.provider] = replace(round_, changes=(*before.changes, *round_.changes))
        return tuple(rounds.values())

    async def _peer_prices(self) -> tuple[PeerPrice, ...]:
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.offers.find_peer_prices()

    def _peers(self, prices: Iterable[PeerPrice]) -> Peers:
        """Prices of all sellers, without lists that only repeat other sellers' prices."""
        return Peers(price for price in prices if price.provider not in self._price_lists)

    async def _poll(
        self,
        source: OfferSource,
        peers: Peers,
        heard: Callable[[PollRound], None] | None,
        first: list[_Answer] | None,
    ) -> PollRound:
        """Asks a provider and stores the round; ``first`` gets an answer with offers."""
        started_at, began = self._clock.now(), time.monotonic()
        batch, error = await self._ask(source, started_at)
        answer = _Answer(source.provider, started_at, time.monotonic() - began, batch, error)
        if first is not None and batch is not None:
            first.append(answer)
        return await self._store(answer, peers, heard)

    async def _compare_first(
        self,
        answers: Sequence[_Answer],
        prices: Sequence[PeerPrice],
        heard: Callable[[PollRound], None] | None,
    ) -> list[PollRound]:
        """Compares the first prices of providers with one another's once all have answered.

        The first to answer had nothing to be compared with. Rounds with a new outlier are stored again.
        """
        before, peers = self._peers(prices), await asyncio.to_thread(self._first_peers, answers, prices)
        return [
            await self._store(answer, peers, heard)
            for answer in answers
            if self._outliers(answer, peers) - self._outliers(answer, before)
        ]

    def _outliers(self, answer: _Answer, peers: Peers) -> set[str]:
        found = self._gated(answer, peers).quarantine
        return {entry.offer.offer_id for entry in found if entry.doubt is Doubt.OUTLIER}

    def _gated(self, answer: _Answer, peers: Peers) -> Gated:
        """An answer after the gate, of a provider without accepted prices."""
        assert answer.batch is not None
        return gate_batch(answer.batch, self._gate, Before(peers=peers), answer.started_at)

    def _first_peers(self, answers: Sequence[_Answer], prices: Sequence[PeerPrice]) -> Peers:
        """Prices of all sellers with the first ones. An outlier of these is no measure of others. Pure."""
        peers = self._peers(prices)
        for _ in ("all that are plausible alone", "those that are plausible beside these"):
            first = [
                PeerPrice(offer.provider, offer.sku.gpu, offer.tier, _usd_per_gpu_hour(offer))
                for answer in answers
                for offer in self._gated(answer, peers).batch.offers
            ]
            peers = self._peers((*prices, *first))
        return peers

    async def _store(
        self, answer: _Answer, peers: Peers, heard: Callable[[PollRound], None] | None
    ) -> PollRound:
        round_ = PollRound(answer.provider, answer.started_at, answer.seconds, 0, error=answer.error)
        async with self._recording, self._uow_factory(EVERY_TEAM) as uow:
            if answer.batch is None:
                await uow.offers.record_round(round_, None)
            else:
                round_ = await self._record(uow, round_, answer.batch, peers)
            await uow.commit()
        if heard is not None:
            heard(round_)
        return round_

    async def _record(self, uow: UnitOfWork, round_: PollRound, batch: OfferBatch, peers: Peers) -> PollRound:
        """Applies the price gate and stores what is new. Returns the round as stored."""
        marks = await uow.offers.open_round(round_.provider)
        quarantine = {entry.offer.offer_id: entry for entry in await uow.quarantine.find(round_.provider)}
        prices = {offer_id: mark.list_usd_per_node_hour for offer_id, mark in marks.items()}
        gated, offers, news = await asyncio.to_thread(
            self._judge, round_, batch, Before(prices, quarantine, peers), marks
        )
        stored = replace(
            round_,
            offers=offers,
            rejected=gated.batch.rejected,
            changes=diff_rounds(await uow.offers.find_many(news.touched), news.offers, round_.started_at),
        )
        await uow.offers.record_round(stored, news)
        await uow.quarantine.change(*quarantine_news(quarantine, gated.quarantine))
        return stored

    def _judge(
        self, round_: PollRound, batch: OfferBatch, before: Before, marks: Mapping[str, OfferMark]
    ) -> tuple[Gated, int, RoundNews]:
        """Offers that pass the gate, their number, and what is new. Pure."""
        at, mode = round_.started_at, self._modes.get(round_.provider)
        gated = gate_batch(sited(batch, self._operators, mode), self._gate, before, at)
        offers = with_contract_prices(gated.batch.offers, self._contracts, at)
        return gated, len(offers), round_news(marks, offers, at)

    async def _ask(self, source: OfferSource, at: datetime) -> tuple[OfferBatch | None, str | None]:
        try:
            async with asyncio.timeout(self._poll_timeout_s):
                return await source.list_offers(at), None
        except TimeoutError:
            return None, f"{source.provider}: no answer within {self._poll_timeout_s:g} s"
        except ProviderError as error:
            return None, str(error)
        except Exception as error:  # a fault of one adapter must not stop the others
            log.exception("poll of %s failed unexpectedly", source.provider)
            return None, f"{source.provider}: unexpected {type(error).__name__}: {error}"

    async def find_offers(self, wanted: OfferFilter | None = None) -> tuple[Offer, ...]:
        """Current offers with launch statistics, cheapest per GPU-hour first.

        Pools contain all offers of the market, unless the filter excludes some of them.
        """
        chosen, now = wanted or OfferFilter(), self._clock.now()
        async with self._uow_factory(EVERY_TEAM) as uow:
            launches = await uow.launches.find_since(now - REMEMBERED)
            offers = await uow.offers.find_current(
                provider=chosen.provider, gpu=chosen.gpu, region=chosen.region, tier=chosen.tier
            )
        told = LaunchBook(launches, now).with_statistics(offers)
        return shared(told) if _is_whole_market(chosen) else told

    async def find_wanted(self, wanted: WantedOffers) -> tuple[Offer, ...]:
        """Offers of ``find_offers`` that are wanted, cheapest per GPU-hour first."""
        whole = await self.find_offers()
        return tuple(
            offer
            for offer in whole
            if wanted.traits.admit(offer)
            and admits(wanted.names, offer)
            and (not wanted.traits.orderable or self.takes_orders(offer))
        )

    async def find_page(
        self,
        wanted: OfferFilter,
        after: OfferPlace | None,
        limit: int,
        traits: OfferTraits = ANY_TRAITS,
    ) -> tuple[tuple[Offer, ...], bool]:
        """At most ``limit`` offers of ``find_wanted`` after a place in its order, and whether more follow."""
        if traits != ANY_TRAITS:
            rest = [
                offer
                for offer in await self.find_wanted(WantedOffers(wanted, traits))
                if after is None or _place(offer) > (after.usd_per_gpu_hour, after.offer_id)
            ]
            return tuple(rest[:limit]), len(rest) > limit
        now = self._clock.now()
        async with self._uow_factory(EVERY_TEAM) as uow:
            launches = await uow.launches.find_since(now - REMEMBERED)
            found = await uow.offers.find_after(wanted, after, limit + 1)
            page = found[:limit]
            if _is_whole_market(wanted):
                pools = {offer.stock.pool.pool_id for offer in page if offer.stock.pool is not None}
                page = shared_in(page, await uow.offers.find_pool_gpus(pools, wanted.gpu))
        return LaunchBook(launches, now).with_statistics(page), len(found) > limit

    async def find_slices(
        self, parts: Sequence[OfferSlice], order: OfferOrder, *, descending: bool
    ) -> tuple[Offer, ...]:
        """The offers of slices of the market, slice by slice, with launch statistics."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            ids = [
                offer_id
                for part in parts
                for offer_id in await uow.offers.find_slice(part, order, descending=descending)
            ]
        return await self.find_named(ids)

    async def find_counts(self) -> tuple[OfferCount, ...]:
        """Number of current offers by provider, GPU, region and tier."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.offers.find_counts()

    async def find_places(self) -> Mapping[str, str]:
        """The country (ISO 3166-1 alpha-2) of each region on sale now; empty where no seller states it."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            offers = await uow.offers.find_current()
        stated = {offer.region: offer.country for offer in offers if offer.country is not None}
        return {offer.region: stated.get(offer.region, "") for offer in offers}

    async def find_price_range(self, wanted: OfferFilter, count: int) -> OfferPrices | None:
        """Minimum, median and maximum price of the ``count`` offers ``wanted``; None if there are none."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.offers.find_price_range(wanted, count)

    async def find_cheapest_of_sellers(self, wanted: OfferFilter) -> tuple[SellersCheapest, ...]:
        """The cheapest offer of each seller among ``wanted``, cheapest first."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.offers.find_cheapest_of_sellers(wanted)

    async def find_named(self, offer_ids: Sequence[str]) -> tuple[Offer, ...]:
        """The current offers among ``offer_ids``, in that order, with launch statistics."""
        now = self._clock.now()
        async with self._uow_factory(EVERY_TEAM) as uow:
            launches = await uow.launches.find_since(now - REMEMBERED)
            found = {offer.offer_id: offer for offer in await uow.offers.find_many(offer_ids)}
        return LaunchBook(launches, now).with_statistics([found[key] for key in offer_ids if key in found])

    async def find_as_of(self) -> datetime | None:
        """When the newest current offer was observed; None if there is none."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.offers.find_as_of()

    async def find_offer(self, offer_id: str) -> Offer:
        """One current offer with launch statistics. Raises NotFound."""
        now = self._clock.now()
        async with self._uow_factory(EVERY_TEAM) as uow:
            launches = await uow.launches.find_since(now - REMEMBERED)
            offer = await uow.offers.find_offer(offer_id)
        return LaunchBook(launches, now).with_statistics((offer,))[0]

    async def find_prices(self, offer_id: str, window: Window) -> tuple[PricePoint, ...]:
        """Price changes in ``window``, after the price in force at its start."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.offers.find_prices(offer_id, window)

    async def find_changes(self, since: datetime, limit: int = 200) -> tuple[OfferChange, ...]:
        """Changes after ``since``, oldest first."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.offers.find_changes(since, limit)

    async def find_rejected(self, provider: str) -> PollRound | None:
        """The last round of ``provider``, with its rejected rows; None before the first."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.offers.find_rejected(provider)

    async def find_quarantine(self, provider: str | None = None) -> tuple[Quarantined, ...]:
        """Offers in quarantine because of their price, and offers released from it."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.quarantine.find(provider)

    async def release_from_quarantine(self, caller: Caller, offer_id: str) -> Quarantined:
        """Accepts the price of an offer in quarantine, which is on sale from the next poll on.

        This holds until its price changes. Releasing it twice is no error. Raises NotFound.
        """
        require_scope(caller, Scope.ADMIN)
        async with self._recording, self._uow_factory(scope_of(caller)) as uow:
            entry = await uow.quarantine.find_one(offer_id)
            if entry.released_at is None:
                now = self._clock.now()
                entry = replace(entry, released_at=now, released_by=caller.key_id)
                await uow.quarantine.put(entry)
                await uow.accounts.add_audit(
                    AuditEntry(
                        now, caller.key_id, "offer.believe", "offer", offer_id, caller.team, entry.reason
                    )
                )
                await uow.commit()
        return entry

    async def find_feeds(self) -> tuple[FeedHealth, ...]:
        """Health of every feed, including feeds that were never polled."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            feeds = {feed.provider: feed for feed in await uow.offers.find_feeds()}
        for name in self._sources:
            feeds.setdefault(name, FeedHealth(name, None, None, None, None, 0, 0, None))
        return tuple(self._aged(feeds[name]) for name in sorted(feeds))

    def polling_of(self, feed: FeedHealth) -> Polling:
        """Interval and next time of polling a feed."""
        return polling_of(feed, self._plan, self._clock.now())

    async def hold_back(self, waits: Mapping[str, datetime]) -> None:
        """Stores until when feeds must not be polled, for all processes."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            for provider, until in waits.items():
                await uow.offers.hold_back(provider, until)
            await uow.commit()

    async def has_young(self) -> bool:
        """Whether any feed has offers from a successful poll that is recent enough for planning."""
        return any(
            feed.offers > 0
            and feed.last_success_at is not None
            and self._is_young(feed.provider, feed.last_success_at)
            for feed in await self.find_feeds()
            if feed.provider in self._sources
        )

    def _aged(self, feed: FeedHealth) -> FeedHealth:
        succeeded = feed.last_success_at
        if succeeded is None or self._is_young(feed.provider, succeeded):
            return feed
        return replace(feed, stale_since=feed.stale_since or succeeded)

    def _is_young(self, provider: str, succeeded: datetime) -> bool:
        waits = self._plan.of(provider) - self._plan.every
        return self._clock.now() - succeeded <= self._stale_after + waits


def _place(offer: Offer) -> tuple[Decimal, str]:
    return _usd_per_gpu_hour(offer), offer.offer_id


def _usd_per_gpu_hour(offer: Offer) -> Decimal:
    return offer.price_usd_per_node_hour / offer.sku.gpus_per_node


def _is_whole_market(wanted: OfferFilter) -> bool:
    """Whether the filter keeps pools complete: it selects the whole market, or all offers of one GPU."""
    return wanted == OfferFilter(gpu=wanted.gpu)
