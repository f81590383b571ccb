"""Stored offers, their changes, and the health of feeds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import selectinload

from broker.domain.basics.errors import NotFound
from broker.domain.basics.money import from_micro_usd, to_micro_usd
from broker.domain.basics.window import Window
from broker.domain.market.market import ChangeKind, FeedHealth, OfferChange, PollRound, PricePoint
from broker.domain.market.offer import Offer, RejectedRow, Tier
from broker.domain.market.offer_pages import (
    Names,
    OfferCount,
    OfferFilter,
    OfferOrder,
    OfferPlace,
    OfferPrices,
    OfferSlice,
    SellersCheapest,
    price_rank,
)
from broker.domain.market.price_gate import PeerPrice
from broker.domain.market.probing import ProbeReport
from broker.domain.market.round_news import OfferMark, RoundNews, dated
from broker.store.columns import storable
from broker.store.documents import from_document, to_document
from broker.store.market.kept_market import KeptMarket, digest_of, offer_from
from broker.store.market.offer_pages import (
    CHEAPEST_FIRST,
    find_after,
    find_cheapest_of_sellers,
    find_pool_gpus,
    find_price_range,
    find_slice,
    narrowed,
)
from broker.store.market.price_history import PriceState, offer_is_available, points_of_change
from broker.store.market.prices import append_points, find_points, find_points_of, keep_documents
from broker.store.tables import FeedRow, OfferChangeRow, OfferRow, RoundRow
from broker.store.team_session import TeamSession
from broker.store.writes import (
    Values,
    batches,
    delete_many,
    insert_many,
    insert_or_keep,
    table_of,
    upsert_many,
)


class SqlOfferRepository:
    """Current offers, their history, and the health of feeds."""

    def __init__(self, session: TeamSession, kept: KeptMarket) -> None:
        self._session = session
        self._kept = kept

    async def open_round(self, provider: str) -> Mapping[str, OfferMark]:
        """Marks of all current offers of ``provider``.

        It writes the feed's row first, so that a second round of the same provider waits until this one is
        committed.
        """
        await self._open_feed(provider)
        await self._session.execute(select(FeedRow.provider).filter_by(provider=provider).with_for_update())
        statement = select(OfferRow.offer_id, OfferRow.fingerprint, OfferRow.list_per_node_hour_micro_usd)
        rows = await self._session.execute(statement.where(OfferRow.provider == provider))
        return {
            offer_id: OfferMark(fingerprint, from_micro_usd(price)) for offer_id, fingerprint, price in rows
        }

    async def record_round(self, round_: PollRound, news: RoundNews | None) -> None:
        """Stores a poll round. Only ``news`` is written; all other current offers count as seen again.

        ``news`` None (a failed poll) leaves the current offers unchanged.
        """
        await self._record_health(round_, failed=news is None)
        round_id = await self._record_poll(round_)
        if news is not None:
            await self._record_news(round_, round_id, news)

    async def find_current(
        self,
        *,
        provider: Names | None = None,
        gpu: Names | None = None,
        region: Names | None = None,
        tier: Names | None = None,
        without: Collection[str] = (),
    ) -> tuple[Offer, ...]:
        """Current offers that equal the filters, except of the providers ``without``.

        They are ordered by price per GPU-hour, cheapest first.
        """
        wanted = OfferFilter(provider, gpu, region, tier)
        if wanted == OfferFilter():
            return await self._kept.offers(self._session, without)
        statement = narrowed(_OFFERS, wanted).where(OfferRow.provider.not_in(sorted(without)))
        rows = await self._session.execute(statement.order_by(*CHEAPEST_FIRST))
        return tuple(offer_from(*row) for row in rows)

    async def find_after(
        self, wanted: OfferFilter, after: OfferPlace | None, limit: int
    ) -> tuple[Offer, ...]:
        """At most ``limit`` of the offers ``wanted`` after the position ``after``, cheapest first."""
        return await find_after(self._session, wanted, after, limit)

    async def find_pool_gpus(
        self, pool_ids: Collection[str], gpu: Names | None
    ) -> Mapping[str, tuple[int | None, ...]]:
        """By pool, the size that each current offer in it states; ``gpu`` filters offers if it is given."""
        return await find_pool_gpus(self._session, pool_ids, gpu)

    async def find_slice(self, part: OfferSlice, order: OfferOrder, *, descending: bool) -> tuple[str, ...]:
        """Ids of the offers of a slice; offers without a stated number of nodes sort first."""
        return await find_slice(self._session, part, order, descending=descending)

    async def find_counts(self) -> tuple[OfferCount, ...]:
        """Number of current offers by provider, GPU, region and tier."""
        return await self._kept.counts(self._session)

    async def find_price_range(self, wanted: OfferFilter, count: int) -> OfferPrices | None:
        """Minimum, median and maximum price of the ``count`` offers ``wanted``; None if there are none."""
        return await find_price_range(self._session, wanted, count)

    async def find_cheapest_of_sellers(self, wanted: OfferFilter) -> tuple[SellersCheapest, ...]:
        """The cheapest offer of each provider among ``wanted``, cheapest first."""
        return await find_cheapest_of_sellers(self._session, wanted)

    async def find_many(self, offer_ids: Collection[str]) -> tuple[Offer, ...]:
        """The current offers among ``offer_ids``."""
        found: list[Offer] = []
        for part in batches(offer_ids):
            rows = await self._session.execute(_OFFERS.where(OfferRow.offer_id.in_(part)))
            found.extend(offer_from(*row) for row in rows)
        return tuple(found)

    async def find_offer(self, offer_id: str) -> Offer:
        """One current offer. Raises NotFound."""
        row = (await self._session.execute(_OFFERS.where(OfferRow.offer_id == offer_id))).first()
        if row is None:
            raise NotFound("offer", offer_id, "it may have been sold or withdrawn since")
        return offer_from(*row)

    async def find_peer_prices(self) -> tuple[PeerPrice, ...]:
        """Current prices of all providers by GPU and tier."""
        statement = select(
            OfferRow.provider, OfferRow.gpu, OfferRow.tier, OfferRow.price_per_gpu_hour_micro_usd
        )
        rows = await self._session.execute(statement)
        return tuple(
            PeerPrice(seller, gpu, Tier(tier), from_micro_usd(usd)) for seller, gpu, tier, usd in rows
        )

    async def find_prices(self, offer_id: str, window: Window) -> tuple[PricePoint, ...]:
        """Price points in ``window``, after the one in force at its start."""
        return await find_points(self._session, offer_id, window)

    async def find_prices_of(self, offer_ids: Collection[str], window: Window) -> tuple[PricePoint, ...]:
        """Price points of several offers, by offer and time."""
        return await find_points_of(self._session, offer_ids, window)

    async def find_changes(self, since: datetime, limit: int) -> tuple[OfferChange, ...]:
        """Changes after ``since``, oldest first."""
        statement = (
            select(OfferChangeRow)
            .where(OfferChangeRow.at > since)
            .order_by(OfferChangeRow.at, OfferChangeRow.change_id)
            .limit(limit)
        )
        return tuple(_offer_change(row) for row in await self._session.scalars(statement))

    async def find_feeds(self) -> tuple[FeedHealth, ...]:
        """Health of every feed ever polled, by provider."""
        statement = select(FeedRow).order_by(FeedRow.provider).execution_options(populate_existing=True)
        return tuple(_feed_health(row) for row in await self._session.scalars(statement))

    async def hold_back(self, provider: str, until: datetime) -> None:
        """Stores until when a feed must not be polled; its next round deletes that."""
        feed = table_of(FeedRow)
        await self._session.execute(update(feed).where(feed.c.provider == provider).values(not_before=until))

    async def record_probe(self, report: ProbeReport) -> None:
        """Stores the report of a probe; replaces the provider's previous one."""
        await self._open_feed(report.provider)
        feed = table_of(FeedRow)
        values = {"probe": to_document(report)}
        await self._session.execute(update(feed).where(feed.c.provider == report.provider).values(values))

    async def find_rejected(self, provider: str) -> PollRound | None:
        """The last round of a provider with its rejected rows."""
        statement = (
            select(RoundRow)
            .where(RoundRow.provider == provider)
            .options(selectinload(RoundRow.changes))
            .order_by(RoundRow.round_id.desc())
            .limit(1)
        )
        row = await self._session.scalar(statement)
        return None if row is None else _poll_round(row)

    async def find_as_of(self) -> datetime | None:
        """When the newest current offer was observed; None without offers."""
        mine = OfferRow.provider == FeedRow.provider
        dated = select(func.max(OfferRow.observed_at)).where(mine).scalar_subquery()
        undated = select(OfferRow.offer_id).where(mine, OfferRow.observed_at.is_(None)).exists()
        rows = await self._session.execute(select(dated, FeedRow.last_success_at, undated))
        seen = [at for own, in_round, any_undated in rows for at in (own, in_round if any_undated else None)]
        return max((at for at in seen if at is not None), default=None)

    async def _record_health(self, round_: PollRound, *, failed: bool) -> None:
        await self._open_feed(round_.provider)
        values: dict[str, object] = {"seconds": round_.seconds}
        if not failed:
            values |= {"last_success_at": round_.started_at, "stale_since": None}
            values |= {"offers": round_.offers, "rejected": len(round_.rejected)}
        else:
            values["stale_since"] = func.coalesce(FeedRow.stale_since, round_.started_at)
        values |= {"failures": 0, "not_before": None}
        if failed or round_.error is not None:
            values |= {"last_error_at": round_.started_at, "last_error": round_.error or ""}
            values |= {"failures": FeedRow.failures + 1}
        feed = table_of(FeedRow)
        await self._session.execute(update(feed).where(feed.c.provider == round_.provider).values(values))

    async def _open_feed(self, provider: str) -> None:
        await insert_or_keep(
            self._session, FeedRow, {"provider": provider, "offers": 0, "rejected": 0, "failures": 0}
        )

    async def _record_poll(self, round_: PollRound) -> int:
        """Stores the round, and deletes the text of rejected rows of older rounds."""
        older = update(RoundRow).where(RoundRow.provider == round_.provider)
        await self._session.execute(
            older.where(RoundRow.rejected_rows.is_not(None)).values(rejected_rows=None),
            execution_options={"synchronize_session": False},
        )
        inserted = insert(table_of(RoundRow)).values(_round_values(round_)).returning(RoundRow.round_id)
        round_id: int = (await self._session.execute(inserted)).scalar_one()
        changes = [_change_values(change, round_id) for change in round_.changes]
        await insert_many(self._session, OfferChangeRow, changes)
        return round_id

    async def _record_news(self, round_: PollRound, round_id: int, news: RoundNews) -> None:
        after = {offer.offer_id: offer for offer in news.offers}
        before, gone = await self._price_states(news.touched)
        points = points_of_change(before, after, round_.started_at)
        await append_points(self._session, points, after)
        await keep_documents(self._session, news.gone)
        await delete_many(self._session, OfferRow, OfferRow.offer_id, news.gone)
        for part in batches(sorted(after)):
            rows = [_offer_values(after[key], news.fingerprints[key], round_, round_id) for key in part]
            await upsert_many(self._session, OfferRow, rows)
        await self._record_digest(round_.provider, (*gone, *news.fingerprints.values()))

    async def _record_digest(self, provider: str, changed: Collection[str]) -> None:
        """Updates the digest for offers with the fingerprints ``changed``, which were added or removed."""
        if changed:
            feed = table_of(FeedRow)
            before = await self._session.scalar(select(feed.c.offers_digest).filter_by(provider=provider))
            values = {"offers_digest": digest_of(changed, before or "")}
            await self._session.execute(update(feed).where(feed.c.provider == provider).values(values))

    async def _price_states(self, offer_ids: Iterable[str]) -> tuple[dict[str, PriceState], list[str]]:
        """Stored price states of offers before they are overwritten, and their fingerprints."""
        statement = select(
            OfferRow.offer_id,
            OfferRow.price_per_node_hour_micro_usd,
            OfferRow.stock_nodes,
            OfferRow.available,
            OfferRow.fingerprint,
        )
        states: dict[str, PriceState] = {}
        fingerprints: list[str] = []
        for part in batches(offer_ids):
            for offer_id, usd, nodes, available, mark in await self._session.execute(
                statement.where(OfferRow.offer_id.in_(part))
            ):
                states[offer_id] = PriceState(usd, nodes, available)
                fingerprints.append(mark)
        return states, fingerprints


