"""The tables of the price history. They are narrow, because a year of a large market has millions of rows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Dialect, ForeignKey, Index, Integer, TypeDecorator
from sqlalchemy.orm import Mapped, mapped_column

from broker.domain.basics.window import require_utc
from broker.store.columns import Identifier, Serial
from broker.store.tables import Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class EpochMicros(TypeDecorator[datetime]):
    """A time as microseconds since 1970: 8 bytes instead of the 26 of SQLite's text format."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """Raises for naive times."""
        return None if value is None else micros_of(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """The aware time in UTC."""
        return None if value is None else EPOCH + value * MICROSECOND


class EpochDay(TypeDecorator[date]):
    """A UTC day as days since 1970."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: date | None, dialect: Dialect) -> int | None:
        """Days since 1970."""
        return None if value is None else (value - EPOCH.date()).days

    def process_result_value(self, value: int | None, dialect: Dialect) -> date | None:
        """The day."""
        return None if value is None else EPOCH.date() + timedelta(days=value)


def micros_of(instant: datetime) -> int:
    """Microseconds since 1970."""
    return (require_utc(instant, "a stored instant") - EPOCH) // MICROSECOND


class SeriesRow(Row):
    """An offer of the price history. ``document``: its last state, if it is no longer on sale."""

    __tablename__ = "price_series"
    __table_args__ = (Index(None, "gpu", "tier"),)

    series_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    offer_id: Mapped[str] = mapped_column(Identifier, unique=True)
    provider: Mapped[str] = mapped_column(Identifier)
    gpu: Mapped[str] = mapped_column(Identifier)
    tier: Mapped[str]
    gpus_per_node: Mapped[int]
    document: Mapped[dict[str, Any] | None]


class PriceRow(Row):
    """The price of an offer from ``at`` on, when the broker observed it. Append-only."""

    __tablename__ = "prices"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  read once by SQLAlchemy

    series_id: Mapped[int] = mapped_column(Serial, ForeignKey("price_series.series_id"), primary_key=True)
    at: Mapped[datetime] = mapped_column(EpochMicros, primary_key=True)
    micro_usd: Mapped[int] = mapped_column(BigInteger)
    stock_nodes: Mapped[int | None]
    available: Mapped[bool]


class PriceDayRow(Row):
    """An offer's prices on a UTC day on which they changed; until the next row they stayed at ``last``."""

    __tablename__ = "price_days"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  read once by SQLAlchemy

    series_id: Mapped[int] = mapped_column(Serial, ForeignKey("price_series.series_id"), primary_key=True)
    day: Mapped[date] = mapped_column(EpochDay, primary_key=True)
    least: Mapped[int] = mapped_column(BigInteger)
    median: Mapped[int] = mapped_column(BigInteger)
    most: Mapped[int] = mapped_column(BigInteger)
    last: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[int]
    changes: Mapped[int]
    on_sale: Mapped[bool]


class SkuDayRow(Row):
    """Prices of a GPU in one tier on a UTC day, per GPU-hour. ``provider`` empty: of all providers."""

    __tablename__ = "sku_days"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  read once by SQLAlchemy

    gpu: Mapped[str] = mapped_column(Identifier, primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(EpochDay, primary_key=True)
    provider: Mapped[str] = mapped_column(Identifier, primary_key=True)
    least: Mapped[int] = mapped_column(BigInteger)
    median: Mapped[int] = mapped_column(BigInteger)
    most: Mapped[int] = mapped_column(BigInteger)
    offers: Mapped[int]
    providers: Mapped[int]
