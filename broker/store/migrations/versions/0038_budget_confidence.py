"""The chance with which a budget holds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("budgets", sa.Column("confidence", sa.Float, nullable=True))


def downgrade() -> None:
    """Budgets hold what is planned again."""
    op.drop_column("budgets", "confidence")
