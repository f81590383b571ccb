"""A round writes only the offers that say something new: a fingerprint and the list price of each."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
INSTANT = sa.DateTime(timezone=True)

OFFERS = sa.table(
    "offers",
    sa.column("offer_id", IDENTIFIER),
    sa.column("provider", IDENTIFIER),
    sa.column("price_per_node_hour_micro_usd", sa.BigInteger),
    sa.column("list_per_node_hour_micro_usd", sa.BigInteger),
    sa.column("observed_at", INSTANT),
    sa.column("document", DOCUMENT),
)
FEEDS = sa.table("feeds", sa.column("provider", IDENTIFIER), sa.column("last_success_at", INSTANT))


def upgrade() -> None:
    """No fingerprint fits the offers that stand there: the next round writes each once more."""
    op.drop_index(op.f("ix_offers_observed_at"), "offers")
    with op.batch_alter_table("offers") as table:
        table.alter_column("observed_at", existing_type=INSTANT, nullable=True)
        table.add_column(sa.Column("fingerprint", sa.String(), nullable=False, server_default=""))
        table.add_column(
            sa.Column("list_per_node_hour_micro_usd", sa.BigInteger(), nullable=False, server_default="0")
        )
    connection = op.get_bind()
    connection.execute(
        sa.update(OFFERS).values(list_per_node_hour_micro_usd=OFFERS.c.price_per_node_hour_micro_usd)
    )
    for offer_id, document in connection.execute(sa.select(OFFERS.c.offer_id, OFFERS.c.document)).all():
        contract = document.get("contract")
        if contract is not None:
            micro_usd = round(Decimal(contract["list_usd_per_node_hour"]) * 1_000_000)
            mine = sa.update(OFFERS).where(OFFERS.c.offer_id == offer_id)
            connection.execute(mine.values(list_per_node_hour_micro_usd=micro_usd))
    with op.batch_alter_table("offers") as table:
        table.alter_column("fingerprint", existing_type=sa.String(), server_default=None)
        table.alter_column("list_per_node_hour_micro_usd", existing_type=sa.BigInteger(), server_default=None)


def downgrade() -> None:
    """Offers that were seen in the last good round of their feed get its time again."""
    seen = sa.select(FEEDS.c.last_success_at).where(FEEDS.c.provider == OFFERS.c.provider)
    connection = op.get_bind()
    undated = connection.execute(
        sa.select(OFFERS.c.offer_id, OFFERS.c.document, seen.scalar_subquery()).where(
            OFFERS.c.observed_at.is_(None)
        )
    ).all()
    for offer_id, document, at in undated:
        instant = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        whole = {**document, "observed_at": instant.isoformat()}
        mine = sa.update(OFFERS).where(OFFERS.c.offer_id == offer_id)
        connection.execute(mine.values(observed_at=at, document=whole))
    with op.batch_alter_table("offers") as table:
        table.drop_column("fingerprint")
        table.drop_column("list_per_node_hour_micro_usd")
        table.alter_column("observed_at", existing_type=INSTANT, nullable=False)
    op.create_index(op.f("ix_offers_observed_at"), "offers", ["observed_at"])
