"""Our own launches, and what came of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

IDENTIFIER = sa.String().with_variant(sa.String(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "launches",
        sa.Column("reservation_id", IDENTIFIER, nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("offer_id", IDENTIFIER, nullable=False),
        sa.Column("provider", IDENTIFIER, nullable=False),
        sa.Column("sku", sa.String(), nullable=False),
        sa.Column("region", IDENTIFIER, nullable=False),
        sa.Column("asked_at", INSTANT, nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("usable_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("reservation_id", "outcome", name=op.f("pk_launches")),
    )
    op.create_index(op.f("ix_launches_asked_at"), "launches", ["asked_at"])


def downgrade() -> None:
    op.drop_table("launches")
