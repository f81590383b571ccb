"""How often in a row a reservation's seller refused, so that back-off outlives a restart."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tries = sa.Column("tries", sa.Integer(), nullable=False, server_default=sa.text("0"))
    op.add_column("reservations", tries)
    op.add_column("reservations", sa.Column("tried_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("reservations", "tried_at")
    op.drop_column("reservations", "tries")
