"""The stored price history: appending points, and queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Select, and_, func, literal, select, update

from broker.domain.basics.money import from_micro_usd, to_micro_usd
from broker.domain.basics.window import Window
from broker.domain.market.market import PricePoint
from broker.domain.market.market_history import as_of_point
from broker.domain.market.offer import Offer
from broker.domain.market.price_days import (
    Closes,
    PriceDay,
    PriceMark,
    SkuDay,
    closes,
    filled,
    price_days,
    start_of,
)
from broker.store.market import price_upkeep
from broker.store.market.kept_market import offer_from
from broker.store.market.price_queries import in_force_at, price_day_of
from broker.store.market.price_tables import EpochMicros, PriceDayRow, PriceRow, SeriesRow, SkuDayRow
from broker.store.tables import OfferRow
from broker.store.team_session import TeamSession
from broker.store.writes import batches, insert_many, table_of, upsert_many

MIXER = 2_654_435_761
"""Knuth's multiplicative hash: spreads consecutive ids over 32 bits."""
DAY = timedelta(days=1)


async def append_points(
    session: TeamSession, points: Sequence[PricePoint], offers: Mapping[str, Offer]
) -> None:
    """Appends a round's points. ``offers`` are current offers by id, including all new ones.

    A point replaces an earlier one of the same offer and time.
    """
    ids = await _series_ids(session, [point.offer_id for point in points])
    fresh = [_series_values(offers[p.offer_id]) for p in points if p.offer_id not in ids]
    await insert_many(session, SeriesRow, fresh)
    if fresh:
        ids |= await _series_ids(session, [values["offer_id"] for values in fresh])
    await upsert_many(session, PriceRow, [_point_values(ids[point.offer_id], point) for point in points])


async def keep_documents(session: TeamSession, offer_ids: Iterable[str]) -> None:
    """Stores the documents of offers that are about to be removed."""
    said = select(OfferRow.document).where(OfferRow.offer_id == SeriesRow.offer_id).scalar_subquery()
    for part in batches(offer_ids):
        statement = update(table_of(SeriesRow)).where(SeriesRow.offer_id.in_(part)).values(document=said)
        await session.execute(statement)


async def find_points(session: TeamSession, offer_id: str, window: Window) -> tuple[PricePoint, ...]:
    """Points of one offer in ``window``, after the one in force at its start."""
    points = (
        select(SeriesRow.offer_id, *_POINT)
        .join(SeriesRow, SeriesRow.series_id == PriceRow.series_id)
        .where(SeriesRow.offer_id == offer_id)
    )
    leading = points.where(PriceRow.at <= window.start).order_by(PriceRow.at.desc()).limit(1)
    inside = points.where(PriceRow.at > window.start, PriceRow.at < window.end).order_by(PriceRow.at)
    rows = [*await session.execute(leading), *await session.execute(inside)]
    return tuple(_point(*row) for row in rows)


async def find_points_of(
    session: TeamSession, offer_ids: Collection[str], window: Window
) -> tuple[PricePoint, ...]:
    """Points of several offers in ``window``, by offer and time, after those in force at its start."""
    in_force = in_force_at(window.start, inclusive=True)
    statement = (
        select(SeriesRow.offer_id, *_POINT)
        .join(
            PriceRow,
            and_(
                PriceRow.series_id == SeriesRow.series_id,
                PriceRow.at >= func.coalesce(in_force, literal(window.start, EpochMicros())),
                PriceRow.at < window.end,
            ),
        )
        .order_by(SeriesRow.offer_id, PriceRow.at)
    )
    found: list[PricePoint] = []
    for part in batches(sorted(offer_ids)):
        rows = await session.execute(statement.where(SeriesRow.offer_id.in_(part)))
        found.extend(_point(*row) for row in rows)
    return tuple(found)


