"""Parts of queries of the price history that reads and maintenance share."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ScalarSelect, select

from broker.domain.market.price_days import PriceDay
from broker.store.market.price_tables import PriceDayRow, PriceRow, SeriesRow


def in_force_at(at: datetime, *, inclusive: bool) -> ScalarSelect[datetime]:
    """Time of the last point of each series before ``at`` (``inclusive``: or at it), with one index seek."""
    point = PriceRow.__table__.alias()
    before = point.c.at <= at if inclusive else point.c.at < at
    return (
        select(point.c.at)
        .where(point.c.series_id == SeriesRow.series_id, before)
        .order_by(point.c.at.desc())
        .limit(1)
        .correlate(SeriesRow)
        .scalar_subquery()
    )


def price_day_of(row: PriceDayRow) -> PriceDay:
    """A stored day."""
    return PriceDay(
        day=row.day,
        least=row.least,
        median=row.median,
        most=row.most,
        last=row.last,
        seconds=row.seconds,
        changes=row.changes,
        on_sale=row.on_sale,
    )