_SEEN_AT = func.coalesce(OfferRow.observed_at, FeedRow.last_success_at)
_OFFERS = select(OfferRow.document, _SEEN_AT).join(FeedRow, FeedRow.provider == OfferRow.provider)


def _offer_values(offer: Offer, fingerprint: str, round_: PollRound, round_id: int) -> Values:
    document = to_document(offer)
    del document["observed_at"]
    per_gpu_usd = offer.price_usd_per_node_hour / max(1, offer.sku.gpus_per_node)
    return {
        "offer_id": offer.offer_id,
        "provider": offer.provider,
        "round_id": round_id,
        "sku": offer.sku.name,
        "gpu": offer.sku.gpu,
        "region": offer.region,
        "tier": offer.tier.value,
        "price_rank": price_rank(per_gpu_usd),
        "price_per_gpu_hour_micro_usd": to_micro_usd(per_gpu_usd),
        "price_per_node_hour_micro_usd": to_micro_usd(offer.price_usd_per_node_hour),
        "stock_nodes": offer.stock.nodes,
        "pool_id": None if offer.stock.pool is None else storable(offer.stock.pool.pool_id),
        "pool_gpus": None if offer.stock.pool is None else offer.stock.pool.gpus,
        "available": offer_is_available(offer),
        "list_per_node_hour_micro_usd": to_micro_usd(offer.at_list_price().price_usd_per_node_hour),
        "fingerprint": fingerprint,
        "observed_at": dated(offer, round_.started_at),
        "document": document,
    }


