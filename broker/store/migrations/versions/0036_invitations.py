"""Invitations: keys that whoever has the link may still accept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from broker.store.columns import UtcDateTime

revision = "0036"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("invited_until", UtcDateTime))


def downgrade() -> None:
    """Open invitations end: as keys, their links' tokens would open the API."""
    op.execute("DELETE FROM api_keys WHERE invited_until IS NOT NULL")
    op.drop_column("api_keys", "invited_until")
