"""The market in memory: offers on sale, their points and feeds, and prices that are not believed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from broker.domain.errors import NotFound
from broker.domain.market import FeedHealth, OfferChange, OfferLabel, PollRound, PricePoint
from broker.domain.offer import Offer
from broker.domain.price_gate import PeerPrice, Quarantined
from broker.domain.probing import ProbeReport
from broker.domain.round_news import OfferMark, RoundNews, fingerprint
from broker.domain.window import Window
from tests.fakes.tables import Repository


class Offers(Repository):
    """Fulfils ``OfferRepository``."""

    async def find_labels(self) -> tuple[OfferLabel, ...]:
        return tuple(
            OfferLabel(
                o.offer_id,
                o.provider,
                o.sku.gpu,
                o.region,
                o.tier,
                o.price_usd_per_node_hour / o.sku.gpus_per_node,
                o.price_usd_per_node_hour,
                o.stock.nodes,
            )
            for o in await self.find_current()
        )

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
        provider: str | None = None,
        gpu: str | None = None,
        region: str | None = None,
        tier: str | None = None,
        without: Collection[str] = (),
    ) -> tuple[Offer, ...]:
        found = [
            offer
            for offer in self._tables.offers.values()
            if provider in (None, offer.provider)
            and offer.provider not in without
            and gpu in (None, offer.sku.gpu)
            and region in (None, offer.region)
            and tier in (None, offer.tier)
        ]
        return tuple(sorted(found, key=lambda o: o.price_usd_per_node_hour / o.sku.gpus_per_node))

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
    """Fulfils ``QuarantineRepository``."""

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
