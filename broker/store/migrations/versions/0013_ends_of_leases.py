"""When leases began, were seen last, and were asked to end, as far as their sellers say."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
COLUMNS = ("began_at", "leaving_at", "seen_at")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("reservation_units", sa.Column(name, INSTANT, nullable=True))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("reservation_units", name)