class SqlPriceRepository:
    """The price history. The offer repository appends its points in each poll round."""

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def find_known_at(
        self, at: datetime, *, gpu: str | None = None, tier: str | None = None, provider: str | None = None
    ) -> tuple[Offer, ...]:
        """The market as it was known at ``at``, cheapest per GPU-hour first.

        Price and stock are those known at ``at``. All other fields of an offer are as they were last seen.
        """
        in_force = in_force_at(at, inclusive=True)
        statement = (
            _said(SeriesRow.offer_id, *_POINT, OfferRow.document, SeriesRow.document)
            .join(PriceRow, and_(PriceRow.series_id == SeriesRow.series_id, PriceRow.at == in_force))
            .where(PriceRow.available, *_filters(gpu, tier, provider))
        )
        found = [
            known_then(_point(*row[:5]), row[5] or row[6])
            for row in await self._session.execute(statement)
            if row[5] or row[6]
        ]
        return tuple(sorted(found, key=_by_price))

    async def find_points(self, offer_ids: Collection[str], window: Window) -> tuple[PricePoint, ...]:
        """Points of several offers in ``window``, after those in force at its start."""
        return await find_points_of(self._session, offer_ids, window)

    async def find_offers_known_in(
        self, window: Window, *, gpu: str | None = None, provider: str | None = None
    ) -> tuple[Offer, ...]:
        """The last state of every offer with a known price in ``window``."""
        known = (
            select(PriceRow.series_id)
            .where(PriceRow.series_id == SeriesRow.series_id, PriceRow.at < window.end)
            .limit(1)
            .exists()
        )
        statement = _said(OfferRow.document, SeriesRow.document).where(known, *_filters(gpu, None, provider))
        rows = await self._session.execute(statement.order_by(SeriesRow.offer_id))
        return tuple(offer_from(now or then, window.end) for now, then in rows if now or then)

    async def find_days(self, offer_id: str, days: Sequence[date], now: datetime) -> tuple[PriceDay, ...]:
        """Statistics of those ``days`` (in order) on which the offer was on sale; today up to ``now``."""
        if not days:
            return ()
        until = await self.find_summarised_until()
        stored = [day for day in days if until is not None and day < until]
        live = days[len(stored) :]
        mine = PriceDayRow.series_id.in_(select(SeriesRow.series_id).filter_by(offer_id=offer_id))
        found = list(filled([row for _, row in await self._find_changed_days(stored, mine)], stored))
        if live and start_of(live[0]) < now:
            window = Window(start_of(live[0]), min(start_of(live[-1]) + DAY, now))
            points = await find_points(self._session, offer_id, window)
            found.extend(day for day in price_days([_mark(p) for p in points], live, now) if day.seconds)
        return tuple(found)

    async def find_sku_days(
        self, gpu: str, tier: str, days: Sequence[date], now: datetime, *, by_provider: bool
    ) -> tuple[SkuDay, ...]:
        """Daily statistics of a GPU in one tier, over all providers or for each; today up to ``now``."""
        if not days:
            return ()
        until = await self.find_summarised_until()
        wanted = SkuDayRow.provider != "" if by_provider else SkuDayRow.provider == ""
        statement = (
            select(SkuDayRow)
            .where(SkuDayRow.gpu == gpu, SkuDayRow.tier == tier, wanted)
            .where(SkuDayRow.day >= days[0], SkuDayRow.day <= days[-1])
            .order_by(SkuDayRow.day, SkuDayRow.provider)
        )
        found = [_sku_day(row) for row in await self._session.scalars(statement)]
        since = until or await price_upkeep.find_first_day(self._session)
        live = [day for day in days if since is not None and day >= since and start_of(day) < now]
        for day in live:
            fresh = await price_upkeep.sku_days_of(self._session, day, now, _filters(gpu, tier, None))
            found.extend(one for one in fresh if (one.provider is not None) == by_provider)
        return tuple(found)

    async def find_closes(
        self,
        days: Sequence[date],
        *,
        offer_ids: Collection[str] | None = None,
        gpu: str | None = None,
        tier: str | None = None,
        limit: int = 200,
    ) -> tuple[Closes, ...]:
        """Prices at the ends of ``days`` (in order) of the named offers.

        Without names it returns at most ``limit`` matching offers with a summarised day: an even sample that
        is the same in every call until another day is summarised.
        """
        wanted = select(
            SeriesRow.series_id, SeriesRow.offer_id, SeriesRow.provider, SeriesRow.gpu, SeriesRow.tier
        )
        if offer_ids is None:
            has_day = select(PriceDayRow.day).where(PriceDayRow.series_id == SeriesRow.series_id).exists()
            chosen = wanted.where(*_filters(gpu, tier, None), has_day)
            drawn = chosen.order_by(SeriesRow.series_id * MIXER % 2**32)
            series = list(await self._session.execute(drawn.limit(limit)))
        else:
            series = [
                row
                for part in batches(offer_ids)
                for row in await self._session.execute(wanted.where(SeriesRow.offer_id.in_(part)))
            ]
        known: defaultdict[int, list[PriceDay]] = defaultdict(list)
        ids = [row.series_id for row in series]
        for start in range(0, len(ids), 500):
            part = PriceDayRow.series_id.in_(ids[start : start + 500])
            for series_id, day in await self._find_changed_days(days, part):
                known[series_id].append(day)
        return tuple(
            Closes(row.offer_id, row.provider, row.gpu, row.tier, tuple(closes(known[row.series_id], days)))
            for row in series
        )

    async def find_summarised_until(self) -> date | None:
        """The first UTC day that is not summarised; None before the first summary."""
        return await price_upkeep.find_summarised_until(self._session)

    async def find_next_day(self) -> date | None:
        """The day to summarise next, at first the day of the first point; None without any points."""
        until = await price_upkeep.find_summarised_until(self._session)
        return until or await price_upkeep.find_first_day(self._session)

    async def summarise(self, day: date) -> int:
        """Stores the statistics of a past day for every changed offer and every SKU; returns their number."""
        return await price_upkeep.summarise(self._session, day)

    async def thin(self, before: date) -> int:
        """Deletes all but the last point per offer and summarised day before ``before``; the number."""
        return await price_upkeep.thin(self._session, before)

    async def forget(self, before: date) -> int:
        """Deletes older history except prices still in force, and returns the number of deleted points."""
        return await price_upkeep.forget(self._session, before)

    async def _find_changed_days(self, days: Sequence[date], of: Any) -> list[tuple[int, PriceDay]]:
        """Stored days of matching series, by series and day, after the last one before ``days``."""
        if not days:
            return []
        before = (
            select(PriceDayRow.series_id, func.max(PriceDayRow.day).label("day"))
            .where(of, PriceDayRow.day < days[0])
            .group_by(PriceDayRow.series_id)
            .subquery()
        )
        leading = select(PriceDayRow).join(
            before, and_(PriceDayRow.series_id == before.c.series_id, PriceDayRow.day == before.c.day)
        )
        inside = (
            select(PriceDayRow)
            .where(of, PriceDayRow.day >= days[0], PriceDayRow.day <= days[-1])
            .order_by(PriceDayRow.series_id, PriceDayRow.day)
        )
        rows = [*await self._session.scalars(leading), *await self._session.scalars(inside)]
        return [(row.series_id, price_day_of(row)) for row in rows]


