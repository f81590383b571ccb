"""When leases began, were seen last, and were asked to end, as far as their sellers say."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0011"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("reservations", sa.Column("seen_at", INSTANT, nullable=True))
    op.add_column("reservation_units", sa.Column("began_at", INSTANT, nullable=True))
    op.add_column("reservation_units", sa.Column("leaving_at", INSTANT, nullable=True))


def downgrade() -> None:
    op.drop_column("reservation_units", "leaving_at")
    op.drop_column("reservation_units", "began_at")
    op.drop_column("reservations", "seen_at")