def _round_values(round_: PollRound) -> Values:
    rejected = to_document(round_.rejected)
    return {
        "provider": round_.provider,
        "started_at": round_.started_at,
        "seconds": round_.seconds,
        "offers": round_.offers,
        "rejected": len(rejected),
        "rejected_rows": rejected or None,
        "error": round_.error,
    }


def _change_values(change: OfferChange, round_id: int) -> Values:
    before, after = change.before_usd_per_node_hour, change.after_usd_per_node_hour
    return {
        "round_id": round_id,
        "kind": change.kind.value,
        "offer_id": change.offer_id,
        "provider": change.provider,
        "at": change.at,
        "before_micro_usd": None if before is None else to_micro_usd(before),
        "after_micro_usd": None if after is None else to_micro_usd(after),
    }


def _offer_change(row: OfferChangeRow) -> OfferChange:
    before, after = row.before_micro_usd, row.after_micro_usd
    return OfferChange(
        kind=ChangeKind(row.kind),
        offer_id=row.offer_id,
        provider=row.provider,
        at=row.at,
        before_usd_per_node_hour=None if before is None else from_micro_usd(before),
        after_usd_per_node_hour=None if after is None else from_micro_usd(after),
    )


def _feed_health(row: FeedRow) -> FeedHealth:
    return FeedHealth(
        provider=row.provider,
        last_success_at=row.last_success_at,
        last_error_at=row.last_error_at,
        last_error=row.last_error,
        stale_since=row.stale_since,
        offers=row.offers,
        rejected=row.rejected,
        seconds=row.seconds,
        failures=row.failures,
        not_before=row.not_before,
        probe=None if row.probe is None else from_document(ProbeReport, row.probe),
    )


def _poll_round(row: RoundRow) -> PollRound:
    return PollRound(
        provider=row.provider,
        started_at=row.started_at,
        seconds=row.seconds,
        offers=row.offers,
        rejected=tuple(from_document(RejectedRow, rejected) for rejected in row.rejected_rows or ()),
        changes=tuple(_offer_change(change) for change in row.changes),
        error=row.error,
    )
