"""Pages of current offers, read by index, so that the work does not grow with the market."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from decimal import Decimal
from statistics import median
from typing import Any, TypeVarTuple

from sqlalchemy import ColumnElement, Select, func, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from broker.domain.basics.money import from_micro_usd
from broker.domain.market.offer import Offer
from broker.domain.market.offer_pages import (
    Names,
    OfferFilter,
    OfferOrder,
    OfferPlace,
    OfferPrices,
    OfferSlice,
    SellersCheapest,
    price_rank,
)
from broker.store.columns import storable
from broker.store.market.kept_market import offer_from
from broker.store.tables import FeedRow, OfferRow
from broker.store.team_session import TeamSession
from broker.store.writes import batches

Columns = TypeVarTuple("Columns")
CHEAPEST_FIRST = (OfferRow.price_rank, OfferRow.offer_id)
COLUMNS: Mapping[OfferOrder, InstrumentedAttribute[Any]] = {
    OfferOrder.GPU_HOUR: OfferRow.price_rank,
    OfferOrder.NODE_HOUR: OfferRow.price_per_node_hour_micro_usd,
    OfferOrder.NODES: OfferRow.stock_nodes,
}


def narrowed(statement: Select[*Columns], wanted: OfferFilter) -> Select[*Columns]:
    """``statement`` over offers with the filter ``wanted``."""
    filters: tuple[tuple[InstrumentedAttribute[str], Names | None], ...] = (
        (OfferRow.provider, wanted.provider),
        (OfferRow.gpu, wanted.gpu),
        (OfferRow.region, wanted.region),
        (OfferRow.tier, wanted.tier),
    )
    return statement.where(*(_is_any(column, word) for column, word in filters if word is not None))


def _is_any(column: InstrumentedAttribute[str], word: Names) -> ColumnElement[bool]:
    if isinstance(word, str):
        return column == storable(str(word))
    return column.in_([storable(str(one)) for one in word])


async def find_after(
    session: TeamSession, wanted: OfferFilter, after: OfferPlace | None, limit: int
) -> tuple[Offer, ...]:
    """At most ``limit`` of the offers ``wanted`` after a place, cheapest per GPU-hour first."""
    statement = narrowed(select(OfferRow.provider, OfferRow.document, OfferRow.observed_at), wanted)
    if after is not None:
        place = (price_rank(after.usd_per_gpu_hour), storable(after.offer_id))
        statement = statement.where(tuple_(*CHEAPEST_FIRST) > tuple_(*place))
    rows = (await session.execute(statement.order_by(*CHEAPEST_FIRST).limit(limit))).all()
    feeds = await session.execute(select(FeedRow.provider, FeedRow.last_success_at))
    seen_at = {provider: at for provider, at in feeds if at is not None}
    return tuple(offer_from(document, at or seen_at[provider]) for provider, document, at in rows)


async def find_pool_gpus(
    session: TeamSession, pool_ids: Collection[str], gpu: Names | None
) -> Mapping[str, tuple[int | None, ...]]:
    """GPU counts of pools as each of their current offers (of ``gpu``, if given) states them."""
    statement = narrowed(select(OfferRow.pool_id, OfferRow.pool_gpus), OfferFilter(gpu=gpu))
    said: defaultdict[str, list[int | None]] = defaultdict(list)
    for part in batches(sorted(pool_ids)):
        for pool_id, gpus in await session.execute(statement.where(OfferRow.pool_id.in_(part))):
            said[str(pool_id)].append(gpus)
    return {pool_id: tuple(words) for pool_id, words in said.items()}


async def find_slice(
    session: TeamSession, part: OfferSlice, order: OfferOrder, *, descending: bool
) -> tuple[str, ...]:
    """Ids of the offers of a slice; offers without a count come first."""
    column, last = COLUMNS[order], OfferRow.offer_id
    keys = (column.desc(), last.desc()) if descending else (column.asc(), last.asc())
    if order is OfferOrder.NODES:
        keys = (keys[0].nulls_last() if descending else keys[0].nulls_first(), keys[1])
    statement = narrowed(select(OfferRow.offer_id), part.wanted).order_by(*keys)
    return tuple(await session.scalars(statement.offset(part.first).limit(part.limit)))


async def find_price_range(session: TeamSession, wanted: OfferFilter, count: int) -> OfferPrices | None:
    """Minimum, median and maximum price of the ``count`` offers ``wanted``; None if there are none."""
    if count < 1:
        return None
    up, down = CHEAPEST_FIRST, tuple(column.desc() for column in CHEAPEST_FIRST)
    ids = narrowed(select(OfferRow.offer_id), wanted)
    middle = await _prices_of(session, ids.order_by(*up).offset((count - 1) // 2).limit(2 - count % 2))
    first = await _prices_of(session, ids.order_by(*up).limit(1))
    last = await _prices_of(session, ids.order_by(*down).limit(1))
    return OfferPrices(first[0], median(middle or last), last[0]) if first and last else None


async def _prices_of(session: TeamSession, ids: Select[str]) -> tuple[Decimal, ...]:
    """USD per GPU-hour of the offers ``ids``, which are found first and by an index only."""
    prices = select(OfferRow.price_per_gpu_hour_micro_usd).where(OfferRow.offer_id.in_(ids))
    return tuple(from_micro_usd(micro_usd) for micro_usd in await session.scalars(prices))


async def find_cheapest_of_sellers(session: TeamSession, wanted: OfferFilter) -> tuple[SellersCheapest, ...]:
    """The cheapest offer of each provider among ``wanted``, cheapest first."""
    number = func.row_number().over(partition_by=OfferRow.provider, order_by=CHEAPEST_FIRST)
    shown = (OfferRow.provider, OfferRow.offer_id, OfferRow.price_per_gpu_hour_micro_usd)
    ranked = narrowed(select(*shown, OfferRow.price_rank, number.label("number")), wanted).subquery()
    statement = select(ranked).where(ranked.c.number == 1).order_by(ranked.c.price_rank, ranked.c.offer_id)
    return tuple(
        SellersCheapest(provider, offer_id, from_micro_usd(micro_usd))
        for provider, offer_id, micro_usd, _, _ in await session.execute(statement)
    )
