"""The market in memory: offers on sale, their points and feeds, and prices that are not believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from statistics import median

from broker.domain.basics.errors import NotFound
from broker.domain.basics.window import Window
from broker.domain.market.market import FeedHealth, OfferChange, PollRound, PricePoint
from broker.domain.market.offer import Offer
from broker.domain.market.offer_pages import (
    Names,
    OfferCount,
    OfferFilter,
    OfferOrder,
    OfferPlace,
    OfferPrices,
    OfferSlice,
    SellersCheapest,
    matching,
)
from broker.domain.market.price_gate import PeerPrice, Quarantined
from broker.domain.market.probing import ProbeReport
from broker.domain.market.round_news import OfferMark, RoundNews, fingerprint
from tests.fakes.tables import Repository


def _place(offer: Offer) -> tuple[Decimal, str]:
    return offer.price_usd_per_node_hour / offer.sku.gpus_per_node, offer.offer_id


_KEYS: Mapping[OfferOrder, Callable[[Offer], tuple[Decimal, str]]] = {
    OfferOrder.GPU_HOUR: _place,
    OfferOrder.NODE_HOUR: lambda o: (o.price_usd_per_node_hour, o.offer_id),
    OfferOrder.NODES: lambda o: (Decimal(-1 if o.stock.nodes is None else o.stock.nodes), o.offer_id),
}


class Offers(Repository):
    """Stands in for ``SqlOfferRepository``."""

    async def find_after(
        self, wanted: OfferFilter, after: OfferPlace | None, limit: int
    ) -> tuple[Offer, ...]:
        place = None if after is None else (after.usd_per_gpu_hour, after.offer_id)
        return tuple([o for o in self._cheapest(wanted) if place is None or _place(o) > place][:limit])

    async def find_pool_gpus(
        self, pool_ids: Collection[str], gpu: Names | None
    ) -> Mapping[str, tuple[int | None, ...]]:
        pools = [o.stock.pool for o in self._cheapest(OfferFilter(gpu=gpu)) if o.stock.pool is not None]
        return {name: tuple(pool.gpus for pool in pools if pool.pool_id == name) for name in pool_ids}

    async def find_slice(self, part: OfferSlice, order: OfferOrder, *, descending: bool) -> tuple[str, ...]:
        rows = sorted(self._cheapest(part.wanted), key=_KEYS[order], reverse=descending)
        return tuple(o.offer_id for o in rows[part.first : part.first + part.limit])

    async def find_counts(self) -> tuple[OfferCount, ...]:
        kinds = Counter((o.provider, o.sku.gpu, o.region, str(o.tier)) for o in self._cheapest(OfferFilter()))
        return tuple(OfferCount(*kind, offers) for kind, offers in kinds.items())

    async def find_price_range(self, wanted: OfferFilter, count: int) -> OfferPrices | None:
        prices = [_place(o)[0] for o in self._cheapest(wanted)]
        return OfferPrices(prices[0], median(prices), prices[-1]) if prices else None

    async def find_cheapest_of_sellers(self, wanted: OfferFilter) -> tuple[SellersCheapest, ...]:
        first: dict[str, Offer] = {}
        for offer in self._cheapest(wanted):
            first.setdefault(offer.provider, offer)
        return tuple(SellersCheapest(name, o.offer_id, _place(o)[0]) for name, o in first.items())

    def _cheapest(self, wanted: OfferFilter) -> list[Offer]:
        rows = self._tables.offers.values()
        kinds = ((o, OfferCount(o.provider, o.sku.gpu, o.region, str(o.tier), 1)) for o in rows)
        return sorted((o for o, kind in kinds if matching((kind,), wanted)), key=_place)

    async def open_round(self, provider: str) -> Mapping[str, OfferMark]:
        feed = self._tables.feeds.get(provider)
        at = None if feed is None else feed.last_success_at
        return {
            key: OfferMark(fingerprint(o, at or o.observed_at), o.at_list_price().price_usd_per_node_hour)
            for key, o in self._tables.offers.items()
            if o.provider == provider
        }

    async def record_round(self, round_: PollRound, news: RoundNews | None) -> None:
        def apply() -> None:
            tables, provider = self._tables, round_.provider
            tables.rounds[provider] = round_
            tables.changes.extend(round_.changes)
            old = tables.feeds.get(provider, FeedHealth(provider, None, None, None, None, 0, 0, None))
            failures = 0 if round_.error is None else old.failures + 1
            old = replace(old, failures=failures, not_before=None)
            if news is None:
                since = old.stale_since or round_.started_at
                tables.feeds[provider] = replace(
                    old, last_error_at=round_.started_at, last_error=round_.error, stale_since=since
                )
                return
            tables.feeds[provider] = replace(
                old, last_success_at=round_.started_at, stale_since=None, offers=round_.offers
            )
            for key in news.gone:
                del tables.offers[key]
            for key, offer in tables.offers.items():
                if offer.provider == provider and offer.observed_at == old.last_success_at:
                    tables.offers[key] = replace(offer, observed_at=round_.started_at)
            tables.put_offers(*news.offers)
            for offer in news.offers:
                price = offer.price_usd_per_node_hour
                tables.points.append(
                    PricePoint(offer.offer_id, round_.started_at, price, offer.stock.nodes, available=True)
                )

        self._staged.append(apply)

    async def hold_back(self, provider: str, until: datetime) -> None:
        def apply() -> None:
            feed = self._tables.feeds[provider]
            self._tables.feeds[provider] = replace(feed, not_before=until)

        self._staged.append(apply)

    async def record_probe(self, report: ProbeReport) -> None:
        def apply() -> None:
            feeds, name = self._tables.feeds, report.provider
            before = feeds.get(name) or FeedHealth(name, None, None, None, None, 0, 0, None)
            feeds[name] = replace(before, probe=report)

        self._staged.append(apply)

    async def find_many(self, offer_ids: Collection[str]) -> tuple[Offer, ...]:
        return tuple(self._tables.offers[key] for key in offer_ids if key in self._tables.offers)

    async def find_current(
        self,
        *,
        provider: Names | None = None,
        gpu: Names | None = None,
        region: Names | None = None,
        tier: Names | None = None,
        without: Collection[str] = (),
    ) -> tuple[Offer, ...]:
        wanted = OfferFilter(provider, gpu, region, tier)
        return tuple(offer for offer in self._cheapest(wanted) if offer.provider not in without)

    async def find_offer(self, offer_id: str) -> Offer:
        if offer_id not in self._tables.offers:
            raise NotFound("offer", offer_id)
        return self._tables.offers[offer_id]

    async def find_peer_prices(self) -> tuple[PeerPrice, ...]:
        return tuple(
            PeerPrice(o.provider, o.sku.gpu, o.tier, o.price_usd_per_node_hour / o.sku.gpus_per_node)
            for o in self._tables.offers.values()
        )

    async def find_prices(self, offer_id: str, window: Window) -> tuple[PricePoint, ...]:
        mine = [p for p in self._tables.points if p.offer_id == offer_id and p.at < window.end]
        leading = [p for p in mine if p.at <= window.start][-1:]
        return (*leading, *(p for p in mine if p.at > window.start))

    async def find_prices_of(self, offer_ids: Collection[str], window: Window) -> tuple[PricePoint, ...]:
        return tuple([p for name in sorted(offer_ids) for p in await self.find_prices(name, window)])

    async def find_changes(self, since: datetime, limit: int) -> tuple[OfferChange, ...]:
        return tuple(change for change in self._tables.changes if change.at > since)[:limit]

    async def find_feeds(self) -> tuple[FeedHealth, ...]:
        return tuple(self._tables.feeds.values())

    async def find_rejected(self, provider: str) -> PollRound | None:
        return self._tables.rounds.get(provider)

    async def find_as_of(self) -> datetime | None:
        return max((offer.observed_at for offer in self._tables.offers.values()), default=None)


class Quarantine(Repository):
    """Stands in for ``SqlQuarantineRepository``."""

    async def find(self, provider: str | None) -> tuple[Quarantined, ...]:
        mine = [e for e in self._tables.quarantine.values() if provider in (None, e.offer.provider)]
        return tuple(sorted(mine, key=lambda e: (e.since, e.offer.offer_id)))

    async def find_one(self, offer_id: str) -> Quarantined:
        if offer_id not in self._tables.quarantine:
            raise NotFound("quarantined offer", offer_id)
        return self._tables.quarantine[offer_id]

    async def put(self, entry: Quarantined) -> None:
        self._staged.append(lambda: self._tables.quarantine.update({entry.offer.offer_id: entry}))

    async def change(self, entries: Sequence[Quarantined], gone: Collection[str]) -> None:
        def apply() -> None:
            for key in gone:
                del self._tables.quarantine[key]
            self._tables.quarantine.update({entry.offer.offer_id: entry for entry in entries})

        self._staged.append(apply)
