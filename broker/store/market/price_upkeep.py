"""Maintenance of the price history: daily summaries, thinning of points, and deletion of old ones.

A day is summarised once, when it is over. Its changes are read with one index seek per series, a few thousand
series per statement.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Any

from sqlalchemy import and_, bindparam, delete, func, select

from broker.domain.market.price_days import (
    PriceDay,
    PriceMark,
    SkuDay,
    SoldDay,
    price_day,
    sku_days,
    start_of,
)
from broker.store.market.price_queries import in_force_at
from broker.store.market.price_tables import PriceDayRow, PriceRow, SeriesRow, SkuDayRow
from broker.store.tables import MetaRow
from broker.store.team_session import TeamSession
from broker.store.writes import insert_many, row_count, table_of, upsert_many

SUMMARISED_UNTIL = "prices_summarised_until"
"""Name in ``meta`` of the first UTC day that is not summarised."""
THINNED_UNTIL = "prices_thinned_until"
"""Name in ``meta`` of the first UTC day whose points are complete."""
SERIES_AT_ONCE = 5000
DAY = timedelta(days=1)


async def find_summarised_until(session: TeamSession) -> date | None:
    """The first UTC day that is not summarised; None before the first summary."""
    return await _find_day(session, SUMMARISED_UNTIL)


async def _find_day(session: TeamSession, name: str) -> date | None:
    value = await session.scalar(select(MetaRow.value).where(MetaRow.name == name))
    return None if value is None else date.fromisoformat(value)


async def _put_day(session: TeamSession, name: str, day: date) -> None:
    await upsert_many(session, MetaRow, [{"name": name, "value": day.isoformat()}])


async def find_first_day(session: TeamSession) -> date | None:
    """The UTC day of the first point; None if there is none."""
    first: datetime | None = await session.scalar(select(func.min(PriceRow.at)))
    return None if first is None else first.date()


async def sku_days_of(
    session: TeamSession, day: date, now: datetime, of: Sequence[Any]
) -> tuple[SkuDay, ...]:
    """Statistics of a day up to ``now`` for the series that match ``of``."""
    sold = [one async for many in _sold(session, day, now, of) for _, one in many]
    return sku_days(sold)


async def summarise(session: TeamSession, day: date) -> int:
    """Stores the statistics of ``day``, the first past day without them, and returns their number."""
    stored, all_sold = 0, list[SoldDay]()
    async for many in _sold(session, day, start_of(day) + DAY, ()):
        changed = [_day_values(series_id, one.day) for series_id, one in many if one.day.changes]
        await insert_many(session, PriceDayRow, changed)
        stored += len(changed)
        all_sold.extend(one for _, one in many)
    skus = [_sku_values(one) for one in sku_days(all_sold)]
    await insert_many(session, SkuDayRow, skus)
    await _put_day(session, SUMMARISED_UNTIL, day + DAY)
    return stored + len(skus)


async def _sold(
    session: TeamSession, day: date, until: datetime, of: Sequence[Any]
) -> AsyncIterator[list[tuple[int, SoldDay]]]:
    """Offers that were on sale or changed on a day, a few thousand series at a time, by series id."""
    last: int = await session.scalar(select(func.max(SeriesRow.series_id))) or 0
    for first in range(0, last + 1, SERIES_AT_ONCE):
        some = (SeriesRow.series_id >= first, SeriesRow.series_id < first + SERIES_AT_ONCE, *of)
        series = select(SeriesRow.series_id, SeriesRow.provider, SeriesRow.gpu, SeriesRow.tier)
        rows = (await session.execute(series.add_columns(SeriesRow.gpus_per_node).where(*some))).all()
        marks = await _marks(session, day, some)
        found = []
        for series_id, provider, gpu, tier, gpus_per_node in rows:
            before, within = marks.get(series_id, (None, []))
            figures = price_day(day, before, within, until)
            if figures is not None:
                found.append((series_id, SoldDay(provider, gpu, tier, gpus_per_node, figures)))
        if found:
            yield found


_Marks = dict[int, tuple[PriceMark | None, list[PriceMark]]]


async def _marks(session: TeamSession, day: date, some: Sequence[Any]) -> _Marks:
    """For each series the mark in force at the start of a day, and those within it."""
    start = start_of(day)
    columns = (SeriesRow.series_id, PriceRow.at, PriceRow.micro_usd, PriceRow.available)
    before = select(*columns).join(
        PriceRow,
        and_(PriceRow.series_id == SeriesRow.series_id, PriceRow.at == in_force_at(start, inclusive=False)),
    )
    inside = select(*columns).join(
        PriceRow,
        and_(PriceRow.series_id == SeriesRow.series_id, PriceRow.at >= start, PriceRow.at < start + DAY),
    )
    found: _Marks = {}
    for series_id, at, usd, on_sale in await session.execute(before.where(*some)):
        found[series_id] = (PriceMark(at, usd, on_sale), [])
    for series_id, at, usd, on_sale in await session.execute(inside.where(*some).order_by(PriceRow.at)):
        found.setdefault(series_id, (None, []))[1].append(PriceMark(at, usd, on_sale))
    return found


async def thin(session: TeamSession, before: date) -> int:
    """Deletes all but the last point per offer and summarised day before ``before``; returns the number."""
    until = await find_summarised_until(session)
    since = await _find_day(session, THINNED_UNTIL) or await find_first_day(session)
    if until is None or since is None or min(before, until) <= since:
        return 0
    end = min(before, until)
    went, last = 0, await session.scalar(select(func.max(SeriesRow.series_id))) or 0
    within = and_(
        PriceRow.series_id == SeriesRow.series_id, PriceRow.at >= start_of(since), PriceRow.at < start_of(end)
    )
    for first in range(0, last + 1, SERIES_AT_ONCE):
        some = (SeriesRow.series_id >= first, SeriesRow.series_id < first + SERIES_AT_ONCE)
        points = select(PriceRow.series_id, PriceRow.at).select_from(SeriesRow).join(PriceRow, within)
        rows = await session.execute(points.where(*some).order_by(PriceRow.series_id, PriceRow.at))
        stale = [
            {"of_series": series_id, "of_at": at}
            for (series_id, at), after in pairwise(rows.all())
            if (series_id, at.date()) == (after.series_id, after.at.date())
        ]
        if stale:
            await session.execute(_ONE_POINT, stale)
        went += len(stale)
    await _put_day(session, THINNED_UNTIL, end)
    return went


_ONE_POINT = delete(table_of(PriceRow)).where(
    table_of(PriceRow).c.series_id == bindparam("of_series"), table_of(PriceRow).c.at == bindparam("of_at")
)


async def forget(session: TeamSession, before: date) -> int:
    """Deletes points and daily statistics before ``before``, except prices that are still in force.

    Series of withdrawn offers without any points left are deleted too. Returns the number of deleted points.
    """
    start = start_of(before)
    points, days, series = table_of(PriceRow), table_of(PriceDayRow), table_of(SeriesRow)
    later = points.alias()
    superseded = (
        select(later.c.at)
        .where(later.c.series_id == points.c.series_id, later.c.at > points.c.at, later.c.at <= start)
        .exists()
    )
    over = points.c.available.is_(False)
    went = await session.execute(delete(points).where(points.c.at < start, superseded | over))
    next_day = days.alias()
    replaced = (
        select(next_day.c.day)
        .where(next_day.c.series_id == days.c.series_id, next_day.c.day > days.c.day)
        .where(next_day.c.day <= before)
        .exists()
    )
    closed = days.c.on_sale.is_(False)
    await session.execute(delete(days).where(days.c.day < before, replaced | closed))
    await session.execute(delete(table_of(SkuDayRow)).where(SkuDayRow.day < before))
    pointless = ~select(points.c.at).where(points.c.series_id == series.c.series_id).exists()
    dayless = ~select(days.c.day).where(days.c.series_id == series.c.series_id).exists()
    await session.execute(delete(series).where(pointless, dayless))
    return row_count(went)


def _day_values(series_id: int, day: PriceDay) -> dict[str, Any]:
    return {
        "series_id": series_id,
        "day": day.day,
        "least": day.least,
        "median": day.median,
        "most": day.most,
        "last": day.last,
        "seconds": day.seconds,
        "changes": day.changes,
        "on_sale": day.on_sale,
    }


def _sku_values(day: SkuDay) -> dict[str, Any]:
    return {
        "gpu": day.gpu,
        "tier": day.tier,
        "day": day.day,
        "provider": day.provider or "",
        "least": day.least,
        "median": day.median,
        "most": day.most,
        "offers": day.offers,
        "providers": day.providers,
    }
