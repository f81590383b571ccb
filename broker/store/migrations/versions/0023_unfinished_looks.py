"""The seconds within which a look at a plan was not finished."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reoptimizations", sa.Column("guard_s", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("reoptimizations", "guard_s")
