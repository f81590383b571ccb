"""What was asked for and what was granted, apart from what was ordered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COLUMNS = ("requested_start", "requested_end", "granted_start", "granted_end")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("reservations", sa.Column(name, sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("reservations", name)
