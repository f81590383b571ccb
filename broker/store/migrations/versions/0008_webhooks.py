"""Webhooks: addresses, the outbox of events, deliveries, and the money that was told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("webhook_id", IDENTIFIER, nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", DOCUMENT, nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("disabled_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("webhook_id", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_created_at_webhook_id"), "webhooks", ["created_at", "webhook_id"])
    op.create_index(op.f("ix_webhooks_team"), "webhooks", ["team"])
    op.create_table(
        "outbox",
        sa.Column("event_id", SERIAL, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("team", IDENTIFIER, nullable=False),
        sa.Column("object_kind", sa.String(), nullable=False),
        sa.Column("object_id", IDENTIFIER, nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_outbox")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "deliveries",
        sa.Column("event_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("webhook_id", IDENTIFIER, nullable=False),
        sa.Column("message_id", IDENTIFIER, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", INSTANT, nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("event_id", "webhook_id", name=op.f("pk_deliveries")),
    )
    op.create_index(op.f("ix_deliveries_state_next_at"), "deliveries", ["state", "next_at"])
    op.create_index(op.f("ix_deliveries_webhook_id_event_id"), "deliveries", ["webhook_id", "event_id"])
    op.create_table(
        "told_money",
        sa.Column("object_id", IDENTIFIER, nullable=False),
        sa.Column("expected_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("owed_micro_usd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("object_id", name=op.f("pk_told_money")),
    )


def downgrade() -> None:
    for table in ("told_money", "deliveries", "outbox", "webhooks"):
        op.drop_table(table)
