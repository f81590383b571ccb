"""Offers whose price is not believed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
DOCUMENT = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "quarantine",
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.PrimaryKeyConstraint("offer_id", name=op.f("pk_quarantine")),
    )
    op.create_index(op.f("ix_quarantine_provider"), "quarantine", ["provider"])


def downgrade() -> None:
    op.drop_table("quarantine")
