"""What sellers charge for leases by the hour, the most they may, and what refused orders taught."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

COLUMNS = (
    ("reservations", "limit_per_node_hour_micro_usd", sa.BigInteger()),
    ("reservation_units", "price_per_node_hour_micro_usd", sa.BigInteger()),
    ("launches", "ends_at", sa.DateTime(timezone=True)),
    ("launches", "asks_per_node_hour_micro_usd", sa.BigInteger()),
)


def upgrade() -> None:
    for table, name, kind in COLUMNS:
        op.add_column(table, sa.Column(name, kind, nullable=True))
    confirmed: sa.Column[bool] = sa.Column(
        "is_price_confirmed", sa.Boolean(), nullable=False, server_default=sa.false()
    )
    op.add_column("reservation_units", confirmed)


def downgrade() -> None:
    op.drop_column("reservation_units", "is_price_confirmed")
    for table, name, _ in reversed(COLUMNS):
        op.drop_column(table, name)