_POINT = (PriceRow.at, PriceRow.micro_usd, PriceRow.stock_nodes, PriceRow.available)


def known_then(point: PricePoint, document: Mapping[str, Any]) -> Offer:
    """The offer of a document, with the price and stock of a point."""
    return as_of_point(offer_from(document, point.at), point)


def _by_price(offer: Offer) -> tuple[Decimal, str]:
    return offer.price_usd_per_node_hour / max(1, offer.sku.gpus_per_node), offer.offer_id


def _said(*columns: Any) -> Select[Any]:
    """Series, with the documents of offers that are still on sale."""
    return (
        select(*columns).select_from(SeriesRow).outerjoin(OfferRow, OfferRow.offer_id == SeriesRow.offer_id)
    )


def _filters(gpu: str | None, tier: str | None, provider: str | None) -> tuple[Any, ...]:
    wanted = ((SeriesRow.gpu, gpu), (SeriesRow.tier, tier), (SeriesRow.provider, provider))
    return tuple(column == word for column, word in wanted if word is not None)


async def _series_ids(session: TeamSession, offer_ids: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in batches(offer_ids):
        rows = await session.execute(
            select(SeriesRow.offer_id, SeriesRow.series_id).where(SeriesRow.offer_id.in_(part))
        )
        found |= {offer_id: series_id for offer_id, series_id in rows}
    return found


def _series_values(offer: Offer) -> dict[str, Any]:
    return {
        "offer_id": offer.offer_id,
        "provider": offer.provider,
        "gpu": offer.sku.gpu,
        "tier": offer.tier.value,
        "gpus_per_node": offer.sku.gpus_per_node,
        "document": None,
    }


def _point_values(series_id: int, point: PricePoint) -> dict[str, Any]:
    return {
        "series_id": series_id,
        "at": point.at,
        "micro_usd": to_micro_usd(point.price_usd_per_node_hour),
        "stock_nodes": point.stock_nodes,
        "available": point.available,
    }


def _point(offer_id: str, at: datetime, micro_usd: int, nodes: int | None, available: bool) -> PricePoint:
    return PricePoint(offer_id, at, from_micro_usd(micro_usd), nodes, available)


def _mark(point: PricePoint) -> PriceMark:
    return PriceMark(point.at, to_micro_usd(point.price_usd_per_node_hour), point.available)


def _sku_day(row: SkuDayRow) -> SkuDay:
    return SkuDay(
        gpu=row.gpu,
        tier=row.tier,
        day=row.day,
        provider=row.provider or None,
        least=row.least,
        median=row.median,
        most=row.most,
        offers=row.offers,
        providers=row.providers,
    )
