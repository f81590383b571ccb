"""Price history in narrow rows: what prices are of, prices, their days, and days of a kind of GPU."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROWS_AT_ONCE = 10_000

OFFERS = sa.table("offers", sa.column("offer_id", IDENTIFIER), sa.column("document", DOCUMENT))
POINTS = sa.table(
    "price_points",
    sa.column("point_id", SERIAL),
    sa.column("offer_id", IDENTIFIER),
    sa.column("at", INSTANT),
    sa.column("price_per_node_hour_micro_usd", sa.BigInteger),
    sa.column("stock_nodes", sa.Integer),
    sa.column("available", sa.Boolean),
)
SERIES = sa.table(
    "price_series",
    sa.column("series_id", SERIAL),
    sa.column("offer_id", IDENTIFIER),
    sa.column("provider", IDENTIFIER),
    sa.column("gpu", IDENTIFIER),
    sa.column("tier", sa.String),
    sa.column("gpus_per_node", sa.Integer),
)
PRICES = sa.table(
    "prices",
    sa.column("series_id", SERIAL),
    sa.column("at", sa.BigInteger),
    sa.column("micro_usd", sa.BigInteger),
    sa.column("stock_nodes", sa.Integer),
    sa.column("available", sa.Boolean),
)


def upgrade() -> None:
    """Points move to the new table; of offers that are gone nobody knows any more what they sold."""
    op.create_table(
        "price_series",
        sa.Column("series_id", SERIAL, nullable=False),
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("gpu", IDENTIFIER, nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("gpus_per_node", sa.Integer(), nullable=False),
        sa.Column("document", DOCUMENT, nullable=True),
        sa.PrimaryKeyConstraint("series_id", name=op.f("pk_price_series")),
        sa.UniqueConstraint("offer_id", name=op.f("uq_price_series_offer_id")),
    )
    op.create_index(op.f("ix_price_series_gpu_tier"), "price_series", ["gpu", "tier"])
    op.create_table(
        "prices",
        sa.Column("series_id", SERIAL, autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("stock_nodes", sa.Integer(), nullable=True),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("series_id", "at", name=op.f("pk_prices")),
        sa.ForeignKeyConstraint(
            ["series_id"], ["price_series.series_id"], name=op.f("fk_prices_series_id_price_series")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "price_days",
        sa.Column("series_id", SERIAL, autoincrement=False, nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("least", "median", "most", "last")),
        sa.Column("seconds", sa.Integer(), nullable=False),
        sa.Column("changes", sa.Integer(), nullable=False),
        sa.Column("on_sale", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("series_id", "day", name=op.f("pk_price_days")),
        sa.ForeignKeyConstraint(
            ["series_id"], ["price_series.series_id"], name=op.f("fk_price_days_series_id_price_series")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sku_days",
        sa.Column("gpu", IDENTIFIER, nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("least", "median", "most")),
        sa.Column("offers", sa.Integer(), nullable=False),
        sa.Column("providers", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("gpu", "tier", "day", "provider", name=op.f("pk_sku_days")),
        sqlite_with_rowid=False,
    )
    _move_points(op.get_bind())
    op.drop_index(op.f("ix_price_points_offer_id_at"), "price_points")
    op.drop_table("price_points")


def downgrade() -> None:
    """Points move back."""
    op.create_table(
        "price_points",
        sa.Column("point_id", SERIAL, nullable=False),
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("price_per_node_hour_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("stock_nodes", sa.Integer(), nullable=True),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("point_id", name=op.f("pk_price_points")),
    )
    op.create_index(op.f("ix_price_points_offer_id_at"), "price_points", ["offer_id", "at"])
    connection = op.get_bind()
    kept = sa.select(
        SERIES.c.offer_id, PRICES.c.at, PRICES.c.micro_usd, PRICES.c.stock_nodes, PRICES.c.available
    ).join(SERIES, SERIES.c.series_id == PRICES.c.series_id)
    names = ("offer_id", "at", "price_per_node_hour_micro_usd", "stock_nodes", "available")
    for many in connection.execute(kept.order_by(PRICES.c.at)).partitions(ROWS_AT_ONCE):
        points = [
            dict(zip(names, (offer_id, EPOCH + at * timedelta(microseconds=1), *rest), strict=True))
            for offer_id, at, *rest in many
        ]
        connection.execute(sa.insert(POINTS), points)
    for table in ("sku_days", "price_days", "prices", "price_series"):
        op.drop_table(table)


def _move_points(connection: sa.Connection) -> None:
    sold = {row.offer_id: row.document for row in connection.execute(sa.select(OFFERS))}
    series = [
        _series(offer_id, sold.get(offer_id))
        for (offer_id,) in connection.execute(sa.select(POINTS.c.offer_id).distinct())
    ]
    if series:
        connection.execute(sa.insert(SERIES), series)
    newest = sa.select(sa.func.max(POINTS.c.point_id)).group_by(POINTS.c.offer_id, POINTS.c.at)
    points = (
        sa.select(
            SERIES.c.series_id,
            POINTS.c.at,
            POINTS.c.price_per_node_hour_micro_usd,
            POINTS.c.stock_nodes,
            POINTS.c.available,
        )
        .join(SERIES, SERIES.c.offer_id == POINTS.c.offer_id)
        .where(POINTS.c.point_id.in_(newest))
    )
    names = ("series_id", "at", "micro_usd", "stock_nodes", "available")
    for many in connection.execute(points).partitions(ROWS_AT_ONCE):
        rows = [
            dict(zip(names, (series_id, _micros(at), *rest), strict=True)) for series_id, at, *rest in many
        ]
        connection.execute(sa.insert(PRICES), rows)


def _micros(at: datetime) -> int:
    instant = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (instant - EPOCH) // timedelta(microseconds=1)


def _series(offer_id: str, document: dict[str, Any] | None) -> dict[str, Any]:
    """What the prices are of; of an offer that is gone only the provider, as ids begin."""
    if document is None:
        words = {"provider": offer_id.partition("/")[0], "gpu": "", "tier": "", "gpus_per_node": 1}
    else:
        sku = document["sku"]
        words = {
            "provider": document["provider"],
            "gpu": sku["gpu"],
            "tier": document["tier"],
            "gpus_per_node": sku["gpus_per_node"],
        }
    return {"offer_id": offer_id, **words}
