"""How often a feed failed in a row, and before when it is not asked again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("feeds", sa.Column("failures", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("feeds", sa.Column("not_before", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("feeds", "not_before")
    op.drop_column("feeds", "failures")
