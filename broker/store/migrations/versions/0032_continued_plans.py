"""Plans say which plan they continue and by which they are continued, and keep the hash of their market."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from broker.store.columns import Identifier

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("continues", Identifier))
    op.add_column("plans", sa.Column("continued_by", Identifier))
    op.add_column("plans", sa.Column("market_sha256", sa.String))


def downgrade() -> None:
    """The plans stay; what continued them is no longer told."""
    for name in ("continues", "continued_by", "market_sha256"):
        op.drop_column("plans", name)
