"""The networks that were made for machines of sellers, and whose an API key is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from broker.store.columns import Document, Identifier, UtcDateTime

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "seller_networks",
        sa.Column("provider", Identifier, nullable=False),
        sa.Column("region", Identifier, nullable=False),
        sa.Column("resource_ids", Document, nullable=False),
        sa.Column("sources", Document, nullable=False),
        sa.Column("made_at", UtcDateTime, nullable=False),
        sa.Column("made_by", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("provider", "region", name="pk_seller_networks"),
    )
    op.add_column("api_keys", sa.Column("person", sa.String, nullable=False, server_default=""))


def downgrade() -> None:
    """The networks stay at the sellers; orders name them no longer."""
    op.drop_column("api_keys", "person")
    op.drop_table("seller_networks")
