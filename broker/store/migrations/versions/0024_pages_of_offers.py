"""Pages of offers are found by indexes: exact prices, pools, and what names a feed's offers."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
OFFERS = sa.table(
    "offers",
    sa.column("offer_id", sa.String),
    sa.column("provider", sa.String),
    sa.column("fingerprint", sa.String),
    sa.column("document", sa.JSON),
    sa.column("price_rank", sa.String),
    sa.column("pool_id", sa.String),
    sa.column("pool_gpus", sa.Integer),
)
FEEDS = sa.table("feeds", sa.column("provider", sa.String), sa.column("offers_digest", sa.String))
INDEXES = (
    ("price_rank", "offer_id"),
    ("provider", "price_rank", "offer_id"),
    ("gpu", "price_rank", "offer_id"),
    ("region", "price_rank", "offer_id"),
    ("tier", "price_rank", "offer_id"),
    ("price_per_node_hour_micro_usd", "offer_id"),
    ("stock_nodes", "offer_id"),
    ("provider", "gpu", "region", "tier"),
    ("provider", "observed_at"),
    ("pool_id", "gpu", "pool_gpus"),
)
OLD_INDEXES = ("provider", "gpu")


def upgrade() -> None:
    op.add_column("feeds", sa.Column("offers_digest", sa.String(), nullable=False, server_default=""))
    for name in OLD_INDEXES:
        op.drop_index(f"ix_offers_{name}", "offers")
    with op.batch_alter_table("offers") as table:
        table.add_column(sa.Column("price_rank", IDENTIFIER, nullable=False, server_default=""))
        table.add_column(sa.Column("pool_id", IDENTIFIER, nullable=True))
        table.add_column(sa.Column("pool_gpus", sa.Integer(), nullable=True))
    _fill()
    with op.batch_alter_table("offers") as table:
        table.alter_column("price_rank", existing_type=IDENTIFIER, server_default=None)
    for columns in INDEXES:
        op.create_index("_".join(("ix_offers", *columns)), "offers", list(columns))


def _fill() -> None:
    connection = op.get_bind()
    digests: defaultdict[str, int] = defaultdict(int)
    columns = (OFFERS.c.offer_id, OFFERS.c.provider, OFFERS.c.fingerprint, OFFERS.c.document)
    changed = []
    for offer_id, provider, fingerprint, document in connection.execute(sa.select(*columns)).all():
        digests[provider] ^= int(fingerprint or "0", 16)
        pool = (document.get("stock") or {}).get("pool") or {}
        values = {"rank": _rank(document), "pool": pool.get("pool_id"), "gpus": pool.get("gpus")}
        changed.append({"key": offer_id, **values})
    if changed:
        row = sa.update(OFFERS).where(OFFERS.c.offer_id == sa.bindparam("key"))
        columns_of = {"price_rank": "rank", "pool_id": "pool", "pool_gpus": "gpus"}
        named: dict[str, sa.BindParameter[Any]] = {
            column: sa.bindparam(name) for column, name in columns_of.items()
        }
        connection.execute(row.values(named), changed)
    for provider, digest in digests.items():
        feed = sa.update(FEEDS).where(FEEDS.c.provider == provider)
        connection.execute(feed.values(offers_digest=f"{digest:032x}"))


def _rank(document: dict[str, Any]) -> str:
    """The price per GPU-hour as words that sort like it: twelve digits, and decimals without end zeros."""
    gpus = max(1, document["sku"]["gpus_per_node"])
    price = Decimal(document["price_usd_per_node_hour"]) / gpus
    return f"{price:073.60f}".rstrip("0").rstrip(".")


def downgrade() -> None:
    for columns in INDEXES:
        op.drop_index("_".join(("ix_offers", *columns)), "offers")
    with op.batch_alter_table("offers") as table:
        for name in ("price_rank", "pool_id", "pool_gpus"):
            table.drop_column(name)
    for name in OLD_INDEXES:
        op.create_index(f"ix_offers_{name}", "offers", [name])
    op.drop_column("feeds", "offers_digest")
